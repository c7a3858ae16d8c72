// Objects and lists of JSON whose members are described one by one.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "grammar/json_rules.h"
#include "grammar/rules.h"

namespace quire::grammar {

struct JsonMember {
  std::string name;
  Expression value;
  bool required;
};

// The members in their order, those that are not required maybe left out; after them any number of others, with other
// names and values that `other` matches. key: what names of others match, quotes included; only without members.
Expression json_object(Rules& rules, JsonRules& json, std::span<const JsonMember> members,
                       const std::optional<Expression>& other, const std::optional<Expression>& key = {});

// `least` to `most` items: those of `first`, as far as the list goes, and after them others.
Expression json_list(Rules& rules, JsonRules& json, std::span<const Expression> first,
                     const std::optional<Expression>& other, int32_t least, int32_t most);

}  // namespace quire::grammar
