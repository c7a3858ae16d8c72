#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"

namespace quire::text {
namespace {

TEST(Utf8Stream, HoldsBackHalfACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\U0001F600z");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, WhatCannotBecomeACharacterIsReplacedAtOnce) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("x"), "\uFFFDx");
  EXPECT_EQ(stream.push("\xFF"), "\uFFFD");
  EXPECT_EQ(stream.push("\xC3"), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, DropsOneSpaceAtTheStartOnly) {
  Utf8Stream stream(true);
  EXPECT_EQ(stream.push(""), "");
  EXPECT_EQ(stream.push("  a"), " a");
  EXPECT_EQ(stream.push(" b"), " b");
  Utf8Stream other(true);
  EXPECT_EQ(other.push("a"), "a");
  EXPECT_EQ(other.push(" b"), " b");
}

// Pieces that are good, broken and cut characters, and single bytes.
std::vector<std::string> random_pieces(std::mt19937& random) {
  const std::vector<std::string> kinds = {"a",        " ",    "\u00E9", "\u20AC",   "\U0001F600",
                                          "\xF0\x9F", "\x98", "\x80",   "\xE2\x82", "\xC3",
                                          "\xFF",     "\xED", "\xA0",   "\xF4\x90", ""};
  std::vector<std::string> pieces(random() % 12);
  for (std::string& piece : pieces)
    piece = random() % 4 ? kinds[random() % kinds.size()] : std::string(1, random() % 256);
  return pieces;
}

TEST(Utf8Stream, PartsTogetherAreTheRepairedWhole) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    Utf8Stream stream;
    std::string whole, parts;
    for (const std::string& piece : random_pieces(random)) {
      whole += piece;
      const std::string part = stream.push(piece);
      ASSERT_TRUE(is_utf8(part));
      parts += part;
    }
    parts += stream.flush();
    ASSERT_EQ(parts, repaired_utf8(whole)) << "round " << round;
  }
}

}  // namespace
}  // namespace quire::text
