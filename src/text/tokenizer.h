// Text to token ids and back, for one vocabulary. Everything is const and may be called from many threads at once.
//
// Bytes that are no UTF-8 are encoded as the U+FFFD that they stand for (utf8.h), and decoding gives valid UTF-8:
// tokens may hold halves of characters, and what does not add up to one becomes U+FFFD.
//
// Cost     encoding is O(n log n) in the length of the text, whatever the text.
// Errors   CheckError: a vocabulary that does not fit together, when it is made; an id outside the vocabulary.
//          Refused: a text that is too long, or on which a pattern exceeds its limits (regex.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace quire::text {

struct EncodeOptions {
  bool add_special = true;     // what the model wants before and after a text: its bos, say
  bool parse_special = false;  // special tokens spelled out in the text become those tokens
  // Ascending offsets of bytes that are part of no special token, whatever they spell: text of strangers inside of a
  // text whose special tokens count. For valid UTF-8 only: repairing it would move them.
  std::span<const size_t> never_special = {};
};

class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int32_t size() const;
  std::string_view piece(int32_t id) const;  // its bytes in a text: maybe half a character; a special's name
  bool is_special(int32_t id) const;         // control and unknown tokens
  bool is_end(int32_t id) const;             // generation stops here
  bool drops_first_space() const;            // decode() leaves out a space at the very start (utf8_stream.h)
  std::optional<int32_t> find(std::string_view piece) const;  // the token with this piece; specials before others
  const Vocabulary& vocabulary() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace quire::text
