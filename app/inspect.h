// `quire inspect`: the step metadata and the files of models made visible, for people who integrate or debug.
//
//   quire inspect metadata [limits] [--json]   an arena's table: every buffer, its type, shape, bytes, role and readers
//   quire inspect step FILE                    one step, given as JSON, and its materialised metadata as JSON
//   quire inspect attention [problem]          which kernel of a GPU takes a problem, and why (inspect_attention.cc)
//   quire inspect logits [MODEL] --ids IDS     what a model makes of token ids (inspect_logits.h)
//   quire inspect model [MODEL] [--json]       what is in a model's files (inspect_model.cc)
#pragma once
#include <string>

#include "attn/metadata.h"

namespace quire {

// Both print to standard output and return the exit code: 0, or 2 after one line on standard error that says what is
// wrong with the input.
int inspect_metadata(const attn::Limits& limits, bool json);
int inspect_step(const std::string& path);  // "-": standard input

}  // namespace quire
