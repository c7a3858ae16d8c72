// Where one JSON value ends, found byte by byte in text that a model is still writing. It looks at brackets and strings
// only: whether what is between them is JSON is the reader's business.
#pragma once

namespace quire::serve {

class JsonSpan {
 public:
  enum class Place {
    inside,  // the byte belongs to the value, which goes on
    last,    // the byte ends the value
    after    // the value ended before this byte: so numbers and words do
  };

  Place push(char byte);  // the first one is no white space
  void reset() { *this = JsonSpan(); }

 private:
  Place in_string(char byte);

  int depth_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false;
};

bool is_json_space(char byte);

}  // namespace quire::serve
