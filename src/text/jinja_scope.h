// Where names live while a template runs: a chain of scopes, innermost first.
//
// A macro keeps the scopes that it was defined in: they are then handed to the machine and live to the end of the
// rendering. All others go with the statement that opened them.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "text/jinja_tree.h"
#include "text/jinja_value.h"

namespace quire::text::jinja {

class Scope {
 public:
  Scope(Meter& meter, Scope* parent) : parent_(parent), hold_(meter, sizeof(Scope)) {}

  const Value* find(Symbol symbol) const {
    for (const Scope* scope = this; scope; scope = scope->parent_)
      if (const Value* value = scope->find_here(symbol)) return value;
    return nullptr;
  }
  const Value* find_here(Symbol symbol) const {
    for (const auto& [name, value] : values_)
      if (name == symbol) return &value;
    return nullptr;
  }

  void set(Symbol symbol, const Value& value) {
    for (auto& [name, old] : values_)
      if (name == symbol) {
        old = value;
        return;
      }
    hold_.grow(sizeof values_[0]);
    values_.emplace_back(symbol, value);
  }

  // From now on a macro looks in here.
  void keep() {
    for (Scope* scope = this; scope && !scope->kept_; scope = scope->parent_) scope->kept_ = true;
  }
  bool kept() const { return kept_; }

 private:
  Scope* parent_;
  Meter::Hold hold_;
  std::vector<std::pair<Symbol, Value>> values_;
  bool kept_ = false;
};

}  // namespace quire::text::jinja
