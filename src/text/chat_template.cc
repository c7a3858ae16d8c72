#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace quire::text {

ChatTemplate::ChatTemplate(std::string source, const Limits& limits)
    : source_(std::move(source)), tree_(std::make_unique<jinja::Tree>(jinja::parse_template(source_, limits))) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& context, const Limits& limits,
                                 const std::optional<std::tm>& now) const {
  return jinja::Interpreter(*tree_, limits, now).run(context);
}

}  // namespace quire::text
