// How a model's makers advise to draw from it: temperature, top-k, top-p, min-p and repetition penalty.
//
//   folder    generation_config.json
//   GGUF      general.sampling.temp, .top_k, .top_p, .min_p, .penalty_repeat
//   neither   what their page says, for the few models that are known here by the name of the file or folder
//
// Errors   CheckError that names the file: values of another type, or that nobody can draw with.
#pragma once
#include <string>

#include "ops/sample.h"

namespace quire::model {

// `otherwise` with what they advise in it.
ops::SamplingParams advised_sampling(const std::string& path, ops::SamplingParams otherwise = {});

}  // namespace quire::model
