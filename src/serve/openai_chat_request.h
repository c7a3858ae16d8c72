// The body of /v1/chat/completions, read: what is to be generated, and how the answer is made of it.
//
// An answer with a constraint has no reasoning: its first token is the constraint's. Templates are told so
// (enable_thinking is false unless the caller says otherwise), and reasoning that a prompt begins is ended there.
//
// Errors   ApiError 400 that names the parameter, also for what the chat template refuses.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serve/openai_request.h"
#include "serve/reasoning_parser.h"
#include "serve/tool_parser.h"

namespace quire::serve {

struct ChatBody {
  CallSettings settings;                // its request has the prompt and the limits
  const ToolForm* tool_form = nullptr;  // that calls come in; null: the text is all content
  std::vector<std::string> tool_names = {};
  int most_calls = 0;
  bool short_call_ids = false;  // nine letters, which Mistral's templates insist on
  Reasoning reasoning = Reasoning::none;
  bool stream_reasoning = true;
};
ChatBody read_chat(const nlohmann::ordered_json& body, const Service& service, const Caller& caller);

}  // namespace quire::serve
