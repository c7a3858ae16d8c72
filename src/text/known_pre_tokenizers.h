// Pre-tokenizers that GGUF files only name (tokenizer.ggml.pre), spelled out; and the pattern that byte-level
// tokenizer files leave unsaid.
#pragma once
#include <string_view>
#include <vector>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace quire::text {

struct KnownPreTokenizer {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> steps;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};

KnownPreTokenizer known_pre_tokenizer(std::string_view name);  // throws CheckError naming one that is not known

// Contractions, words, numbers and punctuation with the space before them, and white space.
std::string_view byte_level_pattern();

}  // namespace quire::text
