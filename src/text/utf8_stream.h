// Bytes of tokens in, whole characters out: the text of a reply while it is being generated. A token may end inside a
// character; what is not finished yet is held back (at most three bytes) until the next token or the end shows what it
// is. All parts put together are the repaired UTF-8 of all bytes put together, so with the tokens' pieces they are what
// Tokenizer::decode gives for the whole.
#pragma once
#include <string>
#include <string_view>

namespace quire::text {

class Utf8Stream {
 public:
  // drop_first_space: the first character of the text is left out if it is a space, as Tokenizer::decode does for
  // vocabularies that put one before a text (Tokenizer::drops_first_space). Not for what continues a text.
  explicit Utf8Stream(bool drop_first_space = false) : drop_space_(drop_first_space) {}

  std::string push(std::string_view bytes);
  std::string flush();  // the end: what was held back is no character any more

 private:
  std::string held_;
  bool drop_space_;
};

}  // namespace quire::text
