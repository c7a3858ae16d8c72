// Every line is measured once a round, in turns with the other lines of its group and with the machine's limits, and
// reports its median: what slows the machine for a while slows all of them alike.
#include <algorithm>
#include <map>
#include <memory>

#include "attention_lines.h"
#include "attention_world.h"
#include "attn/cpu_choice.h"
#include "base/check.h"
#include "bench.h"
#include "progress.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr int kAttentionRounds = 15;
constexpr int kQuickAttentionRounds = 3;
constexpr double kSecondsPerLine = 6;  // a line that is slower than this is measured once

std::vector<Isa> chosen_isas(const BenchOptions& options) {
  std::vector<Isa> isas = options.isas.empty() ? available_isas() : options.isas;
  std::erase(isas, Isa::avxvnni);     // attention takes avx2 there
  std::erase(isas, Isa::avx512vnni);  // and avx512 there
  std::sort(isas.begin(), isas.end());
  isas.erase(std::unique(isas.begin(), isas.end()), isas.end());
  for (Isa isa : isas) check_available(isa);
  return isas;
}

using Teams = std::map<Isa, std::unique_ptr<Exec>>;

Teams make_teams(const std::vector<Isa>& isas, int threads) {
  Teams teams;
  for (Isa isa : isas) teams[isa] = std::make_unique<Exec>(ExecOptions{.threads = threads, .isa = isa});
  return teams;
}

struct MeasuredLine {
  AttentionLine line;
  std::unique_ptr<AttentionStep> step;
  std::vector<double> seconds = {};
  double spent = 0;

  void measure() {
    if (!seconds.empty() && spent > kSecondsPerLine) return;
    seconds.push_back(step->run());
    spent += seconds.back();
  }

  // Without the first call, which finds cold code and untouched memory, where there are others.
  double median_seconds() const { return median({seconds.begin() + (seconds.size() > 2 ? 1 : 0), seconds.end()}); }
};

class GroupBench {
 public:
  GroupBench(const LineGroup& lines, const Teams& teams) {
    for (const AttentionLine& line : lines) {
      Exec& exec = *teams.at(line.isa);
      lines_.push_back({line, std::make_unique<AttentionStep>(line, world_for(line, exec), exec)});
    }
  }

  void round() {
    for (MeasuredLine& line : lines_) line.measure();
  }

  const std::vector<MeasuredLine>& lines() const { return lines_; }

 private:
  AttentionWorld& world_for(const AttentionLine& line, Exec& exec) {
    for (const auto& world : worlds_)
      if (world->serves(line)) return *world;
    worlds_.push_back(std::make_unique<AttentionWorld>(line, exec));
    return *worlds_.back();
  }

  std::vector<std::unique_ptr<AttentionWorld>> worlds_;
  std::vector<MeasuredLine> lines_;
};

// A group's memory is given back when its timings are known.
void measure_group(const LineGroup& lines, const Teams& teams, int rounds, LimitSampler& limits, Progress& progress,
                   std::vector<Timing>& timings) {
  const std::string first = name(lines.front(), best_isa());
  progress.say(first + ": storing keys and values");
  GroupBench group(lines, teams);
  for (int round = 0; round < rounds; ++round) {
    progress.say(cat(first, " and ", lines.size() - 1, " more: round ", round + 1, " of ", rounds));
    limits.sample();
    group.round();
  }
  for (const MeasuredLine& line : group.lines()) timings.push_back({line.line, line.median_seconds()});
}

// The instruction set whose peak bounds the line: a kernel may use a lesser one than the machine has.
Isa isa_of_kernel(const AttentionLine& line) {
  const Heads& heads = line.heads;
  return attn::choose({line.query_type(), line.type, heads.query, heads.kv, heads.dim, heads.value_dim}, line.isa).isa;
}

std::vector<Result> results_of(const std::vector<Timing>& timings, const MachineLimits& limits) {
  std::vector<Result> results;
  for (const Timing& timing : timings) {
    const auto& [line, seconds] = timing;
    const Work work = work_of(line);
    results.push_back({.name = name(line, best_isa()),
                       .median_us = seconds * 1e6,
                       .limit_us = limit_seconds(work, limits, isa_of_kernel(line)) * 1e6,
                       .gbps = work.bytes / seconds / 1e9,
                       .tflops = work.flops / seconds / 1e12,
                       .note = note_of(timing, timings)});
  }
  return results;
}

}  // namespace

Report bench_attention(const BenchOptions& options) {
  const std::vector<Isa> isas = chosen_isas(options);
  const auto groups = filtered(attention_groups(isas, options.quick), options.filter, best_isa());
  check(!groups.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");

  const Teams teams = make_teams(isas, options.threads);
  // A kernel may fall back to any lesser instruction set, so all of those peaks are known too.
  LimitSampler sampler(*teams.at(isas.back()), available_isas());
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickAttentionRounds : kAttentionRounds;
  std::vector<Timing> timings;
  {
    Progress progress;
    for (const LineGroup& group : groups) measure_group(group, teams, rounds, sampler, progress, timings);
  }
  const MachineLimits limits = sampler.limits();
  return {limits, "", results_of(timings, limits)};
}

}  // namespace quire::bench
