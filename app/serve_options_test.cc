#include "serve_options.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire {
namespace {

TEST(NameOfModel, IsTheFilesWithoutTheTypeOfItsWeights) {
  EXPECT_EQ(name_of_model("/a/SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct");
  EXPECT_EQ(name_of_model("Qwen3-0.6B-Q4_K_M.gguf"), "Qwen3-0.6B");
  EXPECT_EQ(name_of_model("x-f16.gguf"), "x");
  EXPECT_EQ(name_of_model("x.BF16.gguf"), "x");
  EXPECT_EQ(name_of_model("x-IQ4_XS.gguf"), "x");
  EXPECT_EQ(name_of_model("/models/Llama-3.2-1B/"), "Llama-3.2-1B");
  EXPECT_EQ(name_of_model("/models/Llama-3.2-1B"), "Llama-3.2-1B");
  EXPECT_EQ(name_of_model("/hub/models--org--Qwen3-0.6B/snapshots/0a1b2c"), "Qwen3-0.6B");
}

class ApiKeys : public ::testing::Test {
 protected:
  ApiKeys() { unsetenv("QUIRE_API_KEY"); }
  ~ApiKeys() override { unsetenv("QUIRE_API_KEY"); }

  std::string file(const std::string& text) const {
    const std::string path = folder_.path() + "/keys";
    std::ofstream(path) << text;
    return path;
  }

  TemporaryFolder folder_;
  ServeOptions options_;
};

TEST_F(ApiKeys, ComeFromThreePlaces) {
  EXPECT_TRUE(api_keys(options_).empty());
  options_.api_keys = {"one"};
  options_.api_key_file = file("# keys\n\n  two  salt\nthree name=bob\r\n");
  setenv("QUIRE_API_KEY", "four", 1);
  const std::vector<serve::ApiKey> keys = api_keys(options_);
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(keys[0].key + keys[0].salt, "twosalt");
  EXPECT_EQ(keys[1].key + keys[1].salt, "three");
  EXPECT_EQ(keys[2].key + keys[2].salt, "one");
  EXPECT_EQ(keys[3].key + keys[3].salt, "four");
  EXPECT_EQ(keys[0].name + keys[1].name + keys[2].name, "key-1bobkey-3") << "what the log calls them";
}

TEST_F(ApiKeys, OfSeveralEachMayFillHalfOfTheQueue) {
  const engine::EngineOptions engine{.max_running_requests = 256, .max_queued_requests = 1024};
  options_.api_keys = {"one"};
  EXPECT_EQ(most_jobs_of_a_key(options_, engine), 0) << "no limit";
  options_.api_keys = {"one", "two"};
  EXPECT_EQ(most_jobs_of_a_key(options_, engine), 640);
}

TEST_F(ApiKeys, ANameMayStandBeforeTheSaltOrBehindIt) {
  options_.api_key_file = file("one salt name=alice\ntwo name=bob pepper\n");
  const std::vector<serve::ApiKey> keys = api_keys(options_);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].salt + keys[0].name, "saltalice");
  EXPECT_EQ(keys[1].salt + keys[1].name, "pepperbob");
  options_.api_key_file = file("one salt pepper\n");
  expect_refused([&] { api_keys(options_); }, "a line with more than KEY [SALT] [name=NAME]");
}

TEST_F(ApiKeys, OriginsAreHeldToTheirForm) {
  options_.allow_origins = {"https://chat.example", "http://localhost:8080", "*", "null"};
  api_keys(options_);
  for (const char* wrong : {"chat.example", "https://chat.example/", "://x", "https://"}) {
    options_.allow_origins = {wrong};
    expect_refused([&] { api_keys(options_); }, "--allow-origin takes a scheme and a host");
  }
}

TEST_F(ApiKeys, OneThatIsGivenTwiceIsOne) {
  options_.api_keys = {"one", "two", "one"};
  options_.api_key_file = file("one salt\n");
  const std::vector<serve::ApiKey> keys = api_keys(options_);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].key + keys[0].salt, "onesalt");
  EXPECT_EQ(keys[1].key, "two");
}

TEST_F(ApiKeys, AFileThatProtectsNothingIsRefused) {
  options_.api_key_file = file("# none yet\n");
  expect_refused([&] { api_keys(options_); }, "has no keys");
  options_.api_key_file = "/no/such/file";
  expect_refused([&] { api_keys(options_); }, "/no/such/file");
}

TEST_F(ApiKeys, WhatCannotBeAKeyIsRefused) {
  options_.api_keys = {""};
  expect_refused([&] { api_keys(options_); }, "empty");
  options_.api_keys = {"with space"};
  expect_refused([&] { api_keys(options_); }, "a header cannot carry");
}

TEST(HttpOptionsOf, AnAddressIsNeeded) {
  ServeOptions options;
  for (const char* host : {"", " ", "a b", "x\n"}) {
    options.http.host = host;
    expect_refused([&] { http_options(options); }, "is no address");
  }
}

TEST(ServeOptionsOf, SecondsAreNumbers) {
  for (const char* name : {"--run-timeout", "--queue-timeout", "--shutdown-timeout", "--heartbeat-interval"})
    for (const char* bad : {"nan", "-nan", "NAN", "inf", "-1"}) {
      ServeOptions options;
      CLI::App command;
      add_serve_options(command, options);
      EXPECT_THROW(command.parse(cat(name, "=", bad)), CLI::ParseError) << name << bad;
    }
}

TEST(HttpOptionsOf, LeaveRoomForALargestBody) {
  ServeOptions options;
  EXPECT_EQ(http_options(options).limits.peer_body_bytes, size_t{128} << 20);
  EXPECT_EQ(http_options(options).limits.all_body_bytes, size_t{512} << 20);
  options.http.limits.body_bytes = size_t{1} << 30;
  EXPECT_EQ(http_options(options).limits.peer_body_bytes, size_t{1} << 30);
  EXPECT_EQ(http_options(options).limits.all_body_bytes, size_t{4} << 30);
}

TEST(ServiceOptionsOf, HaveAsManyNamesAsTheModelIsGiven) {
  const auto options_for = [](const std::string& arguments) {
    ServeOptions options;
    CLI::App command;
    add_serve_options(command, options);
    command.parse(arguments);
    return service_options(options, "/m/x.gguf");
  };
  const serve::ServiceOptions service =
      options_for("--served-model-name one,two --served-model-name three --heartbeat-interval 0.5");
  EXPECT_EQ(service.served_model_name, "one");
  EXPECT_EQ(service.aliases, (std::vector<std::string>{"two", "three"}));
  EXPECT_EQ(service.heartbeat.count(), 500);
  EXPECT_TRUE(options_for("").aliases.empty());
  ServeOptions nameless;
  nameless.served_model_names = {"one", ""};
  expect_refused([&] { service_options(nameless, "/m/x.gguf"); }, "a name is empty");
}

TEST(ServiceOptionsOf, TakeTheFilesTemplateAndTimes) {
  const TemporaryFolder folder;
  ServeOptions options;
  options.chat_template_file = folder.path() + "/template";
  std::ofstream(options.chat_template_file) << "{{ messages }}";
  options.queue_timeout = 0.0101;
  options.run_timeout = 2;
  options.max_completion_tokens = 100;
  const serve::ServiceOptions service = service_options(options, "/m/x.Q8_0.gguf");
  EXPECT_EQ(service.chat_template, "{{ messages }}");
  EXPECT_EQ(service.queue_time.count(), 11);
  EXPECT_EQ(service.run_time.count(), 2000);
  EXPECT_EQ(service.max_completion_tokens, 100);
  EXPECT_EQ(service.served_model_name, "x");
  EXPECT_EQ(service.model_path, "/m/x.Q8_0.gguf");
}

}  // namespace
}  // namespace quire
