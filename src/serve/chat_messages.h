// The messages of a chat, as OpenAI's callers write them, in the form that chat templates read.
//
//   role       system, user, assistant, tool; developer becomes system
//   content    a string; parts of text are joined by line breaks; null is an empty text, and stays null beside tool
//              calls; the assistant's may be missing
//   arguments  of earlier tool calls: the object that their string of JSON stands for, as templates expect it; what is
//              no JSON object stays a string
//
// Fields that are not known are ignored by name (fields.h).
//
// Errors   ApiError 400 that names the message and the field: unknown roles, contents other than text.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "serve/ignored.h"

namespace quire::serve {

nlohmann::ordered_json read_messages(const nlohmann::ordered_json& messages, Ignored* ignored);  // null: strictly

}  // namespace quire::serve
