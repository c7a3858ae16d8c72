#include "text/chat_template.h"

namespace quire::text {

std::string ChatTemplate::render(const nlohmann::ordered_json& context, const Limits& limits,
                                 const std::optional<std::tm>& now) const {
  try {
    return template_.render(context, limits, now);
  } catch (const jinja::RenderError& error) {
    throw Refused(error.what());
  }
}

}  // namespace quire::text
