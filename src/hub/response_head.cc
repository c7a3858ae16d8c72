#include "hub/response_head.h"

#include <charconv>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::hub {
namespace {

bool same_letters(std::string_view a, std::string_view b) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (small(a[i]) != small(b[i])) return false;
  return true;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The next line, taken away from the text.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  check(end != text.npos, "the answer's head is not whole");
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

int parse_status(std::string_view line) {
  const bool http = line.starts_with("HTTP/1.") && line.size() >= 12 && line[8] == ' ';
  const std::optional<int64_t> status = http ? parse_size(line.substr(9, 3)) : std::nullopt;
  check(status && *status >= 100, "the answer is not HTTP: ", in_quotes(line, 40));
  return static_cast<int>(*status);
}

}  // namespace

std::optional<int64_t> parse_size(std::string_view text) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || text.front() == '-')
    return std::nullopt;
  return size;
}

ResponseHead parse_response_head(std::string_view text) {
  ResponseHead head{.status = parse_status(take_line(text))};
  for (std::string_view line = take_line(text); !line.empty(); line = take_line(text)) {
    const size_t colon = line.find(':');
    check(colon != line.npos && colon > 0, "the answer has a header without a name: ", in_quotes(line, 40));
    head.headers.emplace_back(line.substr(0, colon), without_spaces(line.substr(colon + 1)));
  }
  return head;
}

std::optional<std::string> ResponseHead::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (same_letters(key, name)) return value;
  return std::nullopt;
}

std::optional<int64_t> ResponseHead::content_length() const {
  const std::optional<std::string> text = header("content-length");
  if (!text) return std::nullopt;
  const std::optional<int64_t> length = parse_size(*text);
  check(length.has_value(), "the answer has a length that is none: ", in_quotes(*text, 40));
  return length;
}

bool ResponseHead::is_chunked() const {
  const std::optional<std::string> coding = header("transfer-encoding");
  if (!coding || same_letters(*coding, "identity")) return false;
  check(same_letters(*coding, "chunked"), "the answer is encoded as ", in_quotes(*coding, 40),
        ", which quire does not read");
  return true;
}

bool ResponseHead::is_redirect() const {
  const bool redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  return redirect && header("location");
}

std::optional<std::pair<int64_t, int64_t>> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == text.npos || slash == text.npos || slash < dash) return std::nullopt;
  const auto first = parse_size(text.substr(kUnit.size(), dash - kUnit.size()));
  const auto last = parse_size(text.substr(dash + 1, slash - dash - 1));
  const auto total = parse_size(text.substr(slash + 1));
  if (!first || !last || !total || *last < *first || *last >= *total) return std::nullopt;
  return std::pair{*first, *total};
}

std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

}  // namespace quire::hub
