// A chat template: the small program in the Jinja language that a model brings along and that turns messages, tools and
// options into the model's prompt. jinja/template.h says what the language has and what limits are.
//
// Errors   CheckError, "chat template, line N: ...": wrong syntax or an unknown tag when it is made. Refused, alike: an
//          unknown function, a wrong type, the template's own raise_exception or a limit when it is rendered.
//
// Const use from several threads is safe.
#pragma once
#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/refused.h"
#include "jinja/template.h"

namespace quire::text {

class ChatTemplate {
 public:
  using Limits = jinja::Limits;

  explicit ChatTemplate(std::string source, const Limits& limits = {})
      : source_(std::move(source)), template_(source_, limits) {}

  // The context is an object: messages, tools, documents, add_generation_prompt, bos_token, eos_token and whatever else
  // the template reads; the order of its keys is kept. `now` is the time for strftime_now, without it the local time.
  std::string render(const nlohmann::ordered_json& context, const Limits& limits = {},
                     const std::optional<std::tm>& now = {}) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
  jinja::Template template_;
};

}  // namespace quire::text
