// `quire inspect logits [MODEL] --ids 1,2,3`: what a model makes of token ids, for comparing with other programs.
//
// One sequence goes through the model in chunks, and from a given position on token by token through a recorded graph.
// Neither shows in the logits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/types.h"

namespace quire {

struct LogitsOptions {
  std::string model;               // for model_path()
  std::vector<int32_t> ids;        // the text, at least one token
  std::vector<int32_t> positions;  // whose logits are printed; none: the last one's
  int32_t chunk = 256;             // tokens in an extend step
  int32_t decode_from = -1;        // the first position that is decoded; -1: none
  int threads = 0;
  Isa isa = best_isa();
  Dtype kv_type = Dtype::f32;
  bool json = false;
};

// Prints to standard output and returns the exit code: 0, or 2 after one line on standard error.
int inspect_logits(const LogitsOptions& options);

}  // namespace quire
