// The parts of a Hugging Face tokenizer.json, each turned into the vocabulary's plain data.
//
// Errors   CheckError naming a kind, a behaviour or an option that is not supported: nothing is passed over that could
//          change an id.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/string_table.h"

namespace quire::text {

std::vector<NormalizerStep> normalizer_from_json(const nlohmann::json& normalizer);  // null: no steps

struct JsonPreTokenizer {
  std::vector<PreTokenizerStep> steps;
  bool byte_level = false;  // pieces become bytes at the end
};
JsonPreTokenizer pre_tokenizer_from_json(const nlohmann::json& pre_tokenizer);  // null: no steps

struct JsonPostProcessor {  // what stands around a text
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};
JsonPostProcessor post_processor_from_json(const nlohmann::json& post_processor, const StringTable& tokens);

struct JsonDecoder {
  bool byte_level = false;
  bool drops_first_space = false;
};
JsonDecoder decoder_from_json(const nlohmann::json& decoder);

}  // namespace quire::text
