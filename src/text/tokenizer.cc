#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_token.h"

namespace quire::text {
namespace {

bool is_special_type(TokenType type) { return type == TokenType::control || type == TokenType::unknown; }

// What a token is in a text. Only tokens of a byte-level vocabulary's own are written in its alphabet; added ones are
// written as they are.
std::string piece_of(const Vocabulary& vocabulary, int32_t id) {
  const std::string_view token = vocabulary.tokens[id];
  if (vocabulary.kind == VocabularyKind::byte_bpe) {
    if (vocabulary.types[id] != TokenType::normal) return std::string(token);
    return bytes_of_letters(token).value_or(std::string(token));
  }
  if (vocabulary.types[id] == TokenType::byte)
    if (const auto byte = byte_of_token(token)) return std::string(1, static_cast<char>(*byte));
  return replaced(token, kVisibleSpace, " ");
}

StringTable pieces_of(const Vocabulary& vocabulary) {
  StringTable pieces;
  const int32_t tokens = vocabulary.tokens.size();
  pieces.reserve(static_cast<size_t>(tokens), static_cast<size_t>(tokens) * 8);
  for (int32_t id = 0; id < tokens; ++id) {
    const std::string piece = piece_of(vocabulary, id);
    vocabulary.types[id] == TokenType::normal ? pieces.add(piece) : pieces.add_unfindable(piece);
  }
  return pieces;
}

AddedTokenFinder finder_of(const Vocabulary& vocabulary, const Normalizer& normalizer, bool normalized) {
  std::vector<AddedTokenFinder::Entry> entries;
  for (const AddedToken& token : vocabulary.added) {
    if (token.normalized != normalized) continue;
    std::string text(vocabulary.tokens[token.id]);
    if (normalized) text = normalizer(text);
    if (!text.empty()) entries.push_back({std::move(text), token});
  }
  return AddedTokenFinder(std::move(entries));
}

// All ids that a vocabulary mentions exist, so nothing needs to look again.
const Vocabulary& checked(const Vocabulary& vocabulary) {
  const int32_t tokens = vocabulary.tokens.size();
  const auto check_id = [&](int32_t id, std::string_view what) {
    check(id >= 0 && id < tokens, "the vocabulary's ", what, " ", id, " is not one of its ", tokens, " tokens");
  };
  check(tokens > 0, "the vocabulary has no tokens");
  check(std::ssize(vocabulary.types) == tokens, "the vocabulary has ", tokens, " tokens and the types of ",
        vocabulary.types.size());
  check(std::ssize(vocabulary.mergeable) == tokens, "the vocabulary has ", tokens, " tokens and says of ",
        vocabulary.mergeable.size(), " whether merges give them");
  check(vocabulary.scores.empty() || std::ssize(vocabulary.scores) == tokens, "the vocabulary has ", tokens,
        " tokens and the scores of ", vocabulary.scores.size());
  for (const auto& id : {vocabulary.bos, vocabulary.eos, vocabulary.eot, vocabulary.unk, vocabulary.pad})
    if (id) check_id(*id, "special token");
  for (const auto* ids : {&vocabulary.prefix, &vocabulary.suffix, &vocabulary.end_ids})
    for (const int32_t id : *ids) check_id(id, "special token");
  for (const AddedToken& token : vocabulary.added) check_id(token.id, "added token");
  for (const Merge& merge : vocabulary.merges)
    for (const int32_t id : {merge.left, merge.right, merge.joined}) check_id(id, "merged token");
  return vocabulary;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(Vocabulary given)
      : vocabulary(std::move(given)),
        pieces(pieces_of(checked(vocabulary))),
        normalizer(vocabulary.normalizer),
        pre_tokenizer(vocabulary.pre_tokenizer),
        finder(finder_of(vocabulary, normalizer, false)),
        normalized_finder(finder_of(vocabulary, normalizer, true)),
        bpe(vocabulary) {}

  const Vocabulary vocabulary;
  const StringTable pieces;  // [tokens]
  const Normalizer normalizer;
  const PreTokenizer pre_tokenizer;
  const AddedTokenFinder finder;
  const AddedTokenFinder normalized_finder;
  const Bpe bpe;

  void encode_plain(std::string text, bool at_start, Bpe::Symbols& symbols, std::vector<int32_t>& ids) const {
    const Pieces cut = pre_tokenizer(std::move(text), at_start);
    for (const TextRange piece : cut.ranges)
      bpe.append_ids(std::string_view(cut.text).substr(piece.begin, piece.end - piece.begin), symbols, ids);
  }

  void encode_between(std::string_view text, bool at_start, bool parse_special, Bpe::Symbols& symbols,
                      std::vector<int32_t>& ids) const {
    const std::string normal = normalizer(text);
    for (const Section& section : normalized_finder.sections(normal, parse_special)) {
      if (section.id)
        ids.push_back(*section.id);
      else
        encode_plain(normal.substr(section.range.begin, section.range.end - section.range.begin),
                     at_start && section.range.begin == 0, symbols, ids);
    }
  }

  void encode(std::string_view utf8, const EncodeOptions& options, std::vector<int32_t>& ids) const {
    Bpe::Symbols symbols;
    for (const Section& section : finder.sections(utf8, options.parse_special, options.never_special)) {
      if (section.id) {
        ids.push_back(*section.id);
        continue;
      }
      // Normalising moves bytes, so where one is never special, nothing between its neighbours is.
      const bool parse_special = options.parse_special && !any_within(options.never_special, section.range);
      encode_between(utf8.substr(section.range.begin, section.range.end - section.range.begin),
                     section.range.begin == 0, parse_special, symbols, ids);
    }
  }
};

Tokenizer::Tokenizer(Vocabulary vocabulary) : parts_(std::make_unique<Parts>(std::move(vocabulary))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> ids;
  if (options.add_special) ids = vocabulary().prefix;
  if (is_utf8(text)) {
    parts_->encode(text, options, ids);
  } else {
    check(options.never_special.empty(), "offsets into a text that is no UTF-8");
    parts_->encode(repaired_utf8(text), options, ids);
  }
  if (options.add_special) ids.insert(ids.end(), vocabulary().suffix.begin(), vocabulary().suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!(skip_special && is_special(id))) bytes += piece(id);
  if (drops_first_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
  return repaired_utf8(bytes);
}

int32_t Tokenizer::size() const { return parts_->pieces.size(); }

std::string_view Tokenizer::piece(int32_t id) const {
  check(id >= 0 && id < size(), "token ", id, " is not one of the vocabulary's ", size());
  return parts_->pieces[id];
}

bool Tokenizer::is_special(int32_t id) const {
  check(id >= 0 && id < size(), "token ", id, " is not one of the vocabulary's ", size());
  return is_special_type(vocabulary().types[id]);
}

bool Tokenizer::is_end(int32_t id) const {
  return std::binary_search(vocabulary().end_ids.begin(), vocabulary().end_ids.end(), id);
}

bool Tokenizer::drops_first_space() const { return vocabulary().drops_first_space; }

std::optional<int32_t> Tokenizer::find(std::string_view piece) const {
  const auto named = vocabulary().tokens.find(piece);
  if (named && vocabulary().types[*named] != TokenType::normal) return named;
  return parts_->pieces.find(piece);
}

const Vocabulary& Tokenizer::vocabulary() const { return parts_->vocabulary; }

}  // namespace quire::text
