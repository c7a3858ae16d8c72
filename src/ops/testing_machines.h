// For tests of operations that a GPU has too: on each machine the same cases, in memory that both sides address.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "base/buffer.h"
#include "base/cuda.h"
#include "base/graph.h"
#include "base/types.h"
#include "ops/testing_rows.h"

namespace quire::ops::testing {

// --- memory

// Pinned memory taken once where there is a GPU, because the driver takes its time for each piece; all of it is there
// again when the last array has gone.
class SharedMemory {
 public:
  static std::byte* take(size_t bytes) {
    SharedMemory& all = instance();
    const size_t place = all.used_;
    all.used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    check(all.used_ <= all.memory_.size(), "the tests need more memory that both sides address");
    ++all.pieces_;
    return all.memory_.data() + place;
  }
  static void give_back() {
    SharedMemory& all = instance();
    if (--all.pieces_ == 0) all.used_ = 0;
  }

 private:
  static constexpr size_t kAlign = 64, kBytes = size_t{256} << 20;
  static SharedMemory& instance() {
    static SharedMemory all;
    return all;
  }
  Buffer memory_{kBytes, quire::cuda::devices() > 0 ? Place::pinned : Place::host};
  size_t used_ = 0;
  int64_t pieces_ = 0;
};

template <class T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <class U>
  SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(size_t count) { return reinterpret_cast<T*>(SharedMemory::take(count * sizeof(T))); }
  void deallocate(T*, size_t) { SharedMemory::give_back(); }
  friend bool operator==(SharedAllocator, SharedAllocator) { return true; }
};

template <class T>
using Array = std::vector<T, SharedAllocator<T>>;

template <class T>
Array<T> shared(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}
inline Array<float> random_array(size_t count, uint64_t seed, float spread = 1) {
  return shared(random_floats(count, seed, spread));
}

template <class T>
bool same_bits(const Array<T>& a, const Array<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Equal bits, or both NaN: a GPU's NaNs have bits of their own.
inline bool same_numbers(const Array<float>& a, const Array<float>& b) {
  const auto same = [](float x, float y) { return std::memcmp(&x, &y, sizeof(x)) == 0 || (x != x && y != y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// --- machines

inline std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

class OnEachMachine : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (is_gpu() && quire::cuda::devices() == 0)
      GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
  static bool is_gpu() { return GetParam() == Device::cuda; }

  static Exec& gpu() {
    static quire::cuda::Stream stream;
    static Exec exec({.threads = 1, .stream = &stream});
    return exec;
  }
  static Exec& any_exec() { return is_gpu() ? gpu() : *every_exec().back(); }

  // Each kind of machine and team of a CPU, or the GPU.
  template <class Body>
  static void with_every_exec(Body body) {
    if (is_gpu())
      body(gpu());
    else
      testing::with_every_exec(body);
  }
};

// What `record` launched, to be run as often as wanted.
class Recording {
 public:
  Recording(Exec& exec, const std::function<void()>& record) : exec_(exec) {
    exec.stream() ? exec.stream()->begin_capture() : exec.begin_capture(graph_);
    record();
    if (exec.stream())
      captured_ = exec.stream()->end_capture();
    else
      exec.end_capture();
  }
  void replay() {
    captured_ ? exec_.stream()->launch(*captured_) : graph_.replay(exec_);
    exec_.wait();
  }

 private:
  Exec& exec_;
  Graph graph_;
  std::unique_ptr<quire::cuda::CapturedGraph> captured_;
};

const auto kMachines = ::testing::Values(Device::cpu, Device::cuda);
const auto machine_name = [](const auto& test) { return to_string(test.param); };

}  // namespace quire::ops::testing
