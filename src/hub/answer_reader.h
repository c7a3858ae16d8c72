// An answer as its bytes come: its head, then its body without the framing (a length, chunks, or all until
// the end).
//
// Errors   NetworkError: the connection ends before the answer does. CheckError: what is not HTTP.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "hub/errors.h"
#include "hub/response_head.h"

namespace quire::hub {

using ByteSource = std::function<size_t(std::span<char>)>;  // how many came; 0: the other side has ended
using BodySink = std::function<void(std::string_view)>;

class AnswerReader {
 public:
  explicit AnswerReader(ByteSource source) : source_(std::move(source)), buffer_(size_t{256} << 10, '\0') {}

  ResponseHead read_head();  // of the answer itself: what only says "go on" (1xx) is passed over
  void read_body(const ResponseHead& head, const BodySink& sink);

 private:
  bool fill();  // more into rest_; false: the other side has ended
  std::string_view take(size_t most);
  std::string take_line();
  void pass_on(int64_t bytes, const BodySink& sink);
  void read_chunks(const BodySink& sink);

  const ByteSource source_;
  std::string buffer_;
  std::string_view rest_;  // read from the source, not yet taken
};

}  // namespace quire::hub
