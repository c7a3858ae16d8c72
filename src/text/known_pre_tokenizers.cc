#include "text/known_pre_tokenizers.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::text {
namespace {

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The newer family: one odd character before a word belongs to it, and lines end with their punctuation.
std::string newer(std::string_view number) {
  return cat("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|", number,
             "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
}

KnownPreTokenizer gpt2() { return {.normalizer = {}, .steps = {Split{std::string(kGpt2)}}}; }

KnownPreTokenizer gpt2_after_single_digits() {
  return {.normalizer = {}, .steps = {Split{"\\p{N}"}, Split{std::string(kGpt2)}}};
}

KnownPreTokenizer dbrx() { return {.normalizer = {}, .steps = {Split{newer("\\p{N}{1,3}")}}}; }

KnownPreTokenizer llama3() {
  KnownPreTokenizer known = dbrx();
  known.ignore_merges = known.add_bos = true;
  return known;
}

KnownPreTokenizer qwen2() { return {.normalizer = {UnicodeForm::nfc}, .steps = {Split{newer("\\p{N}")}}}; }

struct Known {
  std::string_view name;
  KnownPreTokenizer (*make)();
};
constexpr Known kKnown[] = {
    {"gpt-2", gpt2},
    {"smollm", gpt2_after_single_digits},
    {"starcoder", gpt2_after_single_digits},
    {"refact", gpt2_after_single_digits},
    {"dbrx", dbrx},  // OLMo 2
    {"llama-bpe", llama3},
    {"llama3", llama3},
    {"llama-v3", llama3},
    {"qwen2", qwen2},
    {"deepseek-r1-qwen", qwen2},
};

}  // namespace

KnownPreTokenizer known_pre_tokenizer(std::string_view name) {
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& each) { return each.name == name; });
  check(known != std::end(kKnown), "the pre-tokenizer ", in_quotes(name), " is not supported");
  return known->make();
}

std::string_view byte_level_pattern() { return kGpt2; }

}  // namespace quire::text
