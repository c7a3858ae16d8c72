// The options with which a person says how tokens are drawn, the same for every command that draws any.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/sample.h"

namespace CLI {
class App;
}

namespace quire {

struct SamplingOptions {
  ops::SamplingParams params;
  std::vector<std::string> logit_bias;  // ID:VALUE
  std::optional<uint64_t> seed;
};
void add_sampling_options(CLI::App& app, SamplingOptions& options, float default_temperature);

// What the options say; without a seed, one of the system's random numbers. Throws CheckError for a bias that is no
// ID:VALUE; the engine checks the rest.
ops::SamplingParams sampling_params(const SamplingOptions& options);

}  // namespace quire
