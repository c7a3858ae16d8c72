#include "config_file.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"
#include "serve_options.h"

namespace quire {
namespace {

class ConfigFile : public ::testing::Test {
 protected:
  ConfigFile() { add_serve_options(command_, options_); }

  void read(const std::string& text, std::vector<std::string> arguments = {}) {
    const std::string path = folder_.path() + "/quire.toml";
    std::ofstream(path) << text;
    std::reverse(arguments.begin(), arguments.end());
    command_.parse(std::move(arguments));
    apply_config_file(command_, path);
  }

  TemporaryFolder folder_;
  CLI::App command_{"", "serve"};
  ServeOptions options_;
};

TEST_F(ConfigFile, SetsOptionsOfEveryKind) {
  read(R"(# a comment
model-path = "/models/a b"
port = 8000
queue-timeout = 1.5
disable-radix-cache = true
api-key = ["one", "two"]
)");
  EXPECT_EQ(options_.session.model, "/models/a b");
  EXPECT_EQ(options_.http.port, 8000);
  EXPECT_EQ(options_.queue_timeout, 1.5);
  EXPECT_FALSE(session_options(options_).engine.prefix_cache);
  EXPECT_EQ(options_.api_keys, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(options_.http.host, "127.0.0.1");
}

TEST_F(ConfigFile, TheCommandLineGoesBefore) {
  read("port = 8000\nhost = \"0.0.0.0\"\n", {"--port", "9000"});
  EXPECT_EQ(options_.http.port, 9000);
  EXPECT_EQ(options_.http.host, "0.0.0.0");
}

TEST_F(ConfigFile, AFlagMayBeFalse) {
  read("disable-radix-cache = false\n");
  EXPECT_TRUE(session_options(options_).engine.prefix_cache);
}

TEST_F(ConfigFile, WhatCannotBeUsedIsNamed) {
  expect_refused([&] { read("prot = 1\n"); }, "line 1: \"prot\" is no option of quire serve; did you mean port?");
  expect_refused([&] { read("# ours\nport = \"many\"\n"); }, "line 2: --port is from 0 to 65535; not \"many\"");
  expect_refused([&] { read("strict-fields = 5\n"); }, "quire.toml, line 1: --strict-fields is true or false");
  expect_refused([&] { read("strict-fields = [true, true]\n"); }, "line 1: --strict-fields is true or false");
  expect_refused([&] { read("kv-cache-dtype = \"f64\"\n"); }, "line 1: --kv-cache-dtype is one of auto, bf16");
  expect_refused([&] { read("port = 1\nhost = 127.0.0.1\n"); }, "quire.toml, line 2: a value is a text in quotes");
  expect_refused([&] { apply_config_file(command_, "/no/such/file"); }, "/no/such/file");
}

}  // namespace
}  // namespace quire
