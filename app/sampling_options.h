// The options with which a person says how tokens are drawn, the same for every command that draws any.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/sample.h"

namespace CLI {
class App;
class Validator;
}

namespace quire {

struct SamplingOptions {  // what was given
  std::optional<float> temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<int32_t> top_k;
  std::vector<std::string> logit_bias;  // ID:VALUE
  std::optional<uint64_t> seed;
};
void add_sampling_options(CLI::App& app, SamplingOptions& options, const std::string& default_temperature);

CLI::Validator seed_range();  // of any --seed: a whole number from 0 up, of 64 bits

// What the options say, and otherwise the defaults; without a seed, one of the system's random numbers. Throws
// CheckError for a bias that is no ID:VALUE; the engine checks the rest.
ops::SamplingParams sampling_params(const SamplingOptions& options, const ops::SamplingParams& defaults);

// --sampling-defaults: where values come from that nobody gives.
struct SamplingDefaults {
  std::string from = "model";  // what its makers advise; or "openai": temperature and top-p of 1
};
void add_sampling_defaults(CLI::App& app, SamplingDefaults& defaults);
// `unadvised` is for models whose makers advise nothing. Throws CheckError: model/advised_sampling.h.
ops::SamplingParams default_sampling(const SamplingDefaults& defaults, const std::string& model_path,
                                     const ops::SamplingParams& unadvised = {});

}  // namespace quire
