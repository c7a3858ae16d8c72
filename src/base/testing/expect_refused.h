// For tests: a refusal must say what was wrong, so its text is checked along with its type.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "base/check.h"

namespace quire {

template <class Body>
void expect_refused(Body&& body, const std::string& part) {
  try {
    body();
  } catch (const CheckError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "\"" << error.what() << "\" does not contain \"" << part << "\"";
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected a CheckError with \"" << part << "\"";
}

}  // namespace quire
