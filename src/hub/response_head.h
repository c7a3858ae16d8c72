// The head of an HTTP/1.1 answer.
//
// Errors   CheckError: what is no head.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::hub {

struct ResponseHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};

  std::optional<std::string> header(std::string_view name) const;  // the first, in any letters
  std::optional<int64_t> content_length() const;                   // throws for what is no length
  bool is_chunked() const;
  bool is_redirect() const;  // and says where to
};

// `text` ends with the empty line.
ResponseHead parse_response_head(std::string_view text);

// "bytes FIRST-LAST/TOTAL": {FIRST, TOTAL}; none: another form.
std::optional<std::pair<int64_t, int64_t>> parse_content_range(std::string_view text);

// Without quotes and without the mark of a weak one.
std::string plain_etag(std::string_view etag);

// Digits and nothing else, within int64.
std::optional<int64_t> parse_size(std::string_view text);

}  // namespace quire::hub
