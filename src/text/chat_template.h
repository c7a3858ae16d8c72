// A chat template: the small program in the Jinja language that a model brings along and that turns messages, tools and
// options into the model's prompt.
//
// It means what Jinja2 makes of it in the sandbox that Hugging Face transformers uses for chat templates: blocks
// trimmed, loop controls, `tojson` that escapes only what JSON must, raise_exception, strftime_now, values that cannot
// be changed. jinja_parser.h, jinja_filters.h, jinja_tests.h, jinja_methods.h and jinja_globals.h list what there is.
//
// Before   nothing: the source and the context may be anything. Text in the context is data and is never parsed.
// Memory   a rendering holds a copy of what it reads of the context; its limits bound everything that can grow.
// Errors   CheckError, "chat template, line N: ...": wrong syntax or an unknown tag when it is made. Refused, alike: an
//          unknown function, a wrong type, the template's own raise_exception or a limit when it is rendered.
//
// Const use from several threads is safe.
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "text/jinja_limits.h"
#include "text/refused.h"

namespace quire::text {

namespace jinja {
struct Tree;
}

class ChatTemplate {
 public:
  using Limits = TemplateLimits;

  explicit ChatTemplate(std::string source, const Limits& limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // The context is an object: messages, tools, documents, add_generation_prompt, bos_token, eos_token and whatever else
  // the template reads; the order of its keys is kept. `now` is the time for strftime_now, without it the local time.
  std::string render(const nlohmann::ordered_json& context, const Limits& limits = {},
                     const std::optional<std::tm>& now = {}) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::unique_ptr<const jinja::Tree> tree_;
};

}  // namespace quire::text
