#include "model/eagle_head.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"
#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::model {
namespace {

using testing::HeadWriter;
using testing::tiny_head;
using testing::TinyFile;
using testing::TinyHead;
using testing::TinyHeadFile;

class EagleHeadTest : public ::testing::Test {
 protected:
  void expect_bad(const std::function<void(HeadWriter&)>& change, const std::string& part, const TinyHead& tiny = {}) {
    HeadWriter writer = tiny_head(target_, tiny);
    change(writer);
    const TinyHeadFile file(writer);
    expect_refused([&] { EagleHead(file.path(), target_, exec_); }, part);
    expect_refused([&] { EagleHead(file.path(), target_, exec_); }, file.path());
  }

  Exec exec_{{.threads = 2}};
  const TinyFile target_file_{{}};
  const Model target_{target_file_.path(), exec_};
};

TEST_F(EagleHeadTest, HasTheShapesOfItsFile) {
  const TinyHeadFile file(tiny_head(target_, {.feature_layers = {0, 1, 2}, .norm_output = false, .temperature = 0.5}));
  const EagleHead head(file.path(), target_, exec_);
  EXPECT_EQ(head.spec().feature_layers, (std::array<int32_t, 3>{0, 1, 2}));
  EXPECT_EQ(head.spec().draft_vocabulary, 96);
  EXPECT_FALSE(head.spec().norm_output);
  EXPECT_EQ(head.spec().temperature, 0.5f);
  EXPECT_EQ(head.spec().rope.rotary, 32);
  EXPECT_FALSE(head.spec().rope.adjacent_pairs);  // whatever the target has
  EXPECT_EQ(head.qkv_of_embedding().outputs(), (4 + 2 * 2) * 32);
  EXPECT_EQ(head.qkv_of_embedding().inputs(), 64);
  EXPECT_EQ(head.layer().qkv.inputs(), 64);
  EXPECT_EQ(head.features().matrix[2].inputs(), 64);
  EXPECT_EQ(head.output().outputs(), 96);
  EXPECT_EQ(head.embedding().data, target_.embedding().data);
  ASSERT_EQ(head.token_ids().size(), 96u);
  EXPECT_EQ(head.token_ids()[0], 0);
  EXPECT_EQ(head.token_ids()[95], 95 * 320 / 96);
}

TEST_F(EagleHeadTest, BlocksOfEveryTypeThatFits) {
  for (const BlockType type : {BlockType::q8_0, BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1,
                               BlockType::f16, BlockType::bf16}) {
    const TinyHeadFile file(tiny_head(target_, {.type = type}));
    EXPECT_EQ(EagleHead(file.path(), target_, exec_).output().parts()[0].type, type);
  }
  expect_bad([](HeadWriter& w) { w.types["fc.weight"] = "Q4_K"; }, "whole blocks", {.type = BlockType::q8_0});
}

// Matrices in other types are the same target; other norms are another.
TEST_F(EagleHeadTest, IsForOneTarget) {
  const TinyHeadFile file(tiny_head(target_));
  const TinyFile other({.seed = 2});
  expect_refused([&] { EagleHead(file.path(), Model(other.path(), exec_), exec_); }, "is a head for another model");
  EXPECT_NE(Model(other.path(), exec_).fingerprint(), target_.fingerprint());
  const TinyFile rounded({.change = [](testing::GgufWriter& gguf) {
    std::mt19937_64 random(3);
    gguf.tensor("blk.0.attn_q.weight", BlockType::q8_0, {64, 64},
                testing::random_weights(BlockType::q8_0, 64 * 64, 0.1f, random));
  }});
  EXPECT_EQ(Model(rounded.path(), exec_).fingerprint(), target_.fingerprint());
  EXPECT_NO_THROW(EagleHead(file.path(), Model(rounded.path(), exec_), exec_));
}

// docs/speculation.md has the rule: worked here by hand on a norm of four numbers.
TEST_F(EagleHeadTest, TheFingerprintIsFnv1aOfTheNorms) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const Vector& norm) {
    for (size_t i = 0; i < norm.size() * sizeof(float); ++i)
      hash = (hash ^ reinterpret_cast<const uint8_t*>(norm.data())[i]) * 0x100000001b3u;
  };
  for (const LayerWeights& layer : target_.layers()) {
    add(layer.attention_norm);
    add(layer.ffn_norm);
  }
  add(target_.output_norm());
  EXPECT_EQ(target_.fingerprint(), hash);
}

TEST_F(EagleHeadTest, RefusesWhatIsNotItsFormat) {
  expect_bad([](HeadWriter& w) { w.metadata["format"] = "pt"; }, "is not a head");
  expect_bad([](HeadWriter& w) { w.metadata["version"] = "2"; }, "quire reads version 1");
  expect_bad([](HeadWriter& w) { w.metadata["author"] = "me"; }, "__metadata__ has the unknown key \"author\"");
  expect_bad([](HeadWriter& w) { w.config["sink"] = 1; }, "config has the unknown key \"sink\"");
  for (const char* key : {"target_fingerprint", "feature_layers", "alignment", "hidden_size", "intermediate_size",
                          "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
                          "vocab_size", "draft_vocab_size", "fc_norm", "norm_output"})
    expect_bad([&](HeadWriter& w) { w.config.erase(key); }, cat("the key \"", key, "\" is missing"));
  expect_bad([](HeadWriter& w) { w.config["alignment"] = "feature"; }, "alignment = \"feature\" is not \"token\"");
  expect_bad([](HeadWriter& w) { w.config["feature_layers"] = {1, 1, 2}; }, "does not ascend");
  expect_bad([](HeadWriter& w) { w.config["feature_layers"] = {0, 1, 3}; }, "feature_layers = 3 is not between");
  expect_bad([](HeadWriter& w) { w.config["feature_layers"] = {0, 1}; }, "is not an array of 3 layers");
  expect_bad([](HeadWriter& w) { w.config["hidden_size"] = 96; }, "a head of width 96, for a target of width 64");
  expect_bad([](HeadWriter& w) { w.config["vocab_size"] = 96; }, "a head for 96 tokens, and the target has 320");
  expect_bad([](HeadWriter& w) { w.config["temperature"] = 0; }, "is not a positive number");
}

TEST_F(EagleHeadTest, RefusesTensorsThatDoNotFit) {
  expect_bad([](HeadWriter& w) { w.tensors.erase("norm.weight"); }, "the tensor norm.weight is missing");
  expect_bad([](HeadWriter& w) { w.tensors["extra"] = w.tensors["norm.weight"]; }, "\"extra\" is not part of a head");
  expect_bad([](HeadWriter& w) { w.tensors["t2d"] = w.tensors["d2t"]; }, "\"t2d\" is not part of a head");
  expect_bad([](HeadWriter& w) { w.tensors["fc.weight"].dims = {192, 64}; }, "is [192, 64], not [64, 192]");
  expect_bad([](HeadWriter& w) { w.tensors["norm.weight"].dims = {1, 64}; }, "is [1, 64], not [64]");
  expect_bad([](HeadWriter& w) { w.types["fc.weight"] = "Q8_0"; }, "which is no tensor of U8");
  expect_bad([](HeadWriter& w) { w.types["fc.weight"] = "Q9"; }, "unknown type \"Q9\"", {.type = BlockType::q8_0});
  expect_bad([](HeadWriter& w) { w.types.erase("fc.weight"); }, "is U8, where only", {.type = BlockType::q8_0});
  expect_bad([](HeadWriter& w) { w.types["fc.weight"] = "Q4_1"; }, "is [64, 204], not [64, 120]",
             {.type = BlockType::q8_0});
}

TEST_F(EagleHeadTest, RefusesADraftVocabularyThatIsNotTheTargets) {
  const auto with = [](int32_t last, int32_t before) {
    return [=](HeadWriter& w) {
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 94; ++i) ids.push_back(i);
      ids.push_back(before);
      ids.push_back(last);
      w.set_tokens(ids);
    };
  };
  expect_bad(with(320, 100), "d2t[95] = 225 leads out of the vocabulary of 320");
  expect_bad(with(-1, 100), "d2t[95] = -96 leads out");
  expect_bad(with(100, 100), "means token 100, which does not come after token 100");
  expect_bad([](HeadWriter& w) { w.tensors["d2t"].dtype = "F32"; }, "bytes in the file");
}

// --- folders

TEST_F(EagleHeadTest, AFolderOfSpecForgesIsTheSameHead) {
  const TemporaryFolder folder;
  const TinyFile deeper({.layers = 5});
  const Model target(deeper.path(), exec_);
  HeadWriter writer = tiny_head(target, {.feature_layers = {1, 2, 4}});
  writer.tensors["t2d"] = {"BOOL", {320}, std::vector<std::byte>(320)};
  writer.write_folder(folder.path());
  const EagleHead head(folder.path(), target, exec_);
  EXPECT_EQ(head.spec().feature_layers, (std::array<int32_t, 3>{1, 2, 4}));
  EXPECT_TRUE(head.spec().norm_features);
  EXPECT_EQ(head.token_ids()[95], 95 * 320 / 96);
  EXPECT_EQ(head.embedding().data, target.embedding().data);
}

// EAGLE's own heads: a state dict of torch.save, without flags, its features those of the usual layers.
TEST_F(EagleHeadTest, AFolderOfEaglesDraftsTheSame) {
  const TinyFile deeper({.layers = 8});
  const Model target(deeper.path(), exec_);
  for (const BlockType type : {BlockType::f16, BlockType::bf16, BlockType::f32}) {
    HeadWriter writer =
        tiny_head(target, {.feature_layers = {2, 4, 5}, .type = type, .norm_features = false, .norm_output = false});
    writer.tensors["t2d"] = {"BOOL", {320}, std::vector<std::byte>(320)};
    const nlohmann::json usual = {
        {"eagle_config", nullptr}, {"fc_norm", nullptr}, {"norm_output", nullptr}, {"rope_theta", nullptr}};
    const TemporaryFolder folder, torch_folder;
    const EagleHead head(writer.write_folder(folder.path(), usual), target, exec_);
    const EagleHead eagles(writer.write_folder(torch_folder.path(), usual, HeadWriter::Weights::torch), target, exec_);
    EXPECT_EQ(eagles.spec().feature_layers, (std::array<int32_t, 3>{2, 4, 5}));
    EXPECT_EQ(eagles.output().parts()[0].type, type);
    EXPECT_TRUE(std::equal(eagles.token_ids().begin(), eagles.token_ids().end(), head.token_ids().begin(),
                           head.token_ids().end()));
    const std::vector<int32_t> text = testing::random_ids(9, 320, 3);
    std::vector<std::vector<float>> features[2], said[2];
    for (const EagleHead* of : {&head, &eagles}) {
      testing::Requests requests(target, exec_, {.features = &of->features()});
      requests.extend(0, text);
      auto& states = features[of == &eagles];
      states.emplace_back(64);  // slot 0 has zeros
      for (size_t i = 0; i + 1 < text.size(); ++i) {
        const float* row = requests.forward().features().row(static_cast<int64_t>(i));
        states.emplace_back(row, row + 64);
      }
      testing::HeadSlots slots(*of, exec_, PageSize(1), Dtype::f32);
      slots.run(attn::Mode::draft_extend, text, states);
      std::vector<float> state = slots.state(std::ssize(text) - 1);
      for (const int32_t token : {3, 250, 17}) {
        slots.run(attn::Mode::decode, {&token, 1}, {&state, 1});
        said[of == &eagles].push_back(slots.logits(0));
        state = slots.state(0);
      }
    }
    EXPECT_EQ(features[0], features[1]);
    EXPECT_EQ(said[0], said[1]);
  }
}

TEST_F(EagleHeadTest, WhatIsWrongWithATorchFileIsToldByItsName) {
  const TemporaryFolder folder;
  const TinyFile deeper({.layers = 5});
  const Model target(deeper.path(), exec_);
  HeadWriter writer = tiny_head(target, {.feature_layers = {1, 2, 4}});
  const auto refuse = [&](const std::string& part) {
    writer.write_folder(folder.path(), nlohmann::json::object(), HeadWriter::Weights::torch);
    expect_refused([&] { EagleHead(folder.path(), target, exec_); }, folder.path("pytorch_model.bin") + ": " + part);
  };
  writer.tensors["fc.weight"].dims = {192, 64};
  refuse("the tensor fc.weight is [192, 64], not [64, 192]");
  writer.tensors["fc.weight"].dims = {64, 191};
  writer.tensors["norm.weight"].dims = {65};
  refuse("tensor \"norm.weight\": has 65 elements from element 0 of its storage on, which has 64");
  writer.tensors.erase("norm.weight");
  refuse("the tensor fc.weight is [64, 191], not [64, 192]");
  writer.tensors["fc.weight"].dims = {64, 192};
  refuse("the tensor norm.weight is missing");
}

TEST_F(EagleHeadTest, AFolderMayLeaveOutWhatIsUsual) {
  const TemporaryFolder folder;
  const TinyFile deeper({.layers = 8});
  const Model target(deeper.path(), exec_);
  HeadWriter writer = tiny_head(target, {.draft_vocabulary = 320, .norm_features = false});
  writer.tensors.erase("d2t");
  writer.tensors["embed_tokens.weight"] = {"F32", {320, 64}, std::vector<std::byte>(size_t{320} * 64 * 4)};
  writer.write_folder(folder.path(), {{"eagle_config", nullptr}, {"fc_norm", nullptr}, {"norm_output", nullptr}});
  const EagleHead head(folder.path(), target, exec_);
  EXPECT_EQ(head.spec().feature_layers, (std::array<int32_t, 3>{2, 4, 5}));  // 2, n / 2, n - 3
  EXPECT_FALSE(head.spec().norm_output);
  EXPECT_EQ(head.token_ids()[319], 319);
  EXPECT_NE(head.embedding().data, target.embedding().data);
}

TEST_F(EagleHeadTest, RefusesFoldersThatAreNotComputed) {
  const TemporaryFolder folder;
  const TinyFile deeper({.layers = 5});
  const Model target(deeper.path(), exec_);
  const HeadWriter writer = tiny_head(target, {.feature_layers = {1, 2, 4}});
  const auto refuse = [&](const nlohmann::json& changes, const std::string& part) {
    writer.write_folder(folder.path(), changes);
    expect_refused([&] { EagleHead(folder.path(), target, exec_); }, part);
  };
  refuse({{"architectures", {"LlamaForCausalLM"}}}, "is not that of a head");
  refuse({{"norm_before_residual", true}}, "norm_before_residual = true");
  refuse({{"eagle_config", {{"norm_before_fc", true}}}}, "norm_before_fc = true");
  refuse({{"eagle_config", {{"use_aux_hidden_state", false}}}}, "use_aux_hidden_state = false");
  refuse({{"target_hidden_size", 128}}, "target_hidden_size = 128");
  refuse({{"num_hidden_layers", 2}}, "a head of 2 layers");
  refuse({{"attention_bias", true}}, "attention_bias = true");
  refuse({{"eagle_config", nullptr}}, "has no usual features");
  refuse({{"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 4}}}}}, "is not between 0 and 3");
  std::filesystem::remove(folder.path("model.safetensors"));
  expect_refused([&] { EagleHead(folder.path(), target, exec_); },
                 "a head's folder has config.json, and model.safetensors or pytorch_model.bin");
}

}  // namespace
}  // namespace quire::model
