#include "base/buffer.h"
#include "base/cuda_launch.cuh"
#include "slowed_kernels_probe.h"

namespace quire {
namespace {

struct Words {
  int32_t* written;
  int32_t* read;
  bool waits;
};

__global__ void write_kernel(const __grid_constant__ Words words) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  *reinterpret_cast<volatile int32_t*>(words.written) = kWritten;
}

__global__ void read_kernel(const __grid_constant__ Words words) {
  if (words.waits) cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  *reinterpret_cast<volatile int32_t*>(words.read) = *reinterpret_cast<volatile int32_t*>(words.written);
}

}  // namespace

int32_t read_after_write(bool waits, Exec& exec) {
  const Buffer memory(2 * sizeof(int32_t), Place::pinned);
  auto* const words = reinterpret_cast<int32_t*>(memory.data());
  words[0] = words[1] = kBefore;
  const Words args{words, words + 1, waits};
  cuda::launch_after(write_kernel, dim3(1), 1, 0, cuda::stream_of(exec), "the writer", args);
  cuda::launch_after(read_kernel, dim3(1), 1, 0, cuda::stream_of(exec), "the reader", args);
  exec.wait();
  return words[1];
}

}  // namespace quire
