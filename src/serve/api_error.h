// What goes wrong with one call, as its caller is told: a status, a sentence, and the parameter that is to blame.
//
// Handlers throw it before the answer has begun; routes.cc turns it into the error body of the interface that was
// called. Whatever else they throw, CheckError included, is a fault of the server: 500, with its cause in the log. So
// what rooms below say about a caller's input is turned into this where they are asked.
#pragma once
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "http/exchange.h"

namespace quire::serve {

// All that callers hear of a fault of the server: its cause is for the log.
inline constexpr const char* kServerFailed = "the server failed at this request";

enum class Interface : uint8_t { openai, sglang };

class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, const std::string& message, std::string about = {}, std::string error_code = {})
      : std::runtime_error(message), status(http_status), param(std::move(about)), code(std::move(error_code)) {}

  int status;
  std::string param;  // "" when it is about the whole call
  std::string code;   // a word for programs: "model_not_found", "context_length_exceeded"; "" for most
};

nlohmann::ordered_json error_body(const ApiError& error, Interface interface);
http::Response error_response(const ApiError& error, Interface interface);  // 503 carries Retry-After

// Why a call was refused, for the log: what its caller was told, without what the caller had sent. Logs have no
// prompts, and a sentence about a wrong value may quote the beginning of one. "" for what is no refusal, and no error
// body.
std::string refusal_reason(const http::Response& response);

}  // namespace quire::serve
