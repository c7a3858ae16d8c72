#include "hub/digest.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

TEST(Digest, Sha256OfLargeFiles) {
  const std::string expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180's "abc"
  auto digest = Digest::for_etag(expected, 3);
  ASSERT_TRUE(digest);
  digest->add("a");
  digest->add("bc");
  EXPECT_EQ(digest->finish(), expected);
}

TEST(Digest, GitBlobsOfSmallFiles) {
  const std::string expected = "ce013625030ba8dba906f756967f9e9ca394464a";  // git hash-object of "hello\n"
  auto digest = Digest::for_etag(expected, 6);
  ASSERT_TRUE(digest);
  digest->add("hello\n");
  EXPECT_EQ(digest->finish(), expected);
}

TEST(Digest, OtherEtagsTellNothing) {
  EXPECT_FALSE(Digest::for_etag("5d41402abc4b2a76b9719d911017c592", 3));
  EXPECT_FALSE(Digest::for_etag("CE013625030BA8DBA906F756967F9E9CA394464A", 3));
  EXPECT_FALSE(Digest::for_etag("", 3));
}

}  // namespace
}  // namespace quire::hub
