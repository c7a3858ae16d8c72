// A template in the Jinja language, as chat templates are: parsed once, rendered with a context as often as wanted.
//
// It means what Jinja2 makes of it in the sandbox that Hugging Face transformers uses for chat templates: blocks
// trimmed, loop controls, `tojson` that escapes only what JSON must, raise_exception, strftime_now, values that cannot
// be changed. syntax.h lists the statements, builtins.h the filters, tests, methods and functions; that is what known
// chat templates use, and another name is refused with its line.
//
// Before   nothing: the source and the context may be anything. Text in the context is data and is never parsed.
// Memory   a rendering holds a copy of what it reads of the context; its limits bound everything that can grow.
// Errors   CheckError, "chat template, line N: ...": wrong syntax or an unknown tag when it is made. RenderError,
//          alike: an unknown function, a wrong type, the template's own raise_exception or a limit when it is rendered.
//
// Const use from several threads is safe.
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "jinja/limits.h"

namespace quire::jinja {

struct Tree;

class RenderError : public CheckError {
 public:
  using CheckError::CheckError;
};

class Template {
 public:
  explicit Template(std::string_view source, const Limits& limits = {});
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // The context is an object, its entries the template's variables; the order of keys is kept. `now` is the time for
  // strftime_now, without it the local time.
  std::string render(const nlohmann::ordered_json& context, const Limits& limits = {},
                     const std::optional<std::tm>& now = {}) const;

 private:
  std::unique_ptr<const Tree> tree_;
};

}  // namespace quire::jinja
