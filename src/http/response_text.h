// The text of answers: status lines and headers, the frames of chunks, the bodies of errors.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace quire::http {

enum class Framing { length, chunks, until_close };

// The head of an answer, with the empty line. Errors: a status outside of 200 to 599, or a line break in a header,
// which would begin another header or answer, throws CheckError.
std::string response_head(const Response& response, Framing framing, bool keep_alive, bool http_1_0);

bool has_body(int status);                 // 204 and 304 never have one
std::string chunk(std::string_view part);  // not empty: an empty chunk ends a body
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// An error that arose here, in the form that OpenAI's clients read.
Response error_response(int status, std::string_view message);

}  // namespace quire::http
