#include "graph_lines.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace quire::bench {
namespace {

constexpr int kOps = 1000;
const std::string kReplayName = cat("graph/replay/ops=", kOps);
const std::string kCallName = cat("graph/call/ops=", kOps);

// Seconds of that many operations, measured on whole graphs of them.
template <class All>
std::function<double(int64_t)> per_op(All all) {
  return [run = in_a_loop(all)](int64_t ops) {
    const int64_t graphs = std::max<int64_t>(1, ops / kOps);
    return run(graphs) * static_cast<double>(ops) / static_cast<double>(graphs * kOps);
  };
}

}  // namespace

GraphLines::GraphLines(Exec& exec) : exec_(exec) {
  exec.begin_capture(graph_);
  for (int i = 0; i < kOps; ++i) {
    ticks_.push_back({&counter_, i});
    exec.launch(tick, ticks_.back());
  }
  exec.end_capture();
}

void GraphLines::add(const Wanted& wanted, std::vector<ShortLine>& lines) {
  if (!wanted(kReplayName) && !wanted(kCallName)) return;
  lines.push_back({.name = kCallName, .seconds = per_op([this] { call_all(); })});
  lines.push_back({.name = kReplayName, .seconds = per_op([this] { graph_.replay(exec_); })});
}

[[gnu::noinline]] void GraphLines::tick(const Tick& params, Exec&) { *params.counter += params.step; }

void GraphLines::call_all() {
  for (const Tick& params : ticks_) tick(params, exec_);
}

void GraphLines::hold_replay_against_call(std::vector<Result>& results) {
  const auto find = [&](const std::string& name) {
    return std::find_if(results.begin(), results.end(), [&](const Result& r) { return r.name == name; });
  };
  const auto replay = find(kReplayName), call = find(kCallName);
  if (replay == results.end()) return;
  replay->limit_us = call->median_us;
  char note[64];
  std::snprintf(note, sizeof(note), "%.1f ns over the plain call", (replay->median_us - call->median_us) * 1e3);
  replay->note = note;
}

}  // namespace quire::bench
