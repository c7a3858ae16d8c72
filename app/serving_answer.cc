#include "serving_answer.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::bench {
namespace {

constexpr size_t kMostLine = 64 << 10;
constexpr size_t kMostBody = 4 << 10;  // kept of a refusal

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

uint64_t number_of(std::string_view digits, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  check(error == std::errc() && end == digits.data() + digits.size(), "the server's answer has the length ",
        in_quotes(digits));
  return value;
}

// Whether the event has a field of that name with some text in it.
bool has_text(std::string_view event, std::string_view name) {
  const size_t at = event.find(name);
  if (at == event.npos) return false;
  std::string_view value = event.substr(at + name.size());
  if (value.starts_with(' ')) value.remove_prefix(1);
  return value.size() > 1 && value[0] == '"' && value[1] != '"';
}

}  // namespace

void AnswerReader::feed(std::string_view bytes, Time now) {
  if (!bytes.empty()) begun_ = true;
  while (!bytes.empty() && state_ != State::complete) {
    if (state_ == State::body || state_ == State::chunk || state_ == State::until_end) {
      bytes.remove_prefix(take_content(bytes, now));
      continue;
    }
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    check(line_.size() <= kMostLine, "the server's answer has a line without end");
    if (end == bytes.npos) return;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    take_line(line_);
    line_.clear();
  }
}

void AnswerReader::end() {
  if (state_ == State::until_end) state_ = State::complete;
  keeps_alive_ = false;
}

void AnswerReader::take_line(std::string_view line) {
  switch (state_) {
    case State::head:
      return line.empty() && status_ != 0 ? choose_framing() : take_head_line(line);
    case State::chunk_size:
      return take_chunk_size(line);
    case State::chunk_end:
      state_ = State::chunk_size;
      return;
    default:  // the trailer ends with an empty line
      if (line.empty()) state_ = State::complete;
  }
}

void AnswerReader::take_head_line(std::string_view line) {
  if (status_ == 0) {
    check(line.starts_with("HTTP/1.") && line.size() >= 12, "the server's answer begins with ", in_quotes(line));
    status_ = static_cast<int>(number_of(line.substr(9, 3), 10));
    keeps_alive_ = !line.starts_with("HTTP/1.0");
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
  if (same_name(name, "content-length")) length_ = number_of(value, 10);
  if (same_name(name, "transfer-encoding")) chunked_ = same_name(value, "chunked");
  if (same_name(name, "connection") && same_name(value, "close")) keeps_alive_ = false;
  if (same_name(name, "content-type")) streams_ = same_name(value.substr(0, value.find(';')), "text/event-stream");
}

void AnswerReader::choose_framing() {
  left_ = length_.value_or(0);
  if (status_ == 100) {  // the answer proper follows
    status_ = 0;
  } else if (chunked_) {
    state_ = State::chunk_size;
  } else if (length_) {
    state_ = left_ > 0 ? State::body : State::complete;
  } else {
    keeps_alive_ = false;
    state_ = State::until_end;
  }
}

void AnswerReader::take_chunk_size(std::string_view line) {
  left_ = number_of(trimmed(line.substr(0, line.find(';'))), 16);
  state_ = left_ > 0 ? State::chunk : State::trailer;
}

size_t AnswerReader::take_content(std::string_view bytes, Time now) {
  const size_t taken = state_ == State::until_end ? bytes.size() : std::min<uint64_t>(left_, bytes.size());
  std::string_view content = bytes.substr(0, taken);
  if (!streams_) body_ += content.substr(0, kMostBody - std::min(kMostBody, body_.size()));
  while (streams_ && !content.empty()) {
    const size_t end = content.find('\n');
    content_ += content.substr(0, end);
    if (end == content.npos) break;
    content.remove_prefix(end + 1);
    take_content_line(content_, now);
    content_.clear();
  }
  left_ -= state_ == State::until_end ? 0 : taken;
  if (left_ == 0 && state_ == State::body) state_ = State::complete;
  if (left_ == 0 && state_ == State::chunk) state_ = State::chunk_end;
  return taken;
}

void AnswerReader::take_content_line(std::string_view line, Time now) {
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return;
  const std::string_view event = line.substr(kData.size());
  if (trimmed(event).starts_with("[DONE]")) return;
  if (has_text(event, "\"text\":") || has_text(event, "\"content\":")) token_times_.push_back(now);
  last_event_ = event;
}

Usage usage_of(const std::string& event) {
  const auto parsed = nlohmann::json::parse(event, nullptr, /*allow_exceptions=*/false);
  Usage usage;
  if (!parsed.is_object()) return usage;
  usage.failed = parsed.contains("error");
  const auto read = [](const nlohmann::json& object, const char* name, std::optional<int64_t>& value) {
    if (object.is_object() && object.contains(name) && object[name].is_number_integer()) value = object[name];
  };
  for (const char* place : {"usage", "meta_info"}) {  // OpenAI's, SGLang's
    const auto found = parsed.find(place);
    if (found == parsed.end() || !found->is_object()) continue;
    read(*found, "prompt_tokens", usage.prompt_tokens);
    read(*found, "cached_tokens", usage.cached_tokens);
    read(*found, "completion_tokens", usage.completion_tokens);
    if (found->contains("prompt_tokens_details"))
      read((*found)["prompt_tokens_details"], "cached_tokens", usage.cached_tokens);
  }
  return usage;
}

}  // namespace quire::bench
