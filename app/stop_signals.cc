#include "stop_signals.h"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

namespace quire {
namespace {

sem_t arrived;
std::atomic<bool> counts{false};
std::atomic<int> reloads{0};  // of those that arrived
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "used by signal handlers");

extern "C" void note_stop(int signal) {
  constexpr int kEndedBySignal = 128;  // as shells count
  if (!counts) _exit(kEndedBySignal + signal);
  const int error = errno;
  sem_post(&arrived);
  errno = error;
}

extern "C" void note_reload(int) {
  const int error = errno;
  ++reloads;
  sem_post(&arrived);
  errno = error;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

// What the signal was that a wait on the semaphore has taken.
Signal taken() {
  for (int seen = reloads; seen > 0;)
    if (reloads.compare_exchange_weak(seen, seen - 1)) return Signal::reload;
  return Signal::stop;
}

}  // namespace

StopSignals::StopSignals(Hangup hangup) {
  sem_init(&arrived, 0, 0);
  counts = false;
  reloads = 0;
  handle(SIGINT, note_stop);
  handle(SIGTERM, note_stop);
  if (hangup == Hangup::reloads) handle(SIGHUP, note_reload);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, SIG_DFL);
  sem_destroy(&arrived);
}

void StopSignals::wait_from_now_on() { counts = true; }

Signal StopSignals::wait() {
  while (sem_wait(&arrived) != 0) {
  }
  return taken();
}

bool StopSignals::wait_for(std::chrono::milliseconds time) {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  const auto total = std::chrono::nanoseconds(until.tv_nsec) + time;
  until.tv_sec += total / std::chrono::seconds(1);
  until.tv_nsec = (total % std::chrono::seconds(1)).count();
  for (;;) {
    if (sem_timedwait(&arrived, &until) == 0) {
      if (taken() == Signal::stop) return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
}

}  // namespace quire
