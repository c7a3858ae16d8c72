#include "base/exec.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/cpu_quota.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

constexpr size_t kLine = 64;  // what two threads write must not share a cache line

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Long enough to bridge the gaps between the operations of a step, short enough that an idle server is idle.
constexpr std::chrono::microseconds kSpin{70};
constexpr int kYields = 8;

// Spins until done() or until the time is over; returns whether it is done.
template <class Done>
bool spin(std::chrono::microseconds time, Done done) {
  constexpr int kPausesPerClockRead = 32;
  if (done()) return true;
  if (time.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

// Jobs are numbered by an epoch that grows by two. Each worker has a state of its own, which is the number of the
// last job that is over for it, or that number plus one while it works on the job:
//
//     worker   epoch - 2  ->  epoch + 1  ->  epoch        it took part and has finished
//     caller   epoch - 2  ----------------->  epoch        it had not begun when no items were left
//
// Both leave epoch - 2 by compare-and-exchange, so exactly one of them wins. The caller therefore waits only for
// workers that hold an item, never for one that the system has not yet woken or scheduled.
struct Exec::Team {
  struct alignas(kLine) Worker {
    std::atomic<uint32_t> state{0};
    std::thread thread;
  };

  Team(const ExecOptions& options, int threads)
      : size(threads),
        isa(options.isa),
        scratch_bytes(options.scratch_bytes),
        // None rather than an array of none, which no pointer points into and sanitizers therefore take for lost.
        workers(threads > 1 ? new Worker[static_cast<size_t>(threads - 1)] : nullptr) {
    // With fewer cores than threads, spinning takes the core from the thread that is waited for.
    if (size <= usable_cores()) spin_time = kSpin;
    for (int i = 0; i < size; ++i) scratch.emplace_back(scratch_bytes);
  }

  // Apart from the constructor, so that a thread that cannot be started leaves a whole team to be taken down.
  void start() {
    for (int i = 0; i < size - 1; ++i) workers[i].thread = std::thread([this, i] { serve(workers[i], i + 1); });
  }

  ~Team() {
    stopping.store(true, std::memory_order_relaxed);
    post();
    for (int i = 0; i < size - 1; ++i)
      if (workers[i].thread.joinable()) workers[i].thread.join();
  }

  // Sequentially consistent: a worker counts itself as sleeping and then reads the epoch, this writes the epoch and
  // then reads the count, and one of the two must see the other.
  void post() {
    epoch.store(epoch.load(std::memory_order_relaxed) + 2, std::memory_order_seq_cst);
    epoch.notify_all();
  }

  void serve(Worker& self, int thread) {
    for (uint32_t seen = 0;;) {
      seen = await_job(seen);
      if (stopping.load(std::memory_order_relaxed)) return;
      uint32_t before = seen - 2;
      if (!self.state.compare_exchange_strong(before, seen + 1, std::memory_order_acq_rel)) continue;
      drain(thread);
      self.state.store(seen, std::memory_order_release);
    }
  }

  uint32_t await_job(uint32_t seen) const {
    uint32_t now = seen;
    const auto posted = [&] { return (now = epoch.load(std::memory_order_acquire)) != seen; };
    if (spin(spin_time, posted)) return now;
    for (int i = 0; i < kYields; ++i) {
      std::this_thread::yield();
      if (posted()) return now;
    }
    while (!posted()) epoch.wait(seen, std::memory_order_acquire);
    return now;
  }

  // noexcept: leaving early would let the caller's context die under the other threads.
  void drain(int thread) noexcept {
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) job(context, item, thread);
  }

  void join() {
    const uint32_t current = epoch.load(std::memory_order_relaxed);
    for (int i = 0; i < size - 1; ++i) {
      auto& state = workers[i].state;
      uint32_t before = current - 2;
      if (state.compare_exchange_strong(before, current, std::memory_order_acq_rel)) continue;
      const auto finished = [&] { return state.load(std::memory_order_acquire) == current; };
      if (spin(spin_time, finished)) continue;
      while (!finished()) std::this_thread::yield();
    }
  }

  const int size;
  const Isa isa;
  const size_t scratch_bytes;
  const std::unique_ptr<Worker[]> workers;
  std::vector<Buffer> scratch;
  std::chrono::microseconds spin_time{0};
  std::atomic<bool> stopping{false};

  alignas(kLine) std::atomic<uint32_t> epoch{0};  // the three below belong to the job it numbers
  Job job = nullptr;
  const void* context = nullptr;
  int64_t items = 0;

  alignas(kLine) std::atomic<int64_t> next{0};
};

Exec::Exec(const ExecOptions& options) : stream_(options.stream) {
  check(options.threads >= 0, "a team of ", options.threads, " threads cannot be made");
  // Asking for the best here, before any thread starts, is also what obtains AMX's tile state for all of them.
  check_available(options.isa);
  team_ = std::make_unique<Team>(options, options.threads ? options.threads : usable_cores());
  team_->start();
}

Exec::~Exec() = default;

int Exec::threads() const { return team_->size; }
Isa Exec::isa() const { return team_->isa; }
std::byte* Exec::scratch(int thread) const { return team_->scratch[static_cast<size_t>(thread)].data(); }
size_t Exec::scratch_bytes() const { return team_->scratch_bytes; }

void Exec::run_team(int64_t items, Job job, const void* context) {
  if (items <= 0) return;
  Team& team = *team_;
  team.job = job;
  team.context = context;
  team.items = items;
  team.next.store(0, std::memory_order_relaxed);
  const bool alone = items == 1 || team.size == 1;  // waking others would cost more than it gives
  if (!alone) team.post();
  team.drain(0);
  if (!alone) team.join();
}

void Exec::begin_capture(Graph& graph) {
  check(!capturing(), "a capture has already begun");
  if (stream_) stream_->begin_capture();
  capture_ = &graph;
}

void Exec::end_capture() {
  check(capturing(), "no capture has begun");
  Graph& graph = *std::exchange(capture_, nullptr);
  if (stream_) graph.set_captured(stream_->end_capture());
}

void Exec::refuse_beside_stream() {
  throw CheckError("an operation of the processor was given to an Exec with a stream, whose work it would overtake");
}

void Exec::wait() {
  if (stream_) stream_->wait();
}

int usable_cores() {
  // More than the 1024 that a plain cpu_set_t holds: the call fails when the machine has more than the set.
  constexpr int kMostCores = 8192;
  cpu_set_t* set = CPU_ALLOC(kMostCores);
  const size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  CPU_ZERO_S(bytes, set);
  const int cores = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 1;
  CPU_FREE(set);
  const double granted = std::ceil(cgroup_cpu_quota().value_or(cores));
  return std::max(1, static_cast<int>(std::min<double>(cores, granted)));
}

}  // namespace quire
