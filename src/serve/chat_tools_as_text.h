// Tools for models whose chat template knows nothing of them: described in the system message, calls and results
// written out as text, in the form that ToolParser reads as hermes.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace quire::serve {

bool knows_tools(std::string_view chat_template);

// messages as read_messages() gives them; tools: an array, or null. Afterwards no message has tool calls, and none the
// role tool.
void write_tools_as_text(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools);

}  // namespace quire::serve
