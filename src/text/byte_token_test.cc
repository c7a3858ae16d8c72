#include "text/byte_token.h"

#include <gtest/gtest.h>

namespace quire::text {
namespace {

TEST(ByteAlphabet, AllBytesThereAndBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(bytes_of_letters(letters_of_bytes(all)), all);
}

TEST(ByteAlphabet, KnownLetters) {
  EXPECT_EQ(letters_of_bytes(" hi\n"), "\u0120hi\u010A");
  EXPECT_EQ(letters_of_bytes("\u00E9"), "\u00C3\u00A9");
  EXPECT_EQ(letters_of_bytes(std::string("\0\x7F\xAD", 3)), "\u0100\u0121\u0143");
}

TEST(ByteAlphabet, OtherCharactersAreNotInIt) {
  EXPECT_EQ(bytes_of_letters("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_letters("\u2581"), std::nullopt);
  EXPECT_EQ(bytes_of_letters("\u0144"), std::nullopt);
  EXPECT_EQ(bytes_of_letters("\xFF"), std::nullopt);
}

}  // namespace
}  // namespace quire::text
