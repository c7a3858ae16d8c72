#include "base/cuda.h"

#include <cuda_runtime_api.h>

#include "base/cuda_absence.h"
#include "base/cuda_call.h"
#include "base/cuda_memory.h"

namespace quire::cuda {
namespace {

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }

template <class... What>
void check_memory(cudaError_t result, const What&... what) {
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(cat(what..., ": ", cudaGetErrorString(result)));
  }
  check_cuda(result, what...);
}

class TimedEvent {
 public:
  TimedEvent() { check_cuda(cudaEventCreate(&event_), "no event"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "an event is not recorded"); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_;
};

}  // namespace

int devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver is no error here
  return 0;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return cat("no GPU was found", result == cudaSuccess ? "" : cat(" (", cudaGetErrorString(result), ")"));
}

std::string device_name() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "no properties of the device");
  return properties.name;
}

int compute_capability() {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "no properties of the device");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "no properties of the device");
  return 10 * major + minor;
}

Memory memory() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "the device's memory is not known");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

int64_t free_at_start() {
  static const int64_t bytes = memory().free;
  return bytes;
}

std::byte* allocate_device(size_t bytes) {
  void* memory = nullptr;
  check_memory(cudaMalloc(&memory, bytes), "cannot allocate ", bytes, " bytes on the device");
  return static_cast<std::byte*>(memory);
}

void free_device(std::byte* memory) noexcept { cudaFree(memory); }

std::byte* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  check_memory(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cannot pin ", bytes,
               " bytes of host memory");
  return static_cast<std::byte*>(memory);
}

void free_pinned(std::byte* memory) noexcept { cudaFreeHost(memory); }

CapturedGraph::~CapturedGraph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }

Event::Event() {
  cudaEvent_t made;
  check_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "no event");
  handle_ = made;
}

Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }

void Event::record(Stream& stream) {
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(handle_), as_stream(stream.handle())),
             "an event is not recorded");
}

bool Event::is_over() const {
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (state == cudaErrorNotReady) return false;
  check_cuda(state, "the device failed");
  return true;
}

Stream::Stream() {
  free_at_start();
  cudaStream_t made;
  check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "no stream");
  handle_ = made;
}

Stream::~Stream() { cudaStreamDestroy(as_stream(handle_)); }

void Stream::copy(std::byte* to, const std::byte* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(handle_)), "cannot copy ", bytes, " bytes");
}

// Calls of other threads, an allocation for instance, do not break the capture.
void Stream::begin_capture() {
  check_cuda(cudaStreamBeginCapture(as_stream(handle_), cudaStreamCaptureModeThreadLocal), "no capture");
}

std::unique_ptr<CapturedGraph> Stream::end_capture() {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(as_stream(handle_), &graph), "the capture failed");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check_memory(made, "the captured graph cannot be used");
  return std::make_unique<CapturedGraph>(executable);
}

void Stream::launch(const CapturedGraph& graph) {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.executable()), as_stream(handle_)),
             "cannot launch a graph");
}

double Stream::seconds_of(const std::function<void()>& work) {
  const TimedEvent begin, end;
  begin.record(as_stream(handle_));
  work();
  end.record(as_stream(handle_));
  wait();
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.event(), end.event()), "no time");
  return milliseconds * 1e-3;
}

void Stream::wait() { check_cuda(cudaStreamSynchronize(as_stream(handle_)), "the device failed"); }

}  // namespace quire::cuda
