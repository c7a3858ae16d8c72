#include "hub/answer_reader.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "base/in_quotes.h"

namespace quire::hub {
namespace {

constexpr size_t kLongestHead = 64 << 10;
constexpr size_t kLongestChunkLine = 4 << 10;

[[noreturn]] void fail_cut(const std::string& what) { throw NetworkError(cat("the connection ended ", what), true); }

int64_t chunk_size(std::string_view line) {
  line = line.substr(0, line.find_first_of("; \t\r"));
  int64_t size = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  check(error == std::errc() && end == line.data() + line.size() && size >= 0,
        "the answer has a chunk without a length: ", in_quotes(line, 40));
  return size;
}

}  // namespace

// Only when all that was read is taken: what is told to sinks stays where it is until then.
bool AnswerReader::fill() {
  const size_t received = source_(std::span<char>(buffer_.data(), buffer_.size()));
  rest_ = std::string_view(buffer_).substr(0, received);
  return received > 0;
}

std::string_view AnswerReader::take(size_t most) {
  const std::string_view taken = rest_.substr(0, most);
  rest_.remove_prefix(taken.size());
  return taken;
}

std::string AnswerReader::take_line() {
  std::string line;
  while (!line.ends_with('\n')) {
    if (rest_.empty() && !fill()) fail_cut("in the middle of a line");
    const size_t end = rest_.find('\n');
    line += take(end == rest_.npos ? rest_.size() : end + 1);
    check(line.size() <= kLongestHead, "the answer has a line without an end");
  }
  return line;
}

ResponseHead AnswerReader::read_head() {
  constexpr int kMostHeads = 8;  // those before the answer's own only say that it will come
  for (int heads = 0; heads < kMostHeads; ++heads) {
    std::string text;
    do {
      if (rest_.empty() && !fill()) fail_cut(text.empty() ? "without an answer" : "in the answer's head");
      text += take_line();
      check(text.size() <= kLongestHead, "the answer's head is longer than ", kLongestHead, " bytes");
    } while (!text.ends_with("\n\r\n") && !text.ends_with("\n\n"));
    ResponseHead head = parse_response_head(text);
    if (head.status >= 200) return head;
  }
  throw CheckError("the answer does not come: the server only says that it will");
}

void AnswerReader::pass_on(int64_t bytes, const BodySink& sink) {
  while (bytes > 0) {
    if (rest_.empty() && !fill()) fail_cut(cat(bytes, " bytes too early"));
    const std::string_view part =
        take(static_cast<size_t>(std::min<int64_t>(bytes, static_cast<int64_t>(rest_.size()))));
    bytes -= static_cast<int64_t>(part.size());
    sink(part);
  }
}

void AnswerReader::read_chunks(const BodySink& sink) {
  while (true) {
    const std::string line = take_line();
    check(line.size() <= kLongestChunkLine, "the answer has a chunk without a length");
    const int64_t size = chunk_size(line.substr(0, line.find_last_not_of("\r\n") + 1));
    if (size == 0) return;  // what follows the last chunk is of no interest, and the connection is not used again
    pass_on(size, sink);
    const std::string end = take_line();
    check(end == "\r\n" || end == "\n", "the answer has a chunk that is longer than it said");
  }
}

void AnswerReader::read_body(const ResponseHead& head, const BodySink& sink) {
  if (head.is_chunked()) return read_chunks(sink);
  if (const auto length = head.content_length()) return pass_on(*length, sink);
  do {
    if (!rest_.empty()) sink(take(rest_.size()));
  } while (fill());
}

}  // namespace quire::hub
