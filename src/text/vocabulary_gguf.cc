// A vocabulary from the tokenizer.* metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/gguf.h"
#include "base/in_quotes.h"
#include "text/end_tokens.h"
#include "text/known_pre_tokenizers.h"
#include "text/merges.h"
#include "text/vocabulary.h"

namespace quire::text {
namespace {

constexpr std::string_view kSpace = " ";

std::string key(std::string_view name) { return cat("tokenizer.ggml.", name); }

StringTable read_tokens(const GgufFile& file) {
  const std::vector<std::string_view> texts = file.strings(key("tokens"));
  check(!texts.empty() && texts.size() < std::numeric_limits<int32_t>::max(), "the vocabulary has ", texts.size(),
        " tokens");
  size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  StringTable tokens;
  tokens.reserve(texts.size(), bytes);
  for (const std::string_view text : texts) tokens.add(text);
  return tokens;
}

// Files number the types from 1.
std::vector<TokenType> read_types(const GgufFile& file, size_t tokens) {
  if (!file.has(key("token_type"))) return std::vector<TokenType>(tokens, TokenType::normal);
  std::vector<TokenType> types;
  types.reserve(tokens);
  for (const int64_t number : file.integers(key("token_type"))) {
    check(number >= 1 && number <= 6, "token ", types.size(), " has the unknown type ", number);
    types.push_back(static_cast<TokenType>(number - 1));
  }
  check(types.size() == tokens, "there are ", tokens, " tokens and the types of ", types.size());
  return types;
}

std::vector<bool> mergeable_by(const std::vector<TokenType>& types) {
  std::vector<bool> mergeable;
  for (const TokenType type : types)
    mergeable.push_back(type == TokenType::normal || type == TokenType::user_defined || type == TokenType::unused);
  return mergeable;
}

std::vector<float> read_scores(const GgufFile& file, size_t tokens) {
  const std::vector<double> scores = file.numbers(key("scores"));
  check(scores.size() == tokens, "there are ", tokens, " tokens and the scores of ", scores.size());
  check(std::none_of(scores.begin(), scores.end(), [](double score) { return std::isnan(score); }),
        "a token's score is not a number");
  return {scores.begin(), scores.end()};
}

std::vector<Merge> read_merges(const GgufFile& file, const StringTable& tokens) {
  const std::vector<std::string_view> texts = file.strings(key("merges"));
  MergeReader reader(tokens, texts.size());
  for (const std::string_view text : texts) reader.add(text);
  return reader.take();
}

std::optional<int32_t> read_id(const GgufFile& file, std::string_view name, int32_t tokens) {
  if (!file.has(key(name))) return std::nullopt;
  const int64_t id = file.integer(key(name));
  check(id >= 0 && id < tokens, key(name), " ", id, " is not one of the ", tokens, " tokens");
  return static_cast<int32_t>(id);
}

std::vector<AddedToken> added_tokens_of(const Vocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (int32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    const bool special = type == TokenType::control || type == TokenType::unknown;
    if (special || type == TokenType::user_defined) added.push_back({.id = id, .special = special});
  }
  return added;
}

void read_byte_bpe(const GgufFile& file, Vocabulary& vocabulary) {
  KnownPreTokenizer known = known_pre_tokenizer(file.text(key("pre")));
  vocabulary.kind = VocabularyKind::byte_bpe;
  vocabulary.merges = read_merges(file, vocabulary.tokens);
  vocabulary.normalizer = std::move(known.normalizer);
  vocabulary.pre_tokenizer = std::move(known.steps);
  vocabulary.ignore_merges = known.ignore_merges;
}

void read_spm_bpe(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.kind = VocabularyKind::spm_bpe;
  vocabulary.scores = read_scores(file, vocabulary.types.size());
  vocabulary.byte_fallback = true;
  vocabulary.fuse_unknown = true;
  vocabulary.drops_first_space = file.flag(key("add_space_prefix"), true);
  if (file.flag(key("remove_extra_whitespaces"), false))
    vocabulary.normalizer = {Strip{}, ReplaceMatches{" {2,}", std::string(kSpace)}};
  if (vocabulary.drops_first_space) vocabulary.normalizer.push_back(Prepend{std::string(kVisibleSpace)});
  vocabulary.normalizer.push_back(Replace{std::string(kSpace), std::string(kVisibleSpace)});
}

bool adds_bos_unless_told(const GgufFile& file, const Vocabulary& vocabulary) {
  return vocabulary.kind == VocabularyKind::spm_bpe || known_pre_tokenizer(file.text(key("pre"))).add_bos;
}

void read_special_ids(const GgufFile& file, Vocabulary& vocabulary) {
  const auto id_of = [&](std::string_view name) { return read_id(file, name, vocabulary.tokens.size()); };
  vocabulary.bos = id_of("bos_token_id");
  vocabulary.eos = id_of("eos_token_id");
  vocabulary.eot = id_of("eot_token_id");
  vocabulary.unk = id_of("unknown_token_id");
  vocabulary.pad = id_of("padding_token_id");
  if (vocabulary.bos && file.flag(key("add_bos_token"), adds_bos_unless_told(file, vocabulary)))
    vocabulary.prefix = {*vocabulary.bos};
  if (vocabulary.eos && file.flag(key("add_eos_token"), false)) vocabulary.suffix = {*vocabulary.eos};
  std::vector<int32_t> ends;
  for (const auto& id : {vocabulary.eos, vocabulary.eot, id_of("eom_token_id")})
    if (id) ends.push_back(*id);
  vocabulary.end_ids = end_tokens(vocabulary, std::move(ends));
}

Vocabulary read(const GgufFile& file) {
  Vocabulary vocabulary;
  vocabulary.tokens = read_tokens(file);
  vocabulary.types = read_types(file, static_cast<size_t>(vocabulary.tokens.size()));
  vocabulary.mergeable = mergeable_by(vocabulary.types);
  vocabulary.added = added_tokens_of(vocabulary);
  const std::string model = file.text(key("model"));
  check(model == "gpt2" || model == "llama", "the tokenizer model ", in_quotes(model), " is not supported");
  model == "gpt2" ? read_byte_bpe(file, vocabulary) : read_spm_bpe(file, vocabulary);
  read_special_ids(file, vocabulary);
  if (file.has("tokenizer.chat_template")) vocabulary.chat_template = file.text("tokenizer.chat_template");
  return vocabulary;
}

}  // namespace

Vocabulary vocabulary_from_gguf(const GgufFile& file) {
  return errors_about(file.path(), [&] { return read(file); });
}

Vocabulary vocabulary_from_path(const std::string& path) {
  return std::filesystem::is_directory(path) ? vocabulary_from_folder(path) : vocabulary_from_gguf(GgufFile(path));
}

}  // namespace quire::text
