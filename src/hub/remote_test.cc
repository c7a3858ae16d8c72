#include "hub/remote.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

const std::string kCommit(40, 'a');

std::string listing(const std::string& siblings) {
  return R"({"id": "o/n", "sha": ")" + kCommit + R"(", "siblings": [)" + siblings + "]}";
}

TEST(HubListing, CommitAndFiles) {
  const Listing list = parse_listing(listing(R"({"rfilename": "a.gguf", "size": 3}, {"rfilename": "b/c.json"})"));
  EXPECT_EQ(list.commit, kCommit);
  EXPECT_EQ(list.files, (std::vector<std::string>{"a.gguf", "b/c.json"}));
}

TEST(HubListing, PathsThatLeadElsewhereAreLeftOut) {
  const Listing list = parse_listing(listing(
      R"({"rfilename": "../../x.gguf"}, {"rfilename": "/etc/x.gguf"}, {"rfilename": "a//b"}, {"rfilename": "a\nb"},
         {"rfilename": 7}, {"other": "x"}, 7, {"rfilename": "good"})"));
  EXPECT_EQ(list.files, std::vector<std::string>{"good"});
}

TEST(HubListing, WhatIsNoneIsRefused) {
  expect_refused([] { parse_listing(R"({"sha": "../x", "siblings": []})"); }, "names no commit");
  expect_refused([] { parse_listing(R"({"siblings": []})"); }, "names no commit");
  expect_refused([] { parse_listing(R"({"sha": ")" + kCommit + R"(", "siblings": 7})"); }, "lists no files");
  expect_refused([] { parse_listing("<!doctype html>"); }, "");
  expect_refused([] { parse_listing(""); }, "");
}

}  // namespace
}  // namespace quire::hub
