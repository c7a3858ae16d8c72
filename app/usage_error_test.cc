#include "usage_error.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "testing_program.h"

namespace quire {
namespace {

// What is said of these arguments; the hint below it is checked and left out.
std::string said(std::vector<std::string> arguments) {
  TestProgram program;
  std::reverse(arguments.begin(), arguments.end());
  try {
    program.app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    const std::string text = explain_usage(program.app, error);
    const size_t line = text.find('\n');
    EXPECT_EQ(text.find('\n', line + 1), text.size() - 1) << text;
    EXPECT_NE(text.find("--help` lists the ", line), text.npos) << text;
    return text.substr(0, line);
  }
  return "";
}

TEST(UsageError, AMistypedCommandIsGuessed) {
  EXPECT_EQ(said({"serv"}), "quire: there is no command \"serv\"; did you mean serve?");
  EXPECT_EQ(said({"bench", "matmal", "x"}), "quire bench: there is no command \"matmal\"; did you mean matmul?");
  EXPECT_EQ(said({"frobnicate"}), "quire: there is no command \"frobnicate\"; there are serve, bench");
}

TEST(UsageError, AMistypedOptionIsGuessed) {
  EXPECT_EQ(said({"serve", "--prot", "80"}), "quire serve: there is no option --prot; did you mean --port?");
  EXPECT_EQ(said({"serve", "--thread=3"}), "quire serve: there is no option --thread; did you mean --threads?");
  EXPECT_EQ(said({"serve", "--frobnicate"}), "quire serve: there is no option --frobnicate");
}

TEST(UsageError, RangesAndChoicesAreNamed) {
  EXPECT_EQ(said({"serve", "--threads", "4096"}), "quire serve: --threads is from 0 to 1024; not \"4096\"");
  EXPECT_EQ(said({"serve", "-t", "many"}), "quire serve: --threads is from 0 to 1024; not \"many\"");
  EXPECT_EQ(said({"serve", "--kind", "f64"}), "quire serve: --kind is one of bf16, f32; not \"f64\"");
  EXPECT_EQ(said({"serve", "--seconds", "-1"}), "quire serve: --seconds is above 0; not \"-1\"");
  EXPECT_EQ(said({"serve", "--port", "many"}),
            "quire serve: --port takes a whole number that is not negative, not \"many\"");
}

TEST(UsageError, WhatIsMissingOrTooMuchIsNamed) {
  EXPECT_EQ(said({}), "quire: a command is missing: one of serve, bench");
  EXPECT_EQ(said({"bench"}), "quire bench: a command is missing: one of matmul, serving");
  EXPECT_EQ(said({"bench", "matmul"}), "quire bench matmul: FILE is missing");
  EXPECT_EQ(said({"bench", "matmul", "a", "b"}), "quire bench matmul: takes no further argument, and was given \"b\"");
  EXPECT_EQ(said({"serve", "--port"}), "quire serve: --port needs a value");
  EXPECT_EQ(said({"serve", "--port", "1", "--port", "2"}), "quire serve: --port is given more than once");
  EXPECT_EQ(said({"serve", "--json=much"}), "quire serve: --json takes no value");
}

TEST(UsageError, OptionsThatDoNotGoTogetherAreNamed) {
  EXPECT_EQ(said({"serve", "--plain", "--json"}), "quire serve: --json and --plain do not go together");
  EXPECT_EQ(said({"serve", "--pretty"}), "quire serve: --pretty needs --json");
}

TEST(UsageError, OfACommandItself) {
  TestProgram program;
  program.app.parse(std::vector<std::string>{"serve"});
  EXPECT_EQ(explain_usage(program.app, UsageError("give a prompt")),
            "quire serve: give a prompt\n`quire serve --help` lists the options\n");
}

}  // namespace
}  // namespace quire
