// What `quire bench throughput` measures, as experiments: one run of an engine gives a sample for each of its lines.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "session.h"

namespace quire::bench {

struct ThroughputShape {
  std::vector<int32_t> prompts = {512, 2048, 8000};  // tokens of the prefill lines
  std::vector<int32_t> depths = {0, 1024, 4096};     // tokens before those of a decode line
  std::vector<int32_t> concurrency = {16};           // sequences of the lines that run several
  int32_t batch_prompt = 128;                        // tokens before those of a line that runs several
  int32_t new_tokens = 128;

  int32_t most_tokens() const;        // of one sequence
  int32_t most_total_tokens() const;  // of all that run together
  int32_t most_sequences() const;
};

struct ThroughputLine {
  std::string name;
  double tokens;                     // that come in the measured time; 0: a latency
  double bytes;                      // that must be read in it; 0: not known
  std::vector<double> samples = {};  // seconds
};

struct Experiment {
  std::vector<ThroughputLine> lines;
  int32_t longest;                           // tokens of its longest sequence
  std::function<std::vector<double>()> run;  // seconds of each line
};

// They use the session's engine one after the other, from the calling thread.
std::vector<Experiment> throughput_experiments(const ThroughputShape& shape, Session& session);

}  // namespace quire::bench
