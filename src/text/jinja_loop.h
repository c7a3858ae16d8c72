// The `loop` of a for statement: walks the elements, one ahead at most, so that the statement's own condition is asked
// as late as Jinja asks it.
#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja_object.h"

namespace quire::text::jinja {

class Loop : public Object {
 public:
  using Condition = std::function<bool(const Value&)>;
  Loop(Meter& meter, std::vector<Value> elements, Condition accepts);

  const Value* next();  // null: there is no more
  void finish();        // the statement has ended: what its condition refers to is gone, and the elements may go

  std::string_view type() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  Value attribute(Machine& machine, std::string_view name) override;

 private:
  std::optional<Value> fetch();
  const std::optional<Value>& ahead();
  Integer length();
  static Value cycle(Machine& machine, const Value& self, const Arguments& arguments);
  static Value changed(Machine& machine, const Value& self, const Arguments& arguments);

  std::vector<Value> elements_;
  Meter::Hold hold_;
  Condition accepts_;  // may be empty
  size_t fetched_ = 0;
  std::optional<Integer> length_;
  Integer index0_ = -1;
  std::optional<Value> before_, current_, ahead_;
  std::optional<Value> last_changed_;
};

}  // namespace quire::text::jinja
