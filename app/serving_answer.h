// One answer of a server as a load client needs it: when its tokens came and what it said last. Reads HTTP/1.1 with a
// length, in chunks or until the connection ends, and server-sent events, looking into each event no more than it must.
//
// Errors   CheckError for bytes that are no answer.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::bench {

class AnswerReader {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void feed(std::string_view bytes, Time now);
  void end();  // the connection has ended: so does an answer that has no other end

  bool begun() const { return begun_; }
  bool complete() const { return state_ == State::complete; }
  bool keeps_alive() const { return complete() && keeps_alive_; }
  int status() const { return status_; }
  const std::vector<Time>& token_times() const { return token_times_; }  // of the events that brought text
  const std::string& last_event() const { return last_event_; }          // but for [DONE]
  const std::string& body() const { return body_; }  // of an answer that is no stream; only so much of it

 private:
  enum class State { head, body, chunk_size, chunk, chunk_end, trailer, until_end, complete };

  void take_line(std::string_view line);
  void take_head_line(std::string_view line);
  void choose_framing();
  void take_chunk_size(std::string_view line);
  size_t take_content(std::string_view bytes, Time now);
  void take_content_line(std::string_view line, Time now);

  State state_ = State::head;
  bool begun_ = false, keeps_alive_ = true, chunked_ = false, streams_ = false;
  int status_ = 0;
  std::optional<uint64_t> length_ = {};
  uint64_t left_ = 0;         // of the body, or of the chunk
  std::string line_ = {};     // of the head or of a chunk's frame, as far as it came
  std::string content_ = {};  // of an event, as far as it came
  std::vector<Time> token_times_ = {};
  std::string last_event_ = {}, body_ = {};
};

// What the last event says about the whole request; nothing where it does not.
struct Usage {
  std::optional<int64_t> prompt_tokens, cached_tokens, completion_tokens;
  bool failed = false;  // it is an error
};
Usage usage_of(const std::string& event);

}  // namespace quire::bench
