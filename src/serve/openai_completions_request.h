// The body of /v1/completions, read.
//
// Errors   ApiError 400 and 404 that name the parameter.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serve/openai_prompts.h"
#include "serve/openai_request.h"

namespace quire::serve {

struct CompletionBody {
  CallSettings settings;  // its request has the limits
  std::vector<Prompt> prompts;
  bool echo = false;  // the prompt is the first part of the text
};
CompletionBody read_completion(const nlohmann::ordered_json& body, const Service& service, const Caller& caller);

}  // namespace quire::serve
