#include "grammar/call_grammars.h"

#include <gtest/gtest.h>

#include "base/refused.h"
#include "base/testing/expect_refused.h"
#include "grammar/testing.h"

namespace quire::grammar {
namespace {

const Source kOne{Kind::regex, "a"}, kOther{Kind::regex, "b"};

TEST(CallGrammars, ASourceIsCompiledOnce) {
  const Compiler compiler(byte_tokens(), {.cache_bytes = 0});
  CallGrammars grammars(compiler);
  const auto first = grammars.compile(kOne);
  EXPECT_NE(grammars.compile(kOther), first);
  EXPECT_EQ(grammars.compile(kOne), first);
  EXPECT_NE(compiler.compile(kOne), first) << "the compiler has nothing left of it";
}

TEST(CallGrammars, AllOfACallShareTheTime) {
  const Compiler compiler(byte_tokens(), {.call_time = std::chrono::milliseconds(0)});
  CallGrammars grammars(compiler);
  const auto first = grammars.compile(kOne);
  EXPECT_THROW(grammars.compile(kOther), Refused);
  expect_refused([&] { grammars.compile(kOther); }, "the constraints of this call take longer to compile than 0 ms");
  EXPECT_THROW(grammars.unenforced({Kind::json_schema, "true", true}), Refused);
  EXPECT_EQ(grammars.compile(kOne), first) << "that is there already";
  EXPECT_NE(CallGrammars(compiler).compile(kOther), nullptr) << "another call has its own time";
}

TEST(CallGrammars, WhatIsRefusedTakesItsTimeToo) {
  const Compiler compiler(byte_tokens(), {.call_time = std::chrono::milliseconds(0)});
  CallGrammars grammars(compiler);
  expect_refused([&] { grammars.compile({Kind::regex, "("}); }, "the regular expression");
  expect_refused([&] { grammars.compile(kOne); }, "the constraints of this call");
}

}  // namespace
}  // namespace quire::grammar
