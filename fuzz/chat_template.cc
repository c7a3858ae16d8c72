// A chat template from anywhere, rendered with a conversation from anywhere: what follows the border, if that is JSON.
#include "text/chat_template.h"

#include <nlohmann/json.hpp>
#include <string>

#include "fuzz.h"
#include "input_file.h"

using namespace quire;
using nlohmann::ordered_json;

namespace {

constexpr const char* kConversation = R"({
  "messages": [{"role": "system", "content": " Be brief.\n"},
               {"role": "user", "content": [{"type": "text", "text": "Wie spät ist es?"}]},
               {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
                "function": {"name": "clock", "arguments": {"zone": "CET", "exact": true}}}]},
               {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}],
  "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object",
             "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}}],
  "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": 3, "x": -1.5})";

ordered_json context_of(std::string_view text) {
  static const ordered_json kOrdinary = ordered_json::parse(kConversation);
  const ordered_json given = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return given.is_object() ? given : kOrdinary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const text::ChatTemplate::Limits limits{.source_bytes = 1 << 14,
                                          .steps = 20'000,
                                          .value_bytes = 1 << 16,
                                          .value_items = 1 << 12,
                                          .memory_bytes = 1 << 20,
                                          .output_bytes = 1 << 16};
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), 2);
  fuzz::attempt([&] {
    const text::ChatTemplate made{std::string(parts[0]), limits};
    const std::string rendered = made.render(context_of(parts[1]), limits, std::tm{});
    fuzz::promise(rendered.size() <= limits.output_bytes, "the output has its limit");
  });
  return 0;
}
