// For tests: rules from their bodies, the first of which is the root.
#pragma once
#include <utility>
#include <vector>

#include "grammar/rules.h"

namespace quire::grammar {

inline Rules rules_of(std::vector<Expression> bodies) {
  Rules rules;
  for (Expression& body : bodies) rules.add(std::move(body));
  return rules;
}

}  // namespace quire::grammar
