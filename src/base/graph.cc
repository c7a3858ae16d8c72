#include "base/graph.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/exec.h"

namespace quire {

void* Graph::append(const std::type_info& kind, Thunk thunk, void (*op)(), size_t params_bytes) {
  constexpr size_t kFirstBlock = size_t{64} << 10;
  if (ops_.empty()) params_used_ = 0;  // also when it was moved from
  const size_t offset = (params_used_ + kParamsAlign - 1) / kParamsAlign * kParamsAlign;
  const size_t end = offset + params_bytes;
  if (end > params_.size()) {
    Buffer larger(std::max({kFirstBlock, 2 * params_.size(), end}));
    if (params_used_) std::memcpy(larger.data(), params_.data(), params_used_);
    params_ = std::move(larger);
  }
  ops_.push_back({thunk, op, offset, &kind});
  params_used_ = end;
  return params_.data() + offset;
}

void Graph::replay(Exec& exec) const {
  if (captured_) {
    check(exec.stream() != nullptr, "a graph of the GPU is replayed by an Exec with a stream");
    return exec.stream()->launch(*captured_);
  }
  check(ops_.empty() || exec.stream() == nullptr, "a graph of ", ops_.size(),
        " operations of the processor is replayed by an Exec without a stream");
  if (OpTimes* times = exec.times()) [[unlikely]] {
    for (const Op& op : ops_) times->time(*op.kind, [&] { op.thunk(op.op, params_.data() + op.params_offset, exec); });
    return;
  }
  for (const Op& op : ops_) op.thunk(op.op, params_.data() + op.params_offset, exec);
}

void GraphSet::capture(Exec& exec, std::span<const int> sizes, const std::function<void(int size)>& step) {
  std::vector<int> ascending(sizes.begin(), sizes.end());
  std::sort(ascending.begin(), ascending.end());
  check(!ascending.empty(), "no batch sizes to capture");
  check(ascending.front() > 0, "batch size ", ascending.front(), " cannot be captured");
  const auto twice = std::adjacent_find(ascending.begin(), ascending.end());
  check(twice == ascending.end(), "batch size ", twice == ascending.end() ? 0 : *twice, " is listed twice");

  std::vector<Sized> captured(ascending.size());
  for (size_t i = ascending.size(); i-- > 0;) {
    captured[i].size = ascending[i];
    exec.begin_capture(captured[i].graph);
    try {
      step(ascending[i]);
    } catch (...) {
      exec.end_capture();  // or exec would go on recording into a graph that is gone
      throw;
    }
    exec.end_capture();
  }
  graphs_ = std::move(captured);
}

const GraphSet::Sized& GraphSet::fitting(int live) const {
  check(!graphs_.empty(), "no graph has been captured");
  check(live >= 0, "a batch of ", live, " cannot be replayed");
  const auto found =
      std::lower_bound(graphs_.begin(), graphs_.end(), live, [](const Sized& s, int n) { return s.size < n; });
  check(found != graphs_.end(), "a batch of ", live, " is larger than the largest captured size, ",
        graphs_.back().size);
  return *found;
}

int GraphSet::replay(Exec& exec, int live) const {
  const Sized& chosen = fitting(live);
  chosen.graph.replay(exec);
  return chosen.size;
}

int GraphSet::padded_size(int live) const { return fitting(live).size; }

}  // namespace quire
