#include "model/quantization.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "base/types.h"
#include "model/model.h"
#include "model/testing.h"

namespace quire::model {
namespace {

using nlohmann::json;
using Scales = QuantizationScheme::Scales;

QuantizationScheme scheme_of(const char* text) {
  return *quantization_of({{"quantization_config", json::parse(text)}}, "config.json");
}

TEST(Quantization, IsReadAsItsWritersWriteIt) {
  EXPECT_FALSE(quantization_of(json::parse("{}"), ""));
  EXPECT_FALSE(quantization_of(json::parse(R"({"quantization_config": null})"), ""));
  const auto by_block = scheme_of(R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "weight_block_size": [128, 256], "modules_to_not_convert": ["a.b"]})");
  EXPECT_EQ(by_block.scales, Scales::block);
  EXPECT_EQ(by_block.block_outputs, 128);
  EXPECT_EQ(by_block.block_inputs, 256);
  EXPECT_EQ(by_block.dense, (std::vector<std::string>{"lm_head", "a.b"}));
  EXPECT_EQ(scheme_of(R"({"quant_method": "fp8", "activation_scheme": "static"})").scales, Scales::tensor);
  const auto by_channel = scheme_of(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"],
                                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
      "ignore": ["lm_head"]})");
  EXPECT_EQ(by_channel.scales, Scales::channel);
  EXPECT_EQ(by_channel.dense, (std::vector<std::string>{"lm_head"}));
  EXPECT_EQ(scheme_of(R"({"quant_method": "modelopt", "quant_algo": "FP8"})").scales, Scales::tensor);
}

TEST(Quantization, BlocksOfCompressedTensorsAre128By128UnlessItSaysOtherwise) {
  const auto with = [](const json& structure) {
    json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}};
    if (!structure.is_discarded()) weights["block_structure"] = structure;
    const json config = {{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", {{"weights", weights}}}}}};
    return scheme_of(config.dump().c_str());
  };
  for (const json& none : {json(json::value_t::discarded), json(nullptr)}) {
    EXPECT_EQ(with(none).scales, Scales::block);
    EXPECT_EQ(with(none).block_outputs, 128);
    EXPECT_EQ(with(none).block_inputs, 128);
  }
  EXPECT_EQ(with(json::parse("[64, 32]")).block_outputs, 64);
  EXPECT_EQ(with(json::parse("[64, 32]")).block_inputs, 32);
  expect_refused([&] { with(json::parse("[64, 0]")); }, "two numbers from 1 to 1048576, not \"[64,0]\"");
}

TEST(Quantization, ARefusalIsAShortLine) {
  const json many(1000, 1);
  for (const char* key : {"weight_block_size", "ignored_layers"}) {
    const json value = std::string_view(key) == "ignored_layers" ? json::array({many}) : many;
    try {
      scheme_of(json{{"quant_method", "fp8"}, {key, value}}.dump().c_str());
      ADD_FAILURE() << key;
    } catch (const CheckError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 300u) << key;
    }
  }
}

TEST(Quantization, WhatIsNotComputedIsRefusedByName) {
  const auto refused = [](const char* text, const char* why) { expect_refused([&] { scheme_of(text); }, why); };
  refused(R"({"quant_method": "gptq", "bits": 4})", "config.json: quantization_config: quant_method = \"gptq\"");
  refused(R"({"bits": 4})", "quant_method = \"\"");
  refused(R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt = \"e5m2\"");
  refused(R"({"quant_method": "fp8", "weight_block_size": [128]})",
          "a block of weights is two numbers from 1 to 1048576, not \"[128]\"");
  refused(R"({"quant_method": "fp8", "weight_block_size": [0, 128]})", "two numbers");
  refused(R"({"quant_method": "fp8", "modules_to_not_convert": "lm_head"})", "is not a list");
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "format = \"pack-quantized\"");
  refused(R"({"quant_method": "compressed-tensors", "config_groups": {}})", "config_groups is not one group");
  refused(R"({"quant_method": "compressed-tensors",
              "config_groups": {"g": {"weights": {"type": "int", "num_bits": 8, "strategy": "channel"}}}})",
          "weights.type = \"int\"");
  refused(R"({"quant_method": "compressed-tensors",
              "config_groups": {"g": {"weights": {"type": "float", "num_bits": 8, "strategy": "group"}}}})",
          "weights.strategy = \"group\"");
  refused(R"({"quant_method": "compressed-tensors",
              "config_groups": {"g": {"weights": {"type": "float", "num_bits": 4, "strategy": "channel"}}}})",
          "num_bits");
  refused(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "quant_algo = \"NVFP4\"");
  refused(R"({"quant_method": "gguf", "type": "IQ2_XXS"})", "type = \"IQ2_XXS\"");
  expect_refused([] { quantization_of({{"quantization_config", 8}}, "x"); }, "is not an object");
}

TEST(Quantization, SaysWhichMatricesAreQuantised) {
  const auto fp8 = scheme_of(R"({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.up_proj"],
                                 "ignored_layers": ["re:.*k_proj", "re:("]})");
  EXPECT_EQ(fp8.type_of("model.layers.1.mlp.up_proj.weight", 2), BlockType::f8_e4m3);
  EXPECT_EQ(fp8.type_of("model.layers.0.mlp.up_proj.weight", 2), BlockType::bf16);
  EXPECT_EQ(fp8.type_of("model.layers.1.self_attn.k_proj.weight", 2), BlockType::bf16);
  EXPECT_EQ(fp8.type_of("lm_head.weight", 2), BlockType::bf16);
  EXPECT_EQ(fp8.type_of("model.embed_tokens.weight", 2), BlockType::bf16);
  const auto mixed = scheme_of(R"({"quant_method": "gguf", "type": "Q4_K_M"})");
  EXPECT_EQ(mixed.type_of("lm_head.weight", 32), BlockType::q6_k);
  EXPECT_EQ(mixed.type_of("model.layers.0.mlp.down_proj.weight", 32), BlockType::q6_k);
  EXPECT_EQ(mixed.type_of("model.layers.5.mlp.down_proj.weight", 32), BlockType::q4_k);
  EXPECT_EQ(mixed.type_of("model.layers.6.self_attn.v_proj.weight", 32), BlockType::q6_k);
  EXPECT_EQ(mixed.type_of("model.layers.0.self_attn.q_proj.weight", 32), BlockType::q4_k);
  EXPECT_EQ(scheme_of(R"({"quant_method": "gguf", "type": "Q8_0"})").type_of("lm_head.weight", 2), BlockType::q8_0);
}

// --- whole models

constexpr int64_t kFp8Width = 128, kFp8FfnWidth = 256, kFp8Vocabulary = 320;

json tiny_config() {
  return {{"model_type", "llama"},          {"num_hidden_layers", 2},
          {"hidden_size", kFp8Width},       {"intermediate_size", kFp8FfnWidth},
          {"num_attention_heads", 4},       {"num_key_value_heads", 2},
          {"vocab_size", kFp8Vocabulary},   {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 512}, {"tie_word_embeddings", true}};
}

// A folder whose matrices are F8_E4M3 times scales, or BF16 of the same numbers, which are exact there.
class TinyFolder {
 public:
  TinyFolder(const std::string& name, const json& config)
      : path_(std::filesystem::temp_directory_path() / cat("quire_fp8_", getpid(), "_", name)), config_(config) {
    std::filesystem::create_directories(path_);
  }
  ~TinyFolder() { std::filesystem::remove_all(path_); }

  void add(const std::string& name, const char* dtype, std::vector<int64_t> dims, const void* data, size_t bytes) {
    header_[name] = {
        {"dtype", dtype}, {"shape", std::move(dims)}, {"data_offsets", {body_.size(), body_.size() + bytes}}};
    body_.append(static_cast<const char*>(data), bytes);
  }
  void add_bf16(const std::string& name, const std::vector<int64_t>& dims, const std::vector<float>& numbers) {
    std::vector<uint16_t> bits;
    for (const float x : numbers) bits.push_back(to_bf16(x).bits);
    add(name, "BF16", dims, bits.data(), bits.size() * sizeof(uint16_t));
  }
  // Its first bytes.
  void overwrite(const std::string& name, std::string_view bytes) {
    body_.replace(header_.at(name)["data_offsets"][0].get<size_t>(), bytes.size(), bytes);
  }
  std::string write() {
    std::ofstream(path_ / "config.json") << config_.dump();
    const std::string text = header_.dump();
    const uint64_t length = text.size();
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << text << body_;
    return path_.string();
  }

 private:
  std::filesystem::path path_;
  json config_, header_ = json::object();
  std::string body_;
};

struct ScaleKind {
  const char* name;
  json config;
  const char* suffix;
  int64_t block_outputs, block_inputs;  // 0: all
};

std::vector<float> random_fp8_values(int64_t count, uint32_t seed, float around, float spread) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = around + spread * (static_cast<float>(random() % 2001) / 1000 - 1);
  return values;
}

// Adds a matrix to both folders.
void add_matrix(TinyFolder& narrow, TinyFolder& wide, const std::string& name, int64_t outputs, int64_t inputs,
                const ScaleKind& kind, uint32_t seed) {
  constexpr float kScales[] = {0.0625f, 0.09375f, 0.046875f};  // few bits: a product has no more than bf16
  const int64_t rows = kind.block_outputs ? kind.block_outputs : outputs;
  const int64_t columns = kind.block_inputs ? kind.block_inputs : inputs;
  const int64_t down = (outputs + rows - 1) / rows, across = (inputs + columns - 1) / columns;
  std::vector<float> scales, values = random_fp8_values(outputs * inputs, seed, 0, 3);
  for (int64_t i = 0; i < down * across; ++i) scales.push_back(kScales[(seed + i) % 3]);
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    const f8e4m3 number = to_f8e4m3(values[i]);
    bytes.push_back(number.bits);
    values[i] = to_float(number) * scales[i / inputs / rows * across + i % inputs / columns];
  }
  narrow.add(name, "F8_E4M3", {outputs, inputs}, bytes.data(), bytes.size());
  std::vector<int64_t> dims = {down, across};
  if (scales.size() == 1) dims = {};
  narrow.add(name + kind.suffix, "F32", dims, scales.data(), scales.size() * sizeof(float));
  const float unused = 0.5f;
  narrow.add(name.substr(0, name.size() - 6) + "input_scale", "F32", {}, &unused, sizeof(unused));
  wide.add_bf16(name, {outputs, inputs}, values);
}

struct TinyMatrix {
  const char* name;
  int64_t outputs, inputs;
};
constexpr TinyMatrix kTinyMatrices[] = {
    {"self_attn.q_proj", kFp8Width, kFp8Width},     {"self_attn.k_proj", kFp8Width / 2, kFp8Width},
    {"self_attn.v_proj", kFp8Width / 2, kFp8Width}, {"self_attn.o_proj", kFp8Width, kFp8Width},
    {"mlp.gate_proj", kFp8FfnWidth, kFp8Width},     {"mlp.up_proj", kFp8FfnWidth, kFp8Width},
    {"mlp.down_proj", kFp8Width, kFp8FfnWidth}};

void add_model(TinyFolder& narrow, TinyFolder& wide, const ScaleKind& kind) {
  uint32_t seed = 1;
  const auto vector = [&](const std::string& name) {
    const std::vector<float> values = random_fp8_values(kFp8Width, ++seed, 1, 0.2f);
    for (TinyFolder* folder : {&narrow, &wide}) folder->add_bf16(name, {kFp8Width}, values);
  };
  const std::vector<float> embedding = random_fp8_values(kFp8Vocabulary * kFp8Width, ++seed, 0, 0.2f);
  for (TinyFolder* folder : {&narrow, &wide})
    folder->add_bf16("model.embed_tokens.weight", {kFp8Vocabulary, kFp8Width}, embedding);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = cat("model.layers.", layer, ".");
    vector(prefix + "input_layernorm.weight");
    vector(prefix + "post_attention_layernorm.weight");
    for (const TinyMatrix& matrix : kTinyMatrices)
      add_matrix(narrow, wide, cat(prefix, matrix.name, ".weight"), matrix.outputs, matrix.inputs, kind, ++seed);
  }
  vector("model.norm.weight");
}

const ScaleKind kKinds[] = {
    {"tensor", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, "_scale", 0, 0},
    {"channel", json::parse(R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
                                {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})"),
     "_scale", 1, 0},
    {"block", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}, "_scale_inv", 128, 128}};

std::vector<std::vector<float>> fp8_logits_of(const std::string& path, Exec& exec) {
  const Model model(path, exec);
  testing::Requests requests(model, exec, {});
  return requests.extend(0, testing::random_ids(20, kFp8Vocabulary, 1));
}

TEST(Fp8Model, ComputesWhatTheSameNumbersInBf16Do) {
  Exec exec({.threads = 2});
  for (const ScaleKind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    json config = tiny_config();
    TinyFolder wide("wide", config);
    config["quantization_config"] = kind.config;
    TinyFolder narrow("narrow", config);
    add_model(narrow, wide, kind);
    const auto expected = fp8_logits_of(wide.write(), exec);
    EXPECT_EQ(fp8_logits_of(narrow.write(), exec), expected);
    if (quire::cuda::devices() == 0) continue;
    quire::cuda::Stream stream;
    Exec gpu({.threads = 2, .stream = &stream});
    const auto wide_on_gpu = fp8_logits_of(wide.write(), gpu), narrow_on_gpu = fp8_logits_of(narrow.write(), gpu);
    constexpr float kTolerance = 0.05f;  // logits of about 1, of sums in another order, rounded to bf16 on their way
    for (size_t row = 0; row < expected.size(); ++row)
      for (size_t i = 0; i < expected[row].size(); ++i)
        ASSERT_NEAR(narrow_on_gpu[row][i], wide_on_gpu[row][i], kTolerance) << row << ", " << i;
  }
}

TEST(Fp8Model, SaysWhatIsWrongWithItsScales) {
  Exec exec({.threads = 2});
  json config = tiny_config();
  config["quantization_config"] = kKinds[0].config;
  TinyFolder wide("wide", config), odd("odd", config), none("none", config);
  ScaleKind kind = kKinds[0];
  kind.block_inputs = 64;
  add_model(odd, wide, kind);
  expect_refused([&] { Model(odd.write(), exec); },
                 "q_proj.weight_scale is [1, 2], which is neither a number, nor one "
                 "for each of 128 outputs, nor [1, 1]");
  kind = kKinds[0];
  kind.suffix = "_size";
  add_model(none, wide, kind);
  expect_refused([&] { Model(none.write(), exec); },
                 "q_proj.weight is F8_E4M3, and model.layers.0.self_attn.q_proj.weight_scale is missing");
}

// Else every request would fail for it.
TEST(Fp8Model, NumbersThatAreNoneAreRefusedAtLoad) {
  Exec exec({.threads = 2});
  json config = tiny_config();
  config["quantization_config"] = kKinds[1].config;
  const auto refused = [&](std::string_view suffix, std::string_view bytes, const char* why) {
    TinyFolder wide("wide", tiny_config()), odd("odd", config);
    add_model(odd, wide, kKinds[1]);
    odd.overwrite(cat("model.layers.1.mlp.up_proj.weight", suffix), bytes);
    expect_refused([&] { Model(odd.write(), exec); }, why);
  };
  using std::string_view_literals::operator""sv;
  refused("", "\x7f", "gate_proj.weight: there is a NaN among the weights of F8_E4M3 [256, 128]");
  refused("", "\xff", "there is a NaN among the weights");
  refused("_scale", "\x00\x00\xc0\x7f"sv, "up_proj.weight_scale holds NaN or infinity");
  refused("_scale", "\x00\x00\x80\xff"sv, "up_proj.weight_scale holds NaN or infinity");
}

TEST(Fp8Model, ADummyHasItsTypes) {
  Exec exec({.threads = 2});
  for (const json& quantization :
       {kKinds[0].config, kKinds[1].config, kKinds[2].config, json{{"quant_method", "gguf"}, {"type", "Q4_1"}}}) {
    json config = tiny_config();
    config["quantization_config"] = quantization;
    TinyFolder folder("dummy", config);
    const std::string path = folder.write();
    const WeightFiles files(path, LoadFormat::dummy);
    const LayerTensors& layer = files.tensors().layers[1];
    const bool fp8 = quantization["quant_method"] != "gguf";
    EXPECT_EQ(layer.up->type, fp8 ? BlockType::f8_e4m3 : BlockType::q4_1);
    EXPECT_EQ(files.tensors().scales.size(), fp8 ? 14u : 0u);
    EXPECT_EQ(files.tensors().output->type, BlockType::bf16) << "tied to the embedding";
    const Model model(path, exec, {}, LoadFormat::dummy);
    testing::Requests requests(model, exec, {});
    const std::vector<std::vector<float>> logits = requests.extend(0, testing::random_ids(5, kFp8Vocabulary, 1));
    for (const float logit : logits.back()) ASSERT_TRUE(std::isfinite(logit));
    if (!fp8) expect_refused([&] { Model(path, exec); }, "only as a dummy");
  }
}

}  // namespace
}  // namespace quire::model
