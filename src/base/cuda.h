// The GPU in the few words that quire needs, without CUDA's own headers, so that rooms which only pass these on build
// anywhere. In a build without CUDA there are no devices, and asking for anything of one throws.
//
// Errors   DeviceError with CUDA's own words; a fault of a kernel shows at the next wait().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/check.h"

namespace quire::cuda {

// What CUDA refused, or a fault of the device, after which it computes nothing more for this process.
class DeviceError : public CheckError {
 public:
  using CheckError::CheckError;
};

class OutOfMemory : public DeviceError {  // of the device, or of what can be pinned; all is as it was before
 public:
  using DeviceError::DeviceError;
};

int devices();              // 0: no GPU, no driver, or built without CUDA
std::string device_name();  // of the one that is used
int compute_capability();   // 90: 9.0

struct Memory {
  int64_t free, total;  // bytes
};
Memory memory();  // of the device, as it is now

// Memory of the device, and memory of the host that the device addresses by the same pointer.
std::byte* allocate_device(size_t bytes);
void free_device(std::byte* memory) noexcept;
std::byte* allocate_pinned(size_t bytes);
void free_pinned(std::byte* memory) noexcept;

// What a stream was given between begin_capture() and end_capture(), to be launched again as one.
class CapturedGraph {
 public:
  explicit CapturedGraph(void* executable) : executable_(executable) {}
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  void* executable() const { return executable_; }  // cudaGraphExec_t

 private:
  void* executable_;
};

class Stream;

// A point in a stream's work.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream& stream);              // the end of what it has been given so far
  bool is_over() const;                     // the work before the point
  void* handle() const { return handle_; }  // cudaEvent_t

 private:
  void* handle_ = nullptr;
};

// Work in order. Nothing but wait() and the destructor waits for it.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* handle() const { return handle_; }                        // cudaStream_t
  void copy(std::byte* to, const std::byte* from, size_t bytes);  // between any two memories
  void begin_capture();
  std::unique_ptr<CapturedGraph> end_capture();
  void launch(const CapturedGraph& graph);
  void wait();
  double seconds_of(const std::function<void()>& work);  // as the GPU's clock has it; waits for the work

 private:
  void* handle_ = nullptr;
};

}  // namespace quire::cuda
