// What a step costs before any layer runs: its metadata, and the machinery around it. Lines report their medians.
#include "arena_line.h"
#include "base/check.h"
#include "bench.h"
#include "gather.h"
#include "graph_lines.h"
#include "metadata_lines.h"
#include "short_line.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kMetadataRounds = 101;
constexpr int kQuickMetadataRounds = 11;

void add_join_line(const Wanted& wanted, Exec& exec, std::vector<ShortLine>& lines) {
  const std::string name = cat("join/threads=", exec.threads());
  if (!wanted(name)) return;
  lines.push_back({.name = name, .seconds = in_a_loop([&exec] { gather(exec); })});
}

Result result_of(const ShortLine& line, const MachineLimits& limits) {
  const double seconds = median(line.samples);
  Result result{
      .name = line.name, .median_us = seconds * 1e6, .limit_us = {}, .gbps = {}, .tflops = {}, .note = line.note};
  if (line.bytes > 0) {
    result.limit_us = limit_seconds({line.bytes, 0}, limits, limits.isa) * 1e6;
    result.gbps = line.bytes / seconds / 1e9;
  }
  return result;
}

}  // namespace

Report bench_metadata(const BenchOptions& options) {
  const Wanted wanted = [&](const std::string& name) { return name.find(options.filter) != std::string::npos; };
  Exec exec({.threads = options.threads});
  std::vector<ShortLine> lines;
  add_arena_line(wanted, exec.threads(), lines);  // first, before the other lines' memory comes and goes
  MetadataWorlds worlds(exec.threads());
  add_metadata_lines(wanted, worlds, exec, lines);
  GraphLines graph(exec);
  graph.add(wanted, lines);
  add_join_line(wanted, exec, lines);
  check(!lines.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");

  LimitSampler sampler(exec, {});
  measure(lines,
          options.repeat  ? options.repeat
          : options.quick ? kQuickMetadataRounds
                          : kMetadataRounds,
          sampler, exec);
  Report report{sampler.limits(), "", {}};
  for (const ShortLine& line : lines) report.results.push_back(result_of(line, report.machine));
  GraphLines::hold_replay_against_call(report.results);
  return report;
}

}  // namespace quire::bench
