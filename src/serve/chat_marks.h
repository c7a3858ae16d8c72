// Keeps special tokens out of what people write. A chat template puts the texts of strangers between its own special
// tokens, and the whole is tokenized at once: a user who spells out <|im_end|> would end the turn.
//
// Where a text that goes into the template spells a special token, or begins or ends as one does, a mark is put before
// it: a character that occurs nowhere else. After rendering, the marks are taken out, and where they stood, nothing is
// special. This holds whatever the template does with the text, as long as it does not write it anew letter by letter.
// Texts without such places are not touched, so they give the tokens that they always gave.
#pragma once
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace quire::serve {

class SpecialSpellings {  // views of the vocabulary, which outlives it
 public:
  explicit SpecialSpellings(const text::Vocabulary& vocabulary);
  // Ascending offsets at which a special token begins, or the end of one whose beginning may stand before the text.
  std::vector<size_t> places(std::string_view text) const;

 private:
  bool spelled_at(std::string_view text) const;  // whole, or up to the end of the text
  bool ends_at(std::string_view text) const;

  std::vector<std::string_view> spellings_;  // sorted
  std::array<bool, 256> begins_{}, ends_{};  // bytes that any of them begins and ends with
  size_t longest_ = 0;
};

class Marks {
 public:
  explicit Marks(const text::Vocabulary& vocabulary) : spellings_(vocabulary) {}

  // Puts marks into all strings and keys of the value. Throws ApiError 400 when every character that could be a mark
  // occurs in it. Once for each value that is rendered together.
  void mark(nlohmann::ordered_json& value);

  struct Text {
    std::string text;                   // without marks
    std::vector<size_t> never_special;  // offsets where marks stood
  };
  Text unmarked(std::string_view rendered) const;

 private:
  bool is_needed(const nlohmann::ordered_json& value) const;
  void choose_mark(const nlohmann::ordered_json& value);
  void mark_all(nlohmann::ordered_json& value) const;
  std::string marked(std::string_view text) const;

  SpecialSpellings spellings_;
  std::string mark_;  // "": nothing is marked
};

}  // namespace quire::serve
