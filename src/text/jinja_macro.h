// A macro, or the body of a call block, as a value that can be called.
#pragma once
#include <string>
#include <string_view>

#include "text/jinja_interpreter.h"
#include "text/jinja_show.h"

namespace quire::text::jinja {

class Interpreter::Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroDefinition& definition, Scope* home)
      : interpreter_(interpreter), definition_(definition), home_(home) {}

  std::string_view type() const override { return "Macro"; }
  std::string shown() const override { return cat("<Macro ", repr_of_text(definition_.name), ">"); }
  bool callable() const override { return true; }
  Value attribute(Machine& machine, std::string_view name) override {
    return name == "name" ? machine.text(definition_.name) : Object::attribute(machine, name);
  }
  Value call(Machine& machine, const Arguments& arguments) override;

 private:
  void bind(Machine& machine, Arguments rest);
  void bind_rest(Machine& machine, Arguments& rest);

  Interpreter& interpreter_;
  const MacroDefinition& definition_;
  Scope* home_;
};

}  // namespace quire::text::jinja
