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
static_assert(std::atomic<bool>::is_always_lock_free, "used by a signal handler");

extern "C" void note_stop(int signal) {
  constexpr int kEndedBySignal = 128;  // as shells count
  if (!counts) _exit(kEndedBySignal + signal);
  const int error = errno;
  sem_post(&arrived);
  errno = error;
}

void handle(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  sem_init(&arrived, 0, 0);
  counts = false;
  handle(note_stop);
}

StopSignals::~StopSignals() {
  handle(SIG_DFL);
  sem_destroy(&arrived);
}

void StopSignals::wait_from_now_on() { counts = true; }

void StopSignals::wait() {
  while (sem_wait(&arrived) != 0) {
  }
}

bool StopSignals::wait_for(std::chrono::milliseconds time) {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  const auto total = std::chrono::nanoseconds(until.tv_nsec) + time;
  until.tv_sec += total / std::chrono::seconds(1);
  until.tv_nsec = (total % std::chrono::seconds(1)).count();
  int result;
  while ((result = sem_timedwait(&arrived, &until)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

}  // namespace quire
