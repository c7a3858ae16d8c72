#include "http/response_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/check.h"

namespace quire::http {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

// "Sun, 06 Nov 1994 08:49:37 GMT", in English whatever the locale.
std::string date_now() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[utc.tm_wday], utc.tm_mday,
                kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return text;
}

void add_header(std::string& head, std::string_view name, std::string_view value) {
  for (const std::string_view text : {name, value})
    check(text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos, "the header ",
          name.substr(0, 64), " of an answer has a line break");
  head.append(name).append(": ").append(value).append("\r\n");
}

std::string in_json(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    const bool plain = c >= 0x20 && c < 0x7f;  // messages of this room are ASCII; what is not came from a client
    quoted += plain ? c : '?';
  }
  return quoted + '"';
}

}  // namespace

bool has_body(int status) { return status != 204 && status != 304; }

std::string response_head(const Response& response, Framing framing, bool keep_alive, bool http_1_0) {
  check(response.status >= 200 && response.status <= 599, "an answer with status ", response.status);
  std::string head = cat("HTTP/1.1 ", response.status, " ", reason(response.status), "\r\n");
  add_header(head, "Date", date_now());
  if (has_body(response.status)) {
    add_header(head, "Content-Type", response.content_type);
    if (framing == Framing::length) add_header(head, "Content-Length", std::to_string(response.body.size()));
    if (framing == Framing::chunks) add_header(head, "Transfer-Encoding", "chunked");
  }
  if (!keep_alive) add_header(head, "Connection", "close");
  if (keep_alive && http_1_0) add_header(head, "Connection", "keep-alive");
  for (const auto& [name, value] : response.headers) add_header(head, name, value);
  return head += "\r\n";
}

std::string chunk(std::string_view part) {
  char size[20];
  const int length = std::snprintf(size, sizeof size, "%zx\r\n", part.size());
  std::string framed;
  framed.reserve(length + part.size() + 2);
  return framed.append(size, length).append(part).append("\r\n");
}

Response error_response(int status, std::string_view message) {
  const std::string_view type = status >= 500 ? "server_error" : "invalid_request_error";
  return {.status = status,
          .body = cat(R"({"error":{"message":)", in_json(message), R"(,"type":")", type,
                      R"(","param":null,"code":null}})")};
}

}  // namespace quire::http
