// A step recorded once and replayed many times: a list of operations with their parameters by value and
// every address fixed. Replaying plans nothing, allocates nothing and chooses nothing; what changes from
// step to step changes in the memory that the recorded addresses point to. With a stream of the GPU it is a graph of
// CUDA, replayed by one call. Replaying either kind on an Exec of the other throws CheckError.
//
// GraphSet holds one graph for each padded batch size and replays the smallest that fits.
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/cuda.h"

namespace quire {

class Exec;

class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;

  // Called by Exec::launch while capturing.
  template <class Params>
  void record(void (*op)(const Params&, Exec&), const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    static_assert(alignof(Params) <= kParamsAlign);
    std::memcpy(append(typeid(Params), &call<Params>, reinterpret_cast<void (*)()>(op), sizeof(Params)), &params,
                sizeof(Params));
  }

  void set_captured(std::unique_ptr<cuda::CapturedGraph> captured) { captured_ = std::move(captured); }

  void replay(Exec& exec) const;
  int size() const { return static_cast<int>(ops_.size()); }  // operations of the team

 private:
  static constexpr size_t kParamsAlign = 64;
  using Thunk = void (*)(void (*op)(), const void* params, Exec& exec);
  struct Op {
    Thunk thunk;
    void (*op)();
    size_t params_offset;
    const std::type_info* kind;  // for profiles
  };
  template <class Params>
  static void call(void (*op)(), const void* params, Exec& exec) {
    reinterpret_cast<void (*)(const Params&, Exec&)>(op)(*static_cast<const Params*>(params), exec);
  }
  void* append(const std::type_info& kind, Thunk thunk, void (*op)(), size_t params_bytes);

  std::vector<Op> ops_;
  Buffer params_;  // one block, grown while recording; ops refer to it by offset
  size_t params_used_ = 0;
  std::unique_ptr<cuda::CapturedGraph> captured_;
};

class GraphSet {
 public:
  // Captures step(size) for each of the padded batch sizes, in descending order.
  void capture(Exec& exec, std::span<const int> sizes, const std::function<void(int size)>& step);
  // Replays the smallest captured size >= live and returns it; throws CheckError when there is none.
  int replay(Exec& exec, int live) const;
  int padded_size(int live) const;  // the size that replay would use

 private:
  struct Sized {
    int size;
    Graph graph;
  };
  const Sized& fitting(int live) const;

  std::vector<Sized> graphs_;  // ascending by size
};

}  // namespace quire
