// A vocabulary from a Hugging Face folder: tokenizer.json has the tokens and how they are found, tokenizer_config.json
// and generation_config.json say which of them are special in what way.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/json_fields.h"
#include "base/strict_json.h"
#include "text/byte_token.h"
#include "text/end_tokens.h"
#include "text/merges.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

namespace quire::text {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kMostDepth = 64;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), "cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs read(json of the file); what is wrong with it is said with the file's path.
template <class Read>
void with_json(const fs::path& path, Read&& read) {
  errors_about(path.string(), [&] {
    try {
      read(parse_strict_json(read_file(path), kMostDepth));
    } catch (const json::exception& error) {
      throw CheckError(in_quotes(error.what(), 200));
    }
  });
}

template <class Read>
void with_json_if_there(const fs::path& path, Read&& read) {
  if (fs::exists(path)) with_json(path, read);
}

// --- tokens

struct NumberedToken {
  int64_t id;
  std::string_view text;
};

int64_t token_id(const json& value, std::string_view text) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0)
    throw CheckError(cat("the token ", in_quotes(text), " has the id ", value.dump()));
  return value.get<int64_t>();
}

// Empty where the file has none.
const json& added_tokens_of(const json& tokenizer) {
  static const json kNone = json::array();
  return optional_field(tokenizer, "added_tokens").is_null() ? kNone : list_field(tokenizer, "added_tokens");
}

std::vector<NumberedToken> numbered_tokens(const json& tokenizer) {
  std::vector<NumberedToken> numbered;
  const json& vocab = field(field(tokenizer, "model"), "vocab");
  check(vocab.is_object(), "the vocabulary of a BPE model is not an object but ", vocab.type_name());
  for (auto token = vocab.begin(); token != vocab.end(); ++token)
    numbered.push_back({token_id(*token, token.key()), token.key()});
  for (const json& added : added_tokens_of(tokenizer)) {
    const std::string& text = text_field(added, "content");
    numbered.push_back({token_id(field(added, "id"), text), text});
  }
  // An added token that the model has too comes last, and is found.
  std::stable_sort(numbered.begin(), numbered.end(),
                   [](const NumberedToken& a, const NumberedToken& b) { return a.id < b.id; });
  return numbered;
}

// Ids may have holes, but not so many that a few tokens make a large table.
StringTable read_tokens(const json& tokenizer) {
  const std::vector<NumberedToken> numbered = numbered_tokens(tokenizer);
  check(!numbered.empty(), "the vocabulary has no tokens");
  const int64_t last = numbered.back().id;
  check(last < std::ssize(numbered) * 2 + 65536, "the token ", in_quotes(numbered.back().text), " has the id ", last,
        ", far above the number of tokens, ", numbered.size());
  StringTable tokens;
  tokens.reserve(static_cast<size_t>(last) + 1, static_cast<size_t>(last + 1) * 8);
  for (size_t i = 0; i < numbered.size(); ++i) {
    while (tokens.size() < numbered[i].id) tokens.add_unfindable("");
    const bool again = i + 1 < numbered.size() && numbered[i + 1].id == numbered[i].id;
    if (again && numbered[i + 1].text != numbered[i].text)
      throw CheckError(cat("the tokens ", in_quotes(numbered[i].text), " and ", in_quotes(numbered[i + 1].text),
                           " have the same id ", numbered[i].id));
    if (!again) tokens.add(numbered[i].text);
  }
  return tokens;
}

std::vector<AddedToken> read_added(const json& tokenizer) {
  std::vector<AddedToken> added;
  for (const json& each : added_tokens_of(tokenizer))
    added.push_back({.id = field(each, "id").get<int32_t>(),
                     .special = flag_field(each, "special", false),
                     .lstrip = flag_field(each, "lstrip", false),
                     .rstrip = flag_field(each, "rstrip", false),
                     .single_word = flag_field(each, "single_word", false),
                     .normalized = flag_field(each, "normalized", false)});
  return added;
}

std::vector<TokenType> types_of(const Vocabulary& vocabulary) {
  std::vector<TokenType> types(static_cast<size_t>(vocabulary.tokens.size()), TokenType::normal);
  for (int32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) types[id] = TokenType::unused;
    if (vocabulary.byte_fallback && byte_of_token(vocabulary.tokens[id])) types[id] = TokenType::byte;
  }
  for (const AddedToken& token : vocabulary.added)
    types[token.id] = token.special ? TokenType::control : TokenType::user_defined;
  return types;
}

std::vector<bool> mergeable_by(const json& model, const StringTable& tokens) {
  const json& vocab = field(model, "vocab");
  std::vector<bool> mergeable(static_cast<size_t>(tokens.size()), false);
  for (const json& id : vocab) mergeable[id.get<size_t>()] = true;
  return mergeable;
}

// --- model

std::vector<Merge> read_merges(const json& model, const StringTable& tokens) {
  const json& merges = list_field(model, "merges");
  MergeReader reader(tokens, merges.size());
  for (const json& merge : merges) {
    if (merge.is_string()) {
      reader.add(merge.get_ref<const std::string&>());
    } else {
      if (!(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()))
        throw CheckError(cat("the merge ", in_quotes(merge.dump()), " is neither a string nor a pair of them"));
      reader.add(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
    }
  }
  return reader.take();
}

// Options that would change ids, and that no vocabulary here needs.
void check_not_used(const json& model, std::string_view key) {
  const json& value = optional_field(model, key);
  check(value.is_null() || value == "", "the model's ", key, " ", in_quotes(value.dump()), " is not supported");
}

void read_model(const json& model, Vocabulary& vocabulary) {
  const json& type = optional_field(model, "type");
  check(type.is_null() || type == "BPE", "the tokenizer model ", in_quotes(type.dump()), " is not supported");
  check_not_used(model, "continuing_subword_prefix");
  check_not_used(model, "end_of_word_suffix");
  check_not_used(model, "dropout");
  vocabulary.merges = read_merges(model, vocabulary.tokens);
  vocabulary.ignore_merges = flag_field(model, "ignore_merges", false);
  vocabulary.byte_fallback = flag_field(model, "byte_fallback", false);
  vocabulary.fuse_unknown = flag_field(model, "fuse_unk", false);
  if (!optional_field(model, "unk_token").is_null()) {
    vocabulary.unk = vocabulary.tokens.find(text_field(model, "unk_token"));
    check(vocabulary.unk.has_value(), "the unk_token ", in_quotes(text_field(model, "unk_token")),
          " is not in the vocabulary");
  }
}

void read_tokenizer(const json& tokenizer, Vocabulary& vocabulary) {
  vocabulary.tokens = read_tokens(tokenizer);
  vocabulary.added = read_added(tokenizer);
  read_model(field(tokenizer, "model"), vocabulary);
  vocabulary.types = types_of(vocabulary);
  vocabulary.mergeable = mergeable_by(field(tokenizer, "model"), vocabulary.tokens);
  vocabulary.normalizer = normalizer_from_json(optional_field(tokenizer, "normalizer"));
  JsonPreTokenizer pre_tokenizer = pre_tokenizer_from_json(optional_field(tokenizer, "pre_tokenizer"));
  const JsonDecoder decoder = decoder_from_json(optional_field(tokenizer, "decoder"));
  JsonPostProcessor around = post_processor_from_json(optional_field(tokenizer, "post_processor"), vocabulary.tokens);
  check(pre_tokenizer.byte_level == decoder.byte_level || optional_field(tokenizer, "decoder").is_null(),
        "one of pre-tokenizer and decoder is ByteLevel and the other is not");
  vocabulary.kind = pre_tokenizer.byte_level ? VocabularyKind::byte_bpe : VocabularyKind::spm_bpe;
  vocabulary.pre_tokenizer = std::move(pre_tokenizer.steps);
  vocabulary.drops_first_space = decoder.drops_first_space;
  vocabulary.prefix = std::move(around.prefix);
  vocabulary.suffix = std::move(around.suffix);
}

// --- the companions

// "bos_token" and the like: a string, or an object with its content.
std::optional<int32_t> special_id(const json& config, std::string_view key, const StringTable& tokens) {
  const json& value = optional_field(config, key);
  if (value.is_null()) return std::nullopt;
  return tokens.find(value.is_object() ? text_field(value, "content") : text_field(config, key));
}

// A string, or a list of named ones of which "default" is meant.
std::optional<std::string> chat_template_of(const json& config) {
  const json& value = optional_field(config, "chat_template");
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  for (const json& named : list_field(config, "chat_template"))
    if (text_field(named, "name") == "default") return text_field(named, "template");
  return std::nullopt;
}

void read_specials(const json& config, Vocabulary& vocabulary) {
  const auto set = [&](std::optional<int32_t>& id, std::string_view key) {
    if (const auto found = special_id(config, key, vocabulary.tokens)) id = found;
  };
  set(vocabulary.bos, "bos_token");
  set(vocabulary.eos, "eos_token");
  set(vocabulary.pad, "pad_token");
}

std::vector<int32_t> end_ids_of(const json& generation, int32_t tokens) {
  const json& value = optional_field(generation, "eos_token_id");
  std::vector<int32_t> ids;
  for (const json& id : value.is_array() ? value : value.is_null() ? json::array() : json::array({value})) {
    check(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < tokens, "eos_token_id ", id.dump(),
          " is not one of the ", tokens, " tokens");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

Vocabulary vocabulary_from_folder(const std::string& folder) {
  const fs::path path(folder);
  Vocabulary vocabulary;
  with_json(path / "tokenizer.json", [&](const json& tokenizer) { read_tokenizer(tokenizer, vocabulary); });
  with_json_if_there(path / "special_tokens_map.json", [&](const json& map) { read_specials(map, vocabulary); });
  with_json_if_there(path / "tokenizer_config.json", [&](const json& config) {
    read_specials(config, vocabulary);
    vocabulary.chat_template = chat_template_of(config);
  });
  if (const fs::path file = path / "chat_template.jinja"; fs::exists(file))
    errors_about(file.string(), [&] { vocabulary.chat_template = read_file(file); });
  std::vector<int32_t> ends;
  with_json_if_there(path / "generation_config.json",
                     [&](const json& generation) { ends = end_ids_of(generation, vocabulary.tokens.size()); });
  if (vocabulary.eos) ends.push_back(*vocabulary.eos);
  vocabulary.end_ids = end_tokens(vocabulary, std::move(ends));
  return vocabulary;
}

}  // namespace quire::text
