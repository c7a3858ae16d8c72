#include "text/tokenizer_json.h"

#include <map>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/json_fields.h"
#include "text/known_pre_tokenizers.h"
#include "text/regex.h"
#include "text/vocabulary.h"

namespace quire::text {
namespace {

using nlohmann::json;

constexpr int kMostSequenceDepth = 16;  // of sequences in sequences

// Calls visit(part, type) for the part itself or, of a sequence, for each of its parts.
template <class Visit>
void for_each_part(const json& part, std::string_view list, Visit&& visit, int depth = 0) {
  check(depth < kMostSequenceDepth, "sequences are nested deeper than ", kMostSequenceDepth);
  if (part.is_null()) return;
  const std::string& type = text_field(part, "type");
  if (type != "Sequence") return visit(part, type);
  for (const json& inner : list_field(part, list)) for_each_part(inner, list, visit, depth + 1);
}

// A pattern as a regular expression, whichever of its two forms it has.
std::string pattern_of(const json& part) {
  const json& pattern = field(part, "pattern");
  if (!optional_field(pattern, "Regex").is_null()) return text_field(pattern, "Regex");
  return Regex::escaped(text_field(pattern, "String"));
}

// --- normalizer

NormalizerStep replace_step(const json& part) {
  const json& pattern = field(part, "pattern");
  if (optional_field(pattern, "String").is_string())
    return Replace{text_field(pattern, "String"), text_field(part, "content")};
  return ReplaceMatches{text_field(pattern, "Regex"), text_field(part, "content")};
}

NormalizerStep normalizer_step(const json& part, const std::string& type) {
  static const std::map<std::string, UnicodeForm> kForms = {
      {"NFC", UnicodeForm::nfc}, {"NFD", UnicodeForm::nfd}, {"NFKC", UnicodeForm::nfkc}, {"NFKD", UnicodeForm::nfkd}};
  if (const auto form = kForms.find(type); form != kForms.end()) return form->second;
  if (type == "Prepend") return Prepend{text_field(part, "prepend")};
  if (type == "Replace") return replace_step(part);
  check(type == "Strip", "the normalizer ", in_quotes(type), " is not supported");
  return Strip{flag_field(part, "strip_left", true), flag_field(part, "strip_right", true)};
}

// --- pre-tokenizer

SplitBehavior behavior_of(const json& part) {
  static const std::map<std::string, SplitBehavior> kBehaviors = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string& name = text_field(part, "behavior");
  const auto found = kBehaviors.find(name);
  check(found != kBehaviors.end(), "the split behavior ", in_quotes(name), " is not supported");
  return found->second;
}

// Older files have add_prefix_space where newer ones have prepend_scheme.
std::string prepend_scheme_of(const json& part) {
  if (optional_field(part, "prepend_scheme").is_null())
    return flag_field(part, "add_prefix_space", true) ? "always" : "never";
  const std::string& scheme = text_field(part, "prepend_scheme");
  check(scheme == "always" || scheme == "first" || scheme == "never", "the prepend_scheme ", in_quotes(scheme),
        " is not supported");
  return scheme;
}

void add_metaspace(const json& part, std::vector<PreTokenizerStep>& steps) {
  const std::string& space = text_field(part, "replacement");
  const std::string scheme = prepend_scheme_of(part);
  steps.push_back(Replace{" ", space});
  if (scheme != "never") steps.push_back(EnsurePrefix{space, scheme == "first"});
  if (flag_field(part, "split", true)) steps.push_back(Split{Regex::escaped(space), SplitBehavior::merged_with_next});
}

void add_byte_level(const json& part, JsonPreTokenizer& found) {
  if (flag_field(part, "add_prefix_space", true)) found.steps.push_back(EnsurePrefix{" "});
  if (flag_field(part, "use_regex", true)) found.steps.push_back(Split{std::string(byte_level_pattern())});
  found.byte_level = true;
}

void add_pre_tokenizer(const json& part, const std::string& type, JsonPreTokenizer& found) {
  check(!found.byte_level, "the pre-tokenizer ", in_quotes(type), " after ByteLevel is not supported");
  if (type == "Split")
    found.steps.push_back(Split{pattern_of(part), behavior_of(part), flag_field(part, "invert", false)});
  else if (type == "Digits")
    found.steps.push_back(Split{flag_field(part, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
  else if (type == "ByteLevel")
    add_byte_level(part, found);
  else if (type == "Metaspace")
    add_metaspace(part, found.steps);
  else
    throw CheckError(cat("the pre-tokenizer ", in_quotes(type), " is not supported"));
}

// --- post-processor

std::vector<int32_t> ids_of_special(const json& special_tokens, const std::string& name, const StringTable& tokens) {
  const json& ids = list_field(field(special_tokens, name), "ids");
  std::vector<int32_t> found;
  for (const json& id : ids) {
    check(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < tokens.size(), "the special token ",
          in_quotes(name), " has the id ", id.dump(), ", which is not in the vocabulary");
    found.push_back(id.get<int32_t>());
  }
  return found;
}

void read_template(const json& part, const StringTable& tokens, JsonPostProcessor& found) {
  bool before_text = true;
  for (const json& item : list_field(part, "single")) {
    if (!optional_field(item, "Sequence").is_null()) {
      check(before_text, "a template with the text twice is not supported");
      before_text = false;
      continue;
    }
    const std::string& name = text_field(field(item, "SpecialToken"), "id");
    const std::vector<int32_t> ids = ids_of_special(field(part, "special_tokens"), name, tokens);
    std::vector<int32_t>& place = before_text ? found.prefix : found.suffix;
    place.insert(place.end(), ids.begin(), ids.end());
  }
}

}  // namespace

std::vector<NormalizerStep> normalizer_from_json(const json& normalizer) {
  std::vector<NormalizerStep> steps;
  for_each_part(normalizer, "normalizers",
                [&](const json& part, const std::string& type) { steps.push_back(normalizer_step(part, type)); });
  return steps;
}

JsonPreTokenizer pre_tokenizer_from_json(const json& pre_tokenizer) {
  JsonPreTokenizer found;
  for_each_part(pre_tokenizer, "pretokenizers",
                [&](const json& part, const std::string& type) { add_pre_tokenizer(part, type, found); });
  return found;
}

JsonPostProcessor post_processor_from_json(const json& post_processor, const StringTable& tokens) {
  JsonPostProcessor found;
  for_each_part(post_processor, "processors", [&](const json& part, const std::string& type) {
    if (type == "ByteLevel") return;  // it moves offsets, not ids
    check(type == "TemplateProcessing", "the post-processor ", in_quotes(type), " is not supported");
    read_template(part, tokens, found);
  });
  return found;
}

JsonDecoder decoder_from_json(const json& decoder) {
  JsonDecoder found;
  for_each_part(decoder, "decoders", [&](const json& part, const std::string& type) {
    if (type == "ByteLevel") {
      found.byte_level = true;
    } else if (type == "Metaspace") {
      found.drops_first_space = prepend_scheme_of(part) != "never";
    } else if (type == "Strip") {
      check(text_field(part, "content") == " " && optional_field(part, "stop") == 0 &&
                (optional_field(part, "start") == 0 || optional_field(part, "start") == 1),
            "the decoder Strip takes off more than one space at the start, which is not supported");
      found.drops_first_space = part["start"] == 1;
    } else if (type == "Replace") {
      check(pattern_of(part) == kVisibleSpace && text_field(part, "content") == " ",
            "the decoder Replace puts another character than a space for another than U+2581, which is not supported");
    } else {
      check(type == "ByteFallback" || type == "Fuse", "the decoder ", in_quotes(type), " is not supported");
    }
  });
  return found;
}

}  // namespace quire::text
