// Where work runs: a team of threads, the instruction set to use, scratch memory for each thread, for operations of
// the GPU its stream, and the choice between doing an operation now and recording it into a graph.
//
// The team is the caller and size - 1 workers. Workers spin for a short while after each job, because the
// next one usually follows within microseconds, then yield, then sleep in the kernel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/cpu_features.h"
#include "base/cuda.h"
#include "base/types.h"

namespace quire {

class Graph;
class OpTimes;

struct ExecOptions {
  int threads = 0;  // 0: as many as the cores this process may use, its cgroup's quota considered
  Isa isa = best_isa();
  size_t scratch_bytes = size_t{8} << 20;  // for each thread; address space until it is touched
  cuda::Stream* stream = nullptr;          // of operations of the GPU, which then are what is recorded
};

class Exec {
 public:
  explicit Exec(const ExecOptions& options = {});
  ~Exec();
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  int threads() const;
  Isa isa() const;
  cuda::Stream* stream() const { return stream_; }
  Device device() const { return stream_ ? Device::cuda : Device::cpu; }  // whose operations it runs
  void wait();  // until the GPU has done what it was given; operations of the team have returned already

  // Calls job(context, item, thread) once for every item in [0, items), on all threads of the team, and returns
  // when all are done. Items are handed out in ascending order; which threads take part is not fixed. Not
  // reentrant. Allocates nothing. A job must not throw: an exception that leaves it ends the process.
  using Job = void (*)(const void* context, int64_t item, int thread);
  void parallel(int64_t items, Job job, const void* context);

  // 64-byte aligned, private to the thread, contents undefined at the start of every job.
  std::byte* scratch(int thread) const;
  size_t scratch_bytes() const;

  // Runs op(params, *this) now or, between begin_capture and end_capture, records it with a copy of params. For
  // operations of the team: with a stream, which the operation would overtake, it throws CheckError. Operations of the
  // GPU go to the stream, which records for itself.
  template <class Params>
  void launch(void (*op)(const Params&, Exec&), const Params& params);

  void begin_capture(Graph& graph);  // graph must outlive end_capture
  void end_capture();
  bool capturing() const { return capture_ != nullptr; }

  // From now on operations, replayed ones too, add their times there; null: no longer. For profiles.
  void keep_times(OpTimes* times) { times_ = times; }
  OpTimes* times() const { return times_; }

 private:
  [[noreturn]] static void refuse_beside_stream();

  struct Team;
  std::unique_ptr<Team> team_;
  cuda::Stream* stream_;
  Graph* capture_ = nullptr;
  OpTimes* times_ = nullptr;
};

// How many threads a process should use: the cores in its affinity mask, at most its cgroup's CPU quota
// rounded up, at least one.
int usable_cores();

}  // namespace quire

#include "base/graph.h"
#include "base/op_times.h"

namespace quire {
template <class Params>
void Exec::launch(void (*op)(const Params&, Exec&), const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "recorded parameters are copied as bytes");
  if (stream_) [[unlikely]]
    refuse_beside_stream();
  if (capture_)
    capture_->record(op, params);
  else if (times_) [[unlikely]]
    times_->time(typeid(Params), [&] { op(params, *this); });
  else
    op(params, *this);
}
}  // namespace quire
