#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/expect_refused.h"
#include "model/config.h"
#include "model/testing.h"

namespace quire::model {
namespace {

using testing::GgufWriter;
using testing::TinyFile;
using testing::TinyModel;

ModelConfig config_of(const TinyModel& tiny) {
  const TinyFile file(tiny);
  return config_from_gguf(GgufFile(file.path()));
}

ModelConfig changed(const std::function<void(GgufWriter&)>& change, TinyModel tiny = {}) {
  tiny.change = change;
  return config_of(tiny);
}

void expect_bad_gguf(const std::string& key, GgufWriter::Value value, const std::string& part) {
  SCOPED_TRACE(key);
  expect_refused([&] { changed([&](GgufWriter& file) { file.set(key, value); }); }, part);
}

TEST(ConfigGguf, ReadsEveryCount) {
  const ModelConfig config = config_of({.layers = 2, .width = 96, .ffn_width = 160, .heads = 6, .kv_heads = 3});
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.layers.size(), 2u);
  EXPECT_EQ(config.width, 96);
  EXPECT_EQ(config.ffn_width(), 160);
  EXPECT_EQ(config.attention().heads, 6);
  EXPECT_EQ(config.attention().kv_heads, 3);
  EXPECT_EQ(config.attention().key_dim, 16);
  EXPECT_EQ(config.attention().value_dim, 16);
  EXPECT_EQ(config.attention().scale, 0.25f);
  EXPECT_EQ(config.kv_elements(), 2 * 2 * 3 * 16);
  EXPECT_EQ(config.vocabulary, 320);
  EXPECT_EQ(config.context, 1024);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  ASSERT_EQ(config.ropes.size(), 1u);
  EXPECT_EQ(config.ropes[0].rotary, 16);
  EXPECT_EQ(config.ropes[0].theta, 10000);
  for (const LayerSpec& layer : config.layers) {
    EXPECT_EQ(layer.attention.rope, 0);
    EXPECT_EQ(layer.attention.window, -1);
    EXPECT_TRUE(layer.norm_before && !layer.norm_after);
  }
  EXPECT_EQ(to_string(config),
            "tiny: llama, 2 layers of width 96 and 160, 6 heads of 16 on 3 kv heads, vocabulary 320, context 1024");
}

TEST(ConfigGguf, ArchitecturesDiffer) {
  for (const char* name : {"llama", "mistral", "smollm3"})
    EXPECT_TRUE(config_of({.architecture = name}).ropes[0].adjacent_pairs) << name;
  for (const char* name : {"qwen2", "qwen3"})
    EXPECT_FALSE(config_of({.architecture = name}).ropes[0].adjacent_pairs) << name;
  EXPECT_TRUE(config_of({.architecture = "qwen2"}).attention().qkv_bias);
  EXPECT_FALSE(config_of({.architecture = "qwen3"}).attention().qkv_bias);
  EXPECT_EQ(config_of({.architecture = "qwen3"}).attention().qk_norm, QkNorm::per_head);
  EXPECT_EQ(config_of({.architecture = "llama"}).attention().qk_norm, QkNorm::none);
  EXPECT_TRUE(config_of({.tied = true}).tied_embedding);
  EXPECT_FALSE(config_of({.tied = false}).tied_embedding);
  std::vector<int32_t> ropes;
  for (const LayerSpec& layer : config_of({.architecture = "smollm3", .layers = 5}).layers)
    ropes.push_back(layer.attention.rope);
  EXPECT_EQ(ropes, (std::vector<int32_t>{0, 0, 0, -1, 0}));
}

TEST(ConfigGguf, Olmo2NormsAfterEachHalf) {
  const ModelConfig config = config_of({.architecture = "olmo2"});
  EXPECT_FALSE(config.ropes[0].adjacent_pairs);
  for (const LayerSpec& layer : config.layers) {
    EXPECT_EQ(layer.attention.qk_norm, QkNorm::whole_row);
    EXPECT_TRUE(!layer.norm_before && layer.norm_after);
  }
  expect_refused(
      [] {
        changed([](GgufWriter& file) { file.set("olmo2.attention.sliding_window", 64u); }, {.architecture = "olmo2"});
      },
      "olmo2.attention.sliding_window = 64");
}

TEST(ConfigGguf, GraniteMultiplies) {
  const ModelConfig config = config_of({.architecture = "granite"});
  EXPECT_TRUE(config.ropes[0].adjacent_pairs);
  EXPECT_EQ(config.embedding_scale, 12.0f);
  EXPECT_EQ(config.logits_scale, 0.125f) << "the file's divides";
  for (const LayerSpec& layer : config.layers) {
    EXPECT_EQ(layer.attention.scale, 0.1f);
    EXPECT_EQ(layer.residual_scale, 0.22f);
    EXPECT_EQ(layer.attention.rope, 0);
  }
  const auto granite = [](const char* key, GgufWriter::Value value) {
    return changed([&](GgufWriter& file) { file.set(key, value); }, {.architecture = "granite"});
  };
  EXPECT_EQ(granite("granite.attention.scale", 0.0f).attention().scale, 0.25f) << "off";
  EXPECT_EQ(granite("granite.rope.scaling.finetuned", false).attention().rope, -1);
  expect_refused([&] { granite("granite.residual_scale", -1.0f); }, "granite.residual_scale = -1");
  expect_refused([&] { granite("granite.expert_count", 8u); }, "granite.expert_count = 8");
  expect_refused([&] { granite("granite.logit_scale", 1e-42f); }, "granite.logit_scale = 1.00053e-42 is not between");
  for (const char* key : {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"})
    for (const float value : {std::nanf(""), INFINITY, 1e38f})
      expect_refused([&] { granite(cat("granite.", key).c_str(), value); }, cat("granite.", key, " = "));
}

TEST(ConfigGguf, WhatIsMissingFollowsFromTheRest) {
  const ModelConfig config = changed([](GgufWriter& file) {
    for (const char* key :
         {"attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"})
      file.unset(cat("llama.", key));
  });
  EXPECT_EQ(config.attention().kv_heads, 4);
  EXPECT_EQ(config.attention().key_dim, 16);
  EXPECT_EQ(config.ropes[0].theta, 10000);
}

TEST(ConfigGguf, AWindowCountsTheRowItself) {
  const ModelConfig config = config_of({.window = 8});
  for (const LayerSpec& layer : config.layers) EXPECT_EQ(layer.attention.window, 7);
  EXPECT_NE(to_string(config).find("window of 8 in 3 layers"), std::string::npos);
  for (const char* name : {"qwen2", "qwen3"})
    for (const LayerSpec& layer : config_of({.architecture = name, .window = 8}).layers)
      EXPECT_EQ(layer.attention.window, 7) << name;
}

TEST(ConfigGguf, RopeScaling) {
  EXPECT_EQ(config_of({}).ropes[0].scaling.kind, ops::RopeScaling::Kind::none);
  const ModelConfig linear = changed([](GgufWriter& file) {
    file.set("llama.rope.scaling.type", "linear");
    file.set("llama.rope.scaling.factor", 4.0f);
  });
  EXPECT_EQ(linear.ropes[0].scaling.kind, ops::RopeScaling::Kind::linear);
  EXPECT_EQ(linear.ropes[0].scaling.factor, 4);
  const auto old_style = [](float factor) {
    return changed([&](GgufWriter& file) { file.set("llama.rope.scale_linear", factor); }).ropes[0].scaling;
  };
  EXPECT_EQ(old_style(4).kind, ops::RopeScaling::Kind::linear);
  EXPECT_EQ(old_style(4).factor, 4);
  for (const float off : {0.0f, 1.0f}) EXPECT_EQ(old_style(off).kind, ops::RopeScaling::Kind::none);
  expect_refused([&] { old_style(-4); }, "llama.rope.scale_linear = -4 is not a positive");
  const ModelConfig yarn = changed([](GgufWriter& file) {
    file.set("llama.rope.scaling.type", "yarn");
    file.set("llama.rope.scaling.factor", 8.0f);
    file.set("llama.rope.scaling.original_context_length", 512u);
    file.set("llama.rope.scaling.yarn_beta_fast", 16.0f);
  });
  EXPECT_EQ(yarn.ropes[0].scaling.kind, ops::RopeScaling::Kind::yarn);
  EXPECT_EQ(yarn.ropes[0].scaling.factor, 8);
  EXPECT_EQ(yarn.ropes[0].scaling.original_context, 512);
  EXPECT_EQ(yarn.ropes[0].scaling.beta_fast, 16);
  EXPECT_EQ(yarn.ropes[0].scaling.beta_slow, 1);
  EXPECT_EQ(yarn.ropes[0].scaling.attention_factor, 0);
  expect_refused(
      [] {
        changed([](GgufWriter& file) {
          file.set("llama.rope.scaling.type", "longrope");
          file.set("llama.rope.scaling.factor", 8.0f);
        });
      },
      "llama.rope.scaling.type = \"longrope\"");
}

TEST(ConfigGguf, NumbersArePositiveAndFinite) {
  for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"})
    for (const float value : {-1.0f, std::nanf(""), INFINITY}) expect_bad_gguf(key, value, cat(key, " = "));
  for (const char* key : {"factor", "original_context_length", "yarn_beta_fast", "yarn_beta_slow"})
    for (const float value : {-1.0f, std::nanf(""), INFINITY}) {
      const std::string name = cat("llama.rope.scaling.", key);
      SCOPED_TRACE(name);
      const auto yarn = [&](GgufWriter& file) {
        file.set("llama.rope.scaling.type", "yarn");
        file.set("llama.rope.scaling.factor", 8.0f);
        file.set(name, value);
      };
      expect_refused([&] { changed(yarn); }, cat(name, " = "));
    }
}

TEST(ConfigGguf, HeadsThatFollowFromTheWidthAreChecked) {
  const auto heads = [](uint32_t count) {
    return changed([&](GgufWriter& file) {
      for (const char* key : {"key_length", "value_length"}) file.unset(cat("llama.attention.", key));
      file.set("llama.attention.head_count", count);
      file.set("llama.attention.head_count_kv", 1u);
    });
  };
  EXPECT_EQ(heads(2).attention().key_dim, 32);
  for (const uint32_t count : {3u, 8u, 128u})
    expect_refused([&] { heads(count); },
                   cat("llama.embedding_length = 64 and llama.attention.head_count = ", count, " make no heads"));
}

TEST(ConfigGguf, YarnStretchesTheContextWhereTheFileGivesTheShortOne) {
  const auto context = [](uint32_t length, uint32_t original) {
    return changed([&](GgufWriter& file) {
             file.set("llama.context_length", length);
             file.set("llama.rope.scaling.type", "yarn");
             file.set("llama.rope.scaling.factor", 4.0f);
             if (original) file.set("llama.rope.scaling.original_context_length", original);
           })
        .context;
  };
  EXPECT_EQ(context(512, 512), 2048);
  EXPECT_EQ(context(640, 512), 2048);
  EXPECT_EQ(context(2048, 512), 2048);
  EXPECT_EQ(context(512, 0), 2048);
}

TEST(ConfigGguf, BadCountsAreRefusedByName) {
  expect_bad_gguf("general.architecture", "gpt-j",
                  "\"gpt-j\" is not one of llama, mistral, qwen2, qwen3, smollm3, olmo2, granite");
  expect_bad_gguf("llama.block_count", 0u, "llama.block_count = 0 is not between 1 and 1000");
  expect_bad_gguf("llama.block_count", 1001u, "llama.block_count = 1001");
  expect_bad_gguf("llama.block_count", "three", "llama.block_count");
  expect_bad_gguf("llama.embedding_length", 4000000000u, "llama.embedding_length = 4000000000");
  expect_bad_gguf("llama.embedding_length", 72u, "72 is no multiple of 32");
  expect_bad_gguf("llama.feed_forward_length", 100u, "100 is no multiple of 32");
  expect_bad_gguf("llama.attention.head_count", 5u, "5 heads are no multiple of 2 kv heads");
  expect_bad_gguf("llama.attention.key_length", 32u, "values of 16 dims beside keys of 32 are not computed yet");
  expect_bad_gguf("llama.attention.key_length", 512u, "llama.attention.key_length = 512");
  expect_bad_gguf("llama.attention.value_length", 8u, "llama.attention.value_length = 8 is not between 16 and 256");
  expect_bad_gguf("llama.rope.dimension_count", 18u, "18 rotated dims in heads of 16");
  expect_bad_gguf("llama.attention.layer_norm_rms_epsilon", 0.0f, "layer_norm_rms_epsilon = 0 is not a positive");
  expect_bad_gguf("llama.expert_count", 8u, "llama.expert_count = 8");
  for (const char* key :
       {"llama.attention.scale", "llama.embedding_scale", "llama.residual_scale", "llama.logit_scale"})
    expect_bad_gguf(key, 0.5f, key);
}

TEST(ConfigGguf, SpecsThatNobodyComputesAreRefused) {
  const ModelConfig config = config_of({});
  const auto refused = [&](const std::string& said, const auto& change) {
    ModelConfig changed = config;
    change(changed.layers[1].attention);
    expect_refused([&] { check_config(changed, "file"); }, cat("file: ", said));
  };
  check_config(config, "file");
  refused("softcap is not computed yet", [](AttentionSpec& spec) { spec.softcap = 30; });
  refused("attention sinks are not computed yet", [](AttentionSpec& spec) { spec.sinks = true; });
  refused("latent attention is not computed yet", [](AttentionSpec& spec) { spec.latent_rank = 64; });
  refused("attention of the kind local", [](AttentionSpec& spec) { spec.kind = attn::LayerKind::local; });
  refused("values of 32 dims beside keys of 16", [](AttentionSpec& spec) { spec.value_dim = 32; });
  refused("heads of 0 dims", [](AttentionSpec& spec) { spec.key_dim = spec.value_dim = 0; });
  refused("heads of 512 dims", [](AttentionSpec& spec) { spec.key_dim = spec.value_dim = 512; });
  refused("layers with heads of different shapes", [](AttentionSpec& spec) { spec.kv_heads = 4; });
}

TEST(ConfigGguf, FeaturesThatAreOffPass) {
  EXPECT_EQ(changed([](GgufWriter& file) { file.set("llama.expert_count", 0u); }).layers.size(), 3u);
}

TEST(ConfigGguf, MissingKeysAreNamed) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"})
    expect_refused([&] { changed([&](GgufWriter& file) { file.unset(key); }); }, key);
  expect_refused([] { changed([](GgufWriter& file) { file.remove_tensor("token_embd.weight"); }); },
                 "token_embd.weight");
}

}  // namespace
}  // namespace quire::model
