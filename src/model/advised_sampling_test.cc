#include "model/advised_sampling.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"
#include "model/testing.h"

namespace quire::model {
namespace {

using testing::GgufWriter;
using testing::TinyFile;

ops::SamplingParams of_gguf(const std::function<void(GgufWriter&)>& change) {
  const TinyFile file({.change = change});
  return advised_sampling(file.path());
}

class AdvisedSampling : public ::testing::Test {
 protected:
  ops::SamplingParams of_config(const std::string& json) {
    std::ofstream(folder_.path() + "/generation_config.json") << json;
    return advised_sampling(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_F(AdvisedSampling, IsInAFoldersGenerationConfig) {
  const ops::SamplingParams all = of_config(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
      "min_p": 0.05, "repetition_penalty": 1.1, "eos_token_id": [1, 2]})");
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.95f);
  EXPECT_EQ(all.min_p, 0.05f);
  EXPECT_EQ(all.repetition_penalty, 1.1f);
  EXPECT_EQ(of_config(R"({"temperature": null})").temperature, 1);
  std::filesystem::remove(folder_.path() + "/generation_config.json");
  EXPECT_EQ(advised_sampling(folder_.path(), {.temperature = 0.7f}).temperature, 0.7f);
}

TEST_F(AdvisedSampling, IsInAGgufsMetadata) {
  const ops::SamplingParams all = of_gguf([](GgufWriter& file) {
    file.set("general.sampling.temp", 0.6f);
    file.set("general.sampling.top_k", 20u);
    file.set("general.sampling.top_p", 0.95f);
    file.set("general.sampling.min_p", 0.05f);
    file.set("general.sampling.penalty_repeat", 1.1f);
  });
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.95f);
  EXPECT_EQ(all.min_p, 0.05f);
  EXPECT_EQ(all.repetition_penalty, 1.1f);
  EXPECT_EQ(of_gguf({}).temperature, 1);
}

TEST_F(AdvisedSampling, IsKnownOfTheDefaultModel) {
  const TinyFile file({});
  const auto named = [&](const std::string& name) {
    const std::string path = folder_.path() + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::filesystem::copy_file(file.path(), path);
    return advised_sampling(path);
  };
  for (const char* name :
       {"SmolLM2-135M-Instruct.Q4_1.gguf", "models--HuggingFaceTB--SmolLM2-360M-Instruct/0a1b/x.gguf"}) {
    EXPECT_EQ(named(name).temperature, 0.2f) << name;
    EXPECT_EQ(advised_sampling(folder_.path() + "/" + name).top_p, 0.9f) << name;
  }
  EXPECT_EQ(named("SmolLM2-135M.gguf").temperature, 1) << "that one only continues texts";
}

TEST_F(AdvisedSampling, WhatNobodyCanDrawWithIsRefused) {
  expect_refused([&] { of_config(R"({"temperature": -1})"); }, "generation_config.json: ");
  expect_refused([&] { of_config(R"({"temperature": "hot"})"); }, "temperature");
  expect_refused([&] { of_config(R"({"top_k": 1.5})"); }, "top_k");
  expect_refused([&] { of_config("{"); }, "generation_config.json: ");
  expect_refused([] { of_gguf([](GgufWriter& file) { file.set("general.sampling.top_p", 7.0f); }); }, "top_p");
  expect_refused([] { of_gguf([](GgufWriter& file) { file.set("general.sampling.temp", "hot"); }); },
                 "general.sampling.temp");
}

}  // namespace
}  // namespace quire::model
