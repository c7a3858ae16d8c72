#include "hub/settings.h"

#include <gtest/gtest.h>

#include <map>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire::hub {
namespace {

Settings with(std::map<std::string, std::string> variables) {
  variables.try_emplace("HOME", "/home/me");
  return settings_from([variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(HubSettings, WhatIsUsual) {
  const Settings settings = with({});
  EXPECT_EQ(to_string(settings.endpoint), "https://huggingface.co");
  EXPECT_EQ(settings.cache, "/home/me/.cache/huggingface/hub");
  EXPECT_EQ(settings.token, "");
  EXPECT_FALSE(settings.offline);
}

TEST(HubSettings, TheCacheFollowsItsVariables) {
  EXPECT_EQ(with({{"XDG_CACHE_HOME", "/c"}}).cache, "/c/huggingface/hub");
  EXPECT_EQ(with({{"HF_HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}}).cache, "/h/hub");
  EXPECT_EQ(with({{"HF_HOME", "~/h"}}).cache, "/home/me/h/hub");
  EXPECT_EQ(with({{"HF_HUB_CACHE", "/x"}, {"HF_HOME", "/h"}}).cache, "/x");
  EXPECT_EQ(with({{"HUGGINGFACE_HUB_CACHE", "/y"}}).cache, "/y");
}

TEST(HubSettings, TheTokenComesFromTheEnvironmentOrAFile) {
  const TemporaryFolder home;
  home.put("token", " hf_file\n");
  home.put("other", "hf_other");
  EXPECT_EQ(with({{"HF_HOME", home.path()}}).token, "hf_file");
  EXPECT_EQ(with({{"HF_HOME", home.path()}, {"HF_TOKEN_PATH", home.path("other")}}).token, "hf_other");
  EXPECT_EQ(with({{"HF_HOME", home.path()}, {"HF_TOKEN", "hf_mine\n"}}).token, "hf_mine");
  expect_refused([] { with({{"HF_TOKEN", "a\r\nEvil: 1"}}); }, "HF_TOKEN");
}

TEST(HubSettings, OfflineAndOthers) {
  for (const char* yes : {"1", "ON", "yes", "True"}) EXPECT_TRUE(with({{"HF_HUB_OFFLINE", yes}}).offline) << yes;
  for (const char* no : {"0", "", "off"}) EXPECT_FALSE(with({{"HF_HUB_OFFLINE", no}}).offline) << no;
  EXPECT_EQ(with({{"HF_ENDPOINT", "http://127.0.0.1:8/mirror/"}}).endpoint.target, "/mirror");
  expect_refused([] { with({{"HF_ENDPOINT", "hub.example"}}); }, "HF_ENDPOINT");
  EXPECT_EQ(with({{"HF_HUB_DOWNLOAD_TIMEOUT", "0.5"}}).silence, std::chrono::milliseconds(500));
  expect_refused([] { with({{"HF_HUB_DOWNLOAD_TIMEOUT", "soon"}}); }, "HF_HUB_DOWNLOAD_TIMEOUT");
}

}  // namespace
}  // namespace quire::hub
