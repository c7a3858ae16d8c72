#include "model/model.h"

#include <gtest/gtest.h>

#include <span>

#include "base/cuda.h"
#include "base/testing/expect_refused.h"
#include "model/testing.h"

namespace quire::model {
namespace {

using testing::GgufWriter;
using testing::TinyFile;
using testing::TinyModel;

class ModelTest : public ::testing::Test {
 protected:
  void expect_bad(const std::function<void(GgufWriter&)>& change, const std::string& part, TinyModel tiny = {}) {
    tiny.change = change;
    const TinyFile file(tiny);
    expect_refused([&] { Model(file.path(), exec_); }, part);
    expect_refused([&] { Model(file.path(), exec_); }, file.path());
  }

  Exec exec_{{.threads = 2}};
};

std::vector<std::byte> zeros(size_t bytes) { return std::vector<std::byte>(bytes); }

TEST_F(ModelTest, HasTheShapesOfItsConfig) {
  const Model model(TinyFile({.layers = 2}).path(), exec_);
  ASSERT_EQ(model.layers().size(), 2u);
  const LayerWeights& layer = model.layers()[0];
  EXPECT_EQ(layer.attention_norm.size(), 64u);
  EXPECT_EQ(layer.qkv.outputs(), (4 + 2 * 2) * 16);
  EXPECT_EQ(layer.qkv.inputs(), 64);
  EXPECT_TRUE(layer.qkv_bias.empty());
  EXPECT_TRUE(layer.q_norm.empty());
  EXPECT_EQ(layer.attention_out.outputs(), 64);
  EXPECT_EQ(layer.gate_and_up.outputs(), 2 * 96);
  EXPECT_EQ(layer.down.inputs(), 96);
  EXPECT_EQ(model.output().outputs(), 320);
  EXPECT_EQ(model.embedding().outputs, 320);
  EXPECT_EQ(model.ropes()[0].inverse_frequency.size(), 8u);
  // Worked by hand: two layers of 64 x (128 + 64 + 3 * 96) and two norms; embedding, output and the last norm.
  EXPECT_EQ(model.parameters(), 2 * (64 * (128 + 64 + 3 * 96) + 2 * 64) + 2 * 320 * 64 + 64);
  EXPECT_GE(model.weight_bytes(), static_cast<size_t>(2 * 64 * (128 + 64 + 3 * 96) + 320 * 64) * sizeof(float));
}

TEST_F(ModelTest, ATiedOutputIsTheEmbedding) {
  const Model model(TinyFile({.layers = 1, .tied = true}).path(), exec_);
  EXPECT_EQ(model.output().outputs(), 320);
  EXPECT_EQ(model.parameters(), 64 * (128 + 64 + 3 * 96) + 2 * 64 + 320 * 64 + 64);
}

TEST_F(ModelTest, BiasesAndNormsOfTheirArchitectures) {
  const Model qwen2(TinyFile({.architecture = "qwen2"}).path(), exec_);
  EXPECT_EQ(qwen2.layers()[2].qkv_bias.size(), static_cast<size_t>((4 + 2 * 2) * 16));
  const Model qwen3(TinyFile({.architecture = "qwen3"}).path(), exec_);
  EXPECT_EQ(qwen3.layers()[2].q_norm.size(), 16u);
  EXPECT_EQ(qwen3.layers()[2].k_norm.size(), 16u);
  const Model olmo2(TinyFile({.architecture = "olmo2"}).path(), exec_);
  EXPECT_EQ(olmo2.layers()[2].q_norm.size(), 64u);
  EXPECT_EQ(olmo2.layers()[2].k_norm.size(), 32u);
  EXPECT_TRUE(olmo2.layers()[2].attention_norm.empty() && olmo2.layers()[2].ffn_norm.empty());
  EXPECT_EQ(olmo2.layers()[2].attention_post_norm.size(), 64u);
  EXPECT_EQ(olmo2.layers()[2].ffn_post_norm.size(), 64u);
}

TEST_F(ModelTest, MoreThanOneTypeInAModel) {
  TinyModel tiny{.type = BlockType::q4_0};
  tiny.change = [](GgufWriter& file) {
    std::mt19937_64 random(3);
    file.tensor("blk.1.attn_v.weight", BlockType::bf16, {32, 64},
                testing::random_weights(BlockType::bf16, 32 * 64, 0.1f, random));
  };
  const Model model(TinyFile(tiny).path(), exec_);
  EXPECT_EQ(model.layers()[0].qkv.forms(), (ops::Forms{.f32 = false, .q8 = true}));
  EXPECT_EQ(model.layers()[1].qkv.forms(), (ops::Forms{.f32 = true, .q8 = true}));
}

// Quantised weights stay so on a GPU, and a tied embedding lies there twice.
TEST_F(ModelTest, WhatAGpuWillHoldIsCountedByMatrixAndForm) {
  struct Kind {
    BlockType type;
    double of_a_weight;  // bytes
  };
  for (const auto& [type, of_a_weight] : {Kind{BlockType::f32, 2}, Kind{BlockType::bf16, 2},
                                          Kind{BlockType::q8_0, 34. / 32}, Kind{BlockType::q4_k, 148. / 256}})
    for (const bool tied : {false, true}) {
      const TinyFile file({.width = 256,
                           .ffn_width = 512,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .vocabulary = 512,
                           .type = type,
                           .tied = tied});
      const WeightFiles files(file.path());
      const FileTensor& embedding = *files.tensors().embedding;
      const double elements = 256 * 512, in_file = static_cast<double>(embedding.data.size());
      const double others = static_cast<double>(files.parameters()) - (tied ? 1 : 2) * elements;
      EXPECT_NEAR(static_cast<double>(device_weight_bytes(files)), in_file + (others + elements) * of_a_weight,
                  0.03 * in_file)
          << to_string(type);
      if (cuda::devices() == 0) continue;
      cuda::Stream stream;
      Exec gpu({.threads = 2, .stream = &stream});
      EXPECT_EQ(device_weight_bytes(files),
                static_cast<int64_t>(Model(file.path(), gpu).weight_bytes() + embedding.data.size()));
    }
}

TEST_F(ModelTest, ProgressRunsFromNothingToAll) {
  std::vector<std::pair<int64_t, int64_t>> reports;
  const Model model(TinyFile({}).path(), exec_,
                    [&](int64_t done, int64_t total) { reports.emplace_back(done, total); });
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports.front().first, 0);
  EXPECT_EQ(reports.back().first, reports.back().second);
  for (size_t i = 1; i < reports.size(); ++i) EXPECT_GT(reports[i].first, reports[i - 1].first);
}

TEST_F(ModelTest, FactorsDivideTheFrequencies) {
  TinyModel tiny;
  const Model plain(TinyFile(tiny).path(), exec_);
  tiny.change = [](GgufWriter& file) {
    const std::vector<float> factors(8, 4.0f);
    const auto bytes = std::as_bytes(std::span(factors));
    file.tensor("rope_freqs.weight", BlockType::f32, {8}, {bytes.begin(), bytes.end()});
  };
  const Model scaled(TinyFile(tiny).path(), exec_);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_FLOAT_EQ(scaled.ropes()[0].inverse_frequency[i] * 4, plain.ropes()[0].inverse_frequency[i]);
}

TEST_F(ModelTest, MissingTensorsAreNamed) {
  for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_v.weight",
                           "blk.2.ffn_down.weight", "blk.2.ffn_gate.weight"})
    expect_bad([&](GgufWriter& file) { file.remove_tensor(name); }, cat("the tensor ", name, " is missing"));
  expect_bad([](GgufWriter& file) { file.remove_tensor("blk.2.attn_k.bias"); }, "blk.2.attn_k.bias is missing",
             {.architecture = "qwen2"});
}

TEST_F(ModelTest, WrongShapesAreNamed) {
  expect_bad(
      [](GgufWriter& file) {
        file.tensor("blk.1.attn_k.weight", BlockType::f32, {64, 32}, zeros(64 * 32 * 4));
      },
      "the tensor blk.1.attn_k.weight is [64, 32], not [32, 64]");
  expect_bad([](GgufWriter& file) { file.tensor("output_norm.weight", BlockType::f32, {65}, zeros(65 * 4)); },
             "the tensor output_norm.weight is [65], not [64]");
  expect_bad(
      [](GgufWriter& file) {
        file.tensor("output.weight", BlockType::f32, {319, 64}, zeros(319 * 64 * 4));
      },
      "the tensor output.weight is [319, 64], not [320, 64]");
}

TEST_F(ModelTest, AQuantisedNormIsRefused) {
  expect_bad([](GgufWriter& file) { file.tensor("output_norm.weight", BlockType::q8_0, {64}, zeros(2 * 34)); },
             "the tensor output_norm.weight is Q8_0");
}

TEST_F(ModelTest, TensorsOfAnotherModelAreRefused) {
  expect_bad([](GgufWriter& file) { file.tensor("blk.0.ffn_up.bias", BlockType::f32, {96}, zeros(96 * 4)); },
             "the tensor \"blk.0.ffn_up.bias\" is not part of such a model");
}

TEST_F(ModelTest, AFileThatIsNotThere) {
  expect_refused([&] { Model("/nonexistent.gguf", exec_); }, "/nonexistent.gguf");
}

}  // namespace
}  // namespace quire::model
