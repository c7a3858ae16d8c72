#include "text/bpe.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <string>
#include <tuple>

#include "base/check.h"
#include "base/refused.h"
#include "base/utf8.h"
#include "text/byte_token.h"

namespace quire::text {
namespace {

using Symbol = Bpe::Symbol;
using Symbols = Bpe::Symbols;

// Two neighbours and what they merge into. Order is anything comparable; less goes first, and then the lower id.
template <class Order>
struct Join {
  Order order;
  int32_t joined;
};

// Joins by the ranked list.
struct ByRank {
  const MergeTable& merges;
  using Order = int32_t;

  std::optional<Join<Order>> operator()(const Symbol& left, const Symbol& right) const {
    const MergeTable::Join* join = merges.find(left.id, right.id);
    return join == nullptr ? std::nullopt : std::optional(Join<Order>{join->rank, join->joined});
  }
};

// Joins by the scores of the tokens that come out.
template <class Find>
struct ByScore {
  std::string_view piece;
  const std::vector<float>& scores;
  Find find;
  using Order = std::tuple<float, int32_t, int32_t>;

  std::optional<Join<Order>> operator()(const Symbol& left, const Symbol& right) const {
    if (!left.spelled || !right.spelled) return std::nullopt;
    const std::optional<int32_t> joined = find(piece.substr(left.begin, left.length + right.length));
    if (!joined) return std::nullopt;
    const auto characters = [&](const Symbol& symbol) {
      return static_cast<int32_t>(count_characters(piece.substr(symbol.begin, symbol.length)));
    };
    return Join<Order>{{-scores[*joined], -characters(left), -characters(right)}, *joined};
  }
};

template <class Order>
struct Candidate {
  Order order;
  int32_t joined;
  int32_t place;                                  // of the left symbol
  bool operator<(const Candidate& other) const {  // std::priority_queue takes the greatest first
    return std::tie(order, joined, place) > std::tie(other.order, other.joined, other.place);
  }
};

void join_with_next(Symbols& symbols, Symbol& left, int32_t joined) {
  Symbol& right = symbols[left.next];
  left.id = joined;
  left.length += right.length;
  left.next = right.next;
  right.length = 0;
  if (left.next >= 0) symbols[left.next].previous = static_cast<int32_t>(&left - symbols.data());
}

template <class FindJoin>
void merge_all(Symbols& symbols, const FindJoin& find_join) {
  using Order = typename FindJoin::Order;
  std::vector<Candidate<Order>> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate<Order>> candidates({}, std::move(storage));
  const auto consider = [&](int32_t place) {
    const Symbol& left = symbols[place];
    if (left.next < 0) return;
    if (const auto join = find_join(left, symbols[left.next])) candidates.push({join->order, join->joined, place});
  };
  for (int32_t place = 0; place + 1 < std::ssize(symbols); ++place) consider(place);
  while (!candidates.empty()) {
    const Candidate<Order> best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.place];
    if (left.length == 0 || left.next < 0) continue;
    // The neighbours may have changed since. `tokenizers` goes on if they still merge into the same token, and so this.
    const auto join = find_join(left, symbols[left.next]);
    if (!join || join->joined != best.joined) continue;
    join_with_next(symbols, left, best.joined);
    if (left.previous >= 0) consider(left.previous);
    consider(best.place);
  }
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary) : vocabulary_(vocabulary), merges_(vocabulary.merges) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (vocabulary.kind == VocabularyKind::byte_bpe)
      byte_ids_[byte] = find({&text, 1});
    else if (vocabulary.byte_fallback)
      byte_ids_[byte] = vocabulary.tokens.find(byte_token(static_cast<uint8_t>(byte)));
  }
}

std::optional<int32_t> Bpe::find(std::string_view text) const {
  const bool in_letters = vocabulary_.kind == VocabularyKind::byte_bpe;
  const auto id = in_letters ? vocabulary_.tokens.find(letters_of_bytes(text)) : vocabulary_.tokens.find(text);
  return id && vocabulary_.mergeable[*id] ? id : std::nullopt;
}

void Bpe::append_ids(std::string_view piece, Symbols& symbols, std::vector<int32_t>& ids) const {
  if (piece.size() > std::numeric_limits<int32_t>::max())
    throw Refused(cat("a text of ", piece.size(), " bytes is too long to encode"));
  if (vocabulary_.ignore_merges)
    if (const auto whole = find(piece)) {
      ids.push_back(*whole);
      return;
    }
  spell(piece, symbols);
  if (vocabulary_.merges.empty() && !vocabulary_.scores.empty()) {
    const auto find_token = [this](std::string_view text) { return find(text); };
    merge_all(symbols, ByScore<decltype(find_token)>{piece, vocabulary_.scores, find_token});
  } else {
    merge_all(symbols, ByRank{merges_});
  }
  for (const Symbol& symbol : symbols)
    if (symbol.length > 0) ids.push_back(symbol.id);
}

size_t Bpe::character_length(std::string_view text) const {
  return vocabulary_.kind == VocabularyKind::byte_bpe ? 1 : read_utf8(text).bytes;
}

// One symbol for each character that is a token, and what stands for the others.
void Bpe::spell(std::string_view piece, Symbols& symbols) const {
  symbols.clear();
  symbols.reserve(piece.size());
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, character_length(piece.substr(at)));
    const auto begin = static_cast<uint32_t>(at);
    const auto id =
        vocabulary_.kind == VocabularyKind::byte_bpe ? byte_ids_[static_cast<uint8_t>(character[0])] : find(character);
    if (id)
      symbols.push_back({*id, begin, static_cast<uint32_t>(character.size()), true, 0, 0});
    else
      add_unspelled(character, begin, symbols);
    at += character.size();
  }
  for (int32_t place = 0; place < std::ssize(symbols); ++place) {
    symbols[place].previous = place - 1;
    symbols[place].next = place + 1 < std::ssize(symbols) ? place + 1 : -1;
  }
}

// Its bytes, if the vocabulary has tokens for them; else the unknown token; else nothing.
void Bpe::add_unspelled(std::string_view character, uint32_t begin, Symbols& symbols) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::all_of(character.begin(), character.end(), [&](char byte) { return id_of(byte).has_value(); })) {
    for (const char byte : character) symbols.push_back({*id_of(byte), begin++, 1, false, 0, 0});
    return;
  }
  if (!vocabulary_.unk) return;
  const auto length = static_cast<uint32_t>(character.size());
  const bool after_unknown = !symbols.empty() && symbols.back().id == *vocabulary_.unk && !symbols.back().spelled;
  if (vocabulary_.fuse_unknown && after_unknown)
    symbols.back().length += length;
  else
    symbols.push_back({*vocabulary_.unk, begin, length, false, 0, 0});
}

}  // namespace quire::text
