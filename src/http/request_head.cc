#include "http/request_head.h"

#include <algorithm>
#include <utility>

namespace quire::http {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool has_control(std::string_view text) { return std::any_of(text.begin(), text.end(), is_control); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_plain_number(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_word(std::string_view text, std::string_view lower_case) {
  return std::equal(text.begin(), text.end(), lower_case.begin(), lower_case.end(),
                    [](char a, char b) { return lower(a) == b; });
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Whether a list like "keep-alive, Upgrade" has the word.
bool lists(std::string_view list, std::string_view word) {
  while (true) {
    const size_t comma = list.find(',');
    if (same_word(trimmed(list.substr(0, comma)), word)) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

int count(const Headers& headers, std::string_view name) {
  return static_cast<int>(
      std::count_if(headers.begin(), headers.end(), [&](const auto& header) { return header.first == name; }));
}

bool any_lists(const Headers& headers, std::string_view name, std::string_view word) {
  return std::any_of(headers.begin(), headers.end(),
                     [&](const auto& header) { return header.first == name && lists(header.second, word); });
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char letter = lower(c);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// "http://host:1/a?b" > "/a?b", as proxies are asked; a target that begins with its path stays as it is.
std::string_view without_origin(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!same_word(target.substr(0, scheme.size()), scheme)) continue;
    const size_t end = target.find_first_of("/?", scheme.size());
    if (end == std::string_view::npos) return "/";
    return target.substr(end);
  }
  return target;
}

std::optional<Refusal> read_target(std::string_view target, Request& request) {
  if (has_control(target)) return Refusal{400, "the target has control characters"};
  target = without_origin(target);
  const size_t question = target.find('?');
  const std::optional<std::string> path = percent_decoded(target.substr(0, question));
  if (!path) return Refusal{400, "the path has a percent sign without two hexadecimal digits"};
  if (!path->starts_with('/')) return Refusal{400, "the target has no path that begins with a slash"};
  if (has_control(*path)) return Refusal{400, "the path has control characters"};
  request.path = *path;
  request.query = question == std::string_view::npos ? "" : target.substr(question + 1);
  return std::nullopt;
}

std::optional<Refusal> check_values(const Headers& headers) {
  for (const auto& [name, value] : headers)
    if (std::any_of(value.begin(), value.end(), [](char c) { return is_control(c) && c != '\t'; }))
      return Refusal{400, "the header " + name + " has control characters"};
  return std::nullopt;
}

std::optional<Refusal> check_host(const RequestLine& line, const Headers& headers) {
  const int hosts = count(headers, "host");
  if (hosts == 1 || (hosts == 0 && line.version == 10)) return std::nullopt;
  return Refusal{400, hosts == 0 ? "the Host header is missing" : "there is more than one Host header"};
}

// How long the body is must have one answer only.
std::optional<Refusal> check_framing(const RequestLine& line, const Request& request) {
  const int lengths = count(request.headers, "content-length");
  const int encodings = count(request.headers, "transfer-encoding");
  if (lengths > 1) return Refusal{400, "there is more than one Content-Length"};
  if (lengths == 1 && !is_plain_number(request.header("content-length")))
    return Refusal{400, "the Content-Length is not one plain number"};
  if (lengths > 0 && encodings > 0) return Refusal{400, "there are both Content-Length and Transfer-Encoding"};
  if (encodings == 0) return std::nullopt;
  if (line.version == 10) return Refusal{400, "HTTP/1.0 has no Transfer-Encoding"};
  if (encodings > 1) return Refusal{400, "there is more than one Transfer-Encoding"};
  if (!same_word(request.header("transfer-encoding"), "chunked"))
    return Refusal{501, "the Transfer-Encoding is not chunked"};
  return std::nullopt;
}

std::optional<Refusal> check_expectation(const Request& request) {
  const std::string_view expected = request.header("expect");
  if (expected.empty() || same_word(expected, "100-continue")) return std::nullopt;
  return Refusal{417, "the only expectation that can be met is 100-continue"};
}

bool keeps_alive(const RequestLine& line, const Headers& headers) {
  if (any_lists(headers, "connection", "close")) return false;
  return line.version == 11 || any_lists(headers, "connection", "keep-alive");
}

}  // namespace

HeadOutcome read_head(const RequestLine& line, Request& request) {
  std::optional<Refusal> refusal = check_values(request.headers);
  if (!refusal) refusal = check_host(line, request.headers);
  if (!refusal) refusal = check_framing(line, request);
  if (!refusal) refusal = check_expectation(request);
  if (!refusal) refusal = read_target(line.target, request);
  const bool is_head = line.method == "HEAD";
  request.method = is_head ? "GET" : line.method;
  const bool http_1_0 = line.version == 10;
  return {std::move(refusal),
          {.http_1_0 = http_1_0,
           .keep_alive = keeps_alive(line, request.headers),
           .without_body = is_head,
           .expects_continue = !http_1_0 && !request.header("expect").empty()}};
}

}  // namespace quire::http
