#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/testing/expect_refused.h"
#include "model/config.h"

namespace quire::model {
namespace {

using nlohmann::json;
using Kind = ops::RopeScaling::Kind;

// A folder with nothing but a config.json, gone with the object.
class Folder {
 public:
  explicit Folder(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / cat("quire_config_", getpid())) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << text;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

json base(const std::string& model_type) {
  return {{"model_type", model_type}, {"num_hidden_layers", 5},          {"hidden_size", 128},
          {"intermediate_size", 256}, {"num_attention_heads", 4},        {"num_key_value_heads", 2},
          {"vocab_size", 320},        {"max_position_embeddings", 2048}, {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0}};
}

ModelConfig parse(const std::string& text) { return config_from_folder(Folder(text).path()); }

ModelConfig read(const std::string& model_type, const json& changes = json::object()) {
  json all = base(model_type);
  all.update(changes);
  return parse(all.dump());
}

void expect_bad_folder(const json& changes, const std::string& part, const std::string& model_type = "llama") {
  SCOPED_TRACE(changes.dump());
  expect_refused([&] { read(model_type, changes); }, part);
}

TEST(ConfigFolder, ReadsEveryCount) {
  const Folder folder(base("llama").dump());
  const ModelConfig config = config_from_folder(folder.path() + "/");
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, cat("quire_config_", getpid()));
  EXPECT_EQ(config.layers.size(), 5u);
  EXPECT_EQ(config.width, 128);
  EXPECT_EQ(config.ffn_width(), 256);
  EXPECT_EQ(config.attention().heads, 4);
  EXPECT_EQ(config.attention().kv_heads, 2);
  EXPECT_EQ(config.attention().key_dim, 32);
  EXPECT_EQ(config.ropes[0].rotary, 32);
  EXPECT_EQ(config.vocabulary, 320);
  EXPECT_EQ(config.context, 2048);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.ropes[0].theta, 500000);
  EXPECT_EQ(config.ropes[0].scaling.kind, Kind::none);
  EXPECT_FALSE(config.ropes[0].adjacent_pairs);
  EXPECT_FALSE(config.tied_embedding);
  EXPECT_FALSE(config.attention().qkv_bias);
}

TEST(ConfigFolder, ArchitecturesDiffer) {
  EXPECT_TRUE(read("qwen2").attention().qkv_bias);
  EXPECT_TRUE(read("llama", {{"attention_bias", true}}).attention().qkv_bias);
  EXPECT_EQ(read("qwen3").attention().qk_norm, QkNorm::per_head);
  EXPECT_EQ(read("qwen3").attention().key_dim, 128);
  EXPECT_EQ(read("qwen3", {{"head_dim", 64}}).attention().key_dim, 64);
  EXPECT_TRUE(read("smollm3").tied_embedding);
  EXPECT_FALSE(read("qwen3").tied_embedding);
  EXPECT_TRUE(read("qwen3", {{"tie_word_embeddings", true}}).tied_embedding);
  EXPECT_EQ(read("llama", {{"num_key_value_heads", nullptr}}).attention().kv_heads, 4);
}

std::vector<int32_t> ropes(const ModelConfig& config) {
  std::vector<int32_t> all;
  for (const LayerSpec& layer : config.layers) all.push_back(layer.attention.rope);
  return all;
}

std::vector<int32_t> windows(const ModelConfig& config) {
  std::vector<int32_t> all;
  for (const LayerSpec& layer : config.layers) all.push_back(layer.attention.window);
  return all;
}

using ByLayer = std::vector<int32_t>;

TEST(ConfigFolder, LayersWithoutPositions) {
  EXPECT_EQ(ropes(read("smollm3")), (ByLayer{0, 0, 0, -1, 0}));
  EXPECT_EQ(ropes(read("smollm3", {{"no_rope_layer_interval", 2}})), (ByLayer{0, -1, 0, -1, 0}));
  EXPECT_EQ(ropes(read("smollm3", {{"no_rope_layers", {1, 0, 0, 1, 1, 0}}})), (ByLayer{0, -1, -1, 0, 0}));
  expect_bad_folder({{"no_rope_layers", {1, 0}}}, "no_rope_layers has 2 elements for 5 layers", "smollm3");
  EXPECT_EQ(ropes(read("llama", {{"no_rope_layers", {1, 0}}})), ByLayer(5, 0));
  const auto with = [](const json& flag) { return json{{"no_rope_layers", {1, 0, 1, flag, 1}}}; };
  expect_bad_folder(with("x"), "config.json: no_rope_layers[3] is not a whole number but string", "smollm3");
  expect_bad_folder(with(false), "no_rope_layers[3] is not a whole number but boolean", "smollm3");
  expect_bad_folder(with(2), "no_rope_layers[3] = 2", "smollm3");
}

TEST(ConfigFolder, Windows) {
  EXPECT_EQ(windows(read("mistral", {{"sliding_window", 16}})), ByLayer(5, 15));
  EXPECT_EQ(windows(read("mistral", {{"sliding_window", nullptr}})), ByLayer(5, -1));
  EXPECT_EQ(windows(read("mistral")), ByLayer(5, 4095)) << "what Hugging Face's own code takes when the key is missing";
  EXPECT_EQ(windows(read("llama", {{"sliding_window", 16}})), ByLayer(5, -1));
  EXPECT_EQ(windows(read("qwen2", {{"sliding_window", 16}, {"max_window_layers", 3}})), ByLayer(5, -1));
  const json on = {{"sliding_window", 16}, {"max_window_layers", 3}, {"use_sliding_window", true}};
  EXPECT_EQ(windows(read("qwen2", on)), (ByLayer{-1, -1, -1, 15, 15}));
  json listed = on;
  listed["layer_types"] = json::array();
  for (const bool slides : {true, false, false, false, true})
    listed["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
  EXPECT_EQ(windows(read("qwen3", listed)), (ByLayer{15, -1, -1, -1, 15}));
  listed["layer_types"][2] = "chunked_attention";
  expect_bad_folder(listed, "layer_types[2]", "qwen3");
  listed["layer_types"] = {"full_attention", "sliding_attention"};
  expect_bad_folder(listed, "layer_types has 2 elements for 5 layers", "qwen3");
  listed["sliding_window"] = nullptr;
  EXPECT_EQ(windows(read("qwen3", listed)), ByLayer(5, -1)) << "no window, whatever layers are listed";
  EXPECT_EQ(windows(read("smollm3", {{"sliding_window", 16}, {"use_sliding_window", true}})),
            (ByLayer{-1, -1, -1, 15, -1}));
}

TEST(ConfigFolder, Olmo2NormsAfterEachHalf) {
  for (const LayerSpec& layer : read("olmo2").layers) {
    EXPECT_EQ(layer.attention.qk_norm, QkNorm::whole_row);
    EXPECT_TRUE(!layer.norm_before && layer.norm_after);
  }
}

TEST(ConfigFolder, GraniteMultiplies) {
  const ModelConfig config = read("granite", {{"attention_multiplier", 0.015625},
                                              {"embedding_multiplier", 12},
                                              {"residual_multiplier", 0.22},
                                              {"logits_scaling", 8}});
  EXPECT_EQ(config.embedding_scale, 12.0f);
  EXPECT_EQ(config.logits_scale, 0.125f);
  EXPECT_EQ(config.attention().scale, 0.015625f);
  EXPECT_EQ(config.layers[4].residual_scale, 0.22f);
  EXPECT_EQ(read("granite").attention().scale, 1.0f) << "what Hugging Face's own code takes when the key is missing";
  expect_bad_folder({{"logits_scaling", 0}}, "logits_scaling = 0", "granite");
  expect_bad_folder({{"logits_scaling", 1e-42}}, "config.json: logits_scaling = 1e-42 is not between", "granite");
  for (const char* key : {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"})
    for (const double value : {-1.0, 1e39}) expect_bad_folder({{key, value}}, key, "granite");
}

TEST(ConfigFolder, RopeScalingInBothSpellings) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 512}};
  const ModelConfig old_style = read("llama", {{"rope_scaling", llama3}});
  EXPECT_EQ(old_style.ropes[0].scaling.kind, Kind::llama3);
  EXPECT_EQ(old_style.ropes[0].scaling.factor, 8);
  EXPECT_EQ(old_style.ropes[0].scaling.original_context, 512);
  EXPECT_EQ(old_style.ropes[0].theta, 500000);
  json inside = llama3;
  inside["rope_theta"] = 1234.0;
  EXPECT_EQ(read("llama", {{"rope_parameters", inside}}).ropes[0].theta, 1234);
  EXPECT_EQ(read("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}).ropes[0].scaling.kind, Kind::linear);
  EXPECT_EQ(read("llama", {{"rope_scaling", nullptr}}).ropes[0].scaling.kind, Kind::none);
  EXPECT_EQ(read("llama", {{"rope_parameters", {{"rope_type", "default"}}}}).ropes[0].scaling.kind, Kind::none);
}

TEST(ConfigFolder, Yarn) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16}, {"attention_factor", 1.25}};
  const ops::RopeScaling scaling = read("qwen3", {{"rope_scaling", yarn}}).ropes[0].scaling;
  EXPECT_EQ(scaling.kind, Kind::yarn);
  EXPECT_EQ(scaling.original_context, 2048) << "the context, when the file does not say";
  EXPECT_EQ(scaling.beta_fast, 16);
  EXPECT_EQ(scaling.beta_slow, 1);
  EXPECT_EQ(scaling.attention_factor, 1.25);
  for (const auto& [key, value] : {std::pair<const char*, json>{"truncate", false}, {"mscale", 1.0}}) {
    json refused = yarn;
    refused[key] = value;
    expect_bad_folder({{"rope_scaling", refused}}, key);
  }
}

TEST(ConfigFolder, YarnStretchesTheContextWhereTheFileGivesTheShortOne) {
  const auto context = [](int max_position_embeddings, json yarn) {
    yarn.update({{"rope_type", "yarn"}, {"factor", 4.0}});
    return read("qwen2", {{"max_position_embeddings", max_position_embeddings}, {"rope_scaling", yarn}}).context;
  };
  EXPECT_EQ(context(32768, {{"original_max_position_embeddings", 32768}}), 131072) << "Qwen2.5's recipe";
  EXPECT_EQ(context(40960, {{"original_max_position_embeddings", 32768}}), 131072) << "Qwen3's recipe";
  EXPECT_EQ(context(131072, {{"original_max_position_embeddings", 32768}}), 131072) << "stretched already";
  EXPECT_EQ(context(163840, {{"original_max_position_embeddings", 4096}}), 163840) << "longer than the factor says";
  EXPECT_EQ(context(2048, json::object()), 8192);
  expect_bad_folder({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 1e9}}}}, "yarn stretches a context of 2048");
  expect_bad_folder({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", -4}}}},
                    "config.json: rope_scaling: factor = -4 is not");
}

TEST(ConfigFolder, HeadsThatFollowFromTheWidthAreChecked) {
  const auto heads = [](int32_t width, int32_t count) {
    return json{{"hidden_size", width}, {"num_attention_heads", count}, {"num_key_value_heads", 1}};
  };
  EXPECT_EQ(read("llama", heads(1024, 4)).attention().key_dim, 256);
  expect_bad_folder(heads(32, 64), "config.json: hidden_size = 32 and num_attention_heads = 64 make no heads");
  expect_bad_folder(heads(1024, 2), "hidden_size = 1024 and num_attention_heads = 2 make no heads");
  expect_bad_folder(heads(131072, 1), "hidden_size = 131072 and num_attention_heads = 1 make no heads");
  expect_bad_folder(heads(128, 3), "hidden_size = 128 and num_attention_heads = 3 make no heads");
  json said = heads(128, 3);
  said["head_dim"] = 64;
  EXPECT_EQ(read("llama", said).attention().key_dim, 64) << "nothing to divide";
}

TEST(ConfigFolder, RopesNumbersArePositive) {
  const auto scaled = [](json scaling, const char* key, const json& value) {
    scaling[key] = value;
    return json{{"rope_scaling", scaling}};
  };
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}}, linear = {{"rope_type", "linear"}};
  const json llama3 = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  for (const json& theta : {json(-1), json(0)})
    expect_bad_folder({{"rope_theta", theta}}, cat("config.json: rope_theta = ", theta.dump(), " is not a positive"));
  expect_bad_folder({{"rope_parameters", {{"rope_theta", -1}}}}, "rope_parameters: rope_theta = -1 is not a positive");
  expect_bad_folder({{"rms_norm_eps", -1e-5}}, "rms_norm_eps = -1e-05 is not a positive");
  for (const char* key : {"factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"})
    for (const int value : {-5, 0})
      expect_bad_folder(scaled(yarn, key, value), cat("rope_scaling: ", key, " = ", value, " is not a positive"));
  for (const char* key : {"low_freq_factor", "high_freq_factor"})
    expect_bad_folder(scaled(llama3, key, -1), cat(key, " = -1 is not a positive"));
  expect_bad_folder(scaled(linear, "factor", -2), "factor = -2 is not a positive");
  // One by one they are numbers, together they are none that angles can be made of.
  expect_bad_folder(scaled(yarn, "beta_slow", 64), "config.json: rope scaling between beta fast 32");
  expect_bad_folder(scaled(llama3, "low_freq_factor", 4), "config.json: rope scaling between frequency factors 4");
  expect_bad_folder(scaled(linear, "factor", 1e-300), "config.json: rope's theta and scaling");
  expect_bad_folder(scaled(yarn, "attention_factor", 1e39), "config.json: rope's theta and scaling");
  expect_bad_folder({{"rope_theta", 1e-300}}, "config.json: rope's theta and scaling");
}

TEST(ConfigFolder, BadValuesAreRefusedByName) {
  expect_bad_folder({{"model_type", "gpt2"}},
                    "\"gpt2\" is not one of llama, mistral, qwen2, qwen3, smollm3, olmo2, granite");
  expect_bad_folder({{"num_hidden_layers", 0}}, "num_hidden_layers = 0 is not between 1 and 1000");
  expect_bad_folder({{"num_hidden_layers", 1001}}, "num_hidden_layers = 1001");
  expect_bad_folder({{"num_hidden_layers", 2.5}}, "num_hidden_layers is not a whole number");
  expect_bad_folder({{"num_hidden_layers", 18446744073709551615u}}, "num_hidden_layers = 18446744073709551615");
  expect_bad_folder({{"vocab_size", 1 << 21}}, "vocab_size = 2097152");
  expect_bad_folder({{"vocab_size", nullptr}}, "the key \"vocab_size\" is missing");
  expect_bad_folder({{"num_key_value_heads", 3}}, "4 heads are no multiple of 3 kv heads");
  expect_bad_folder({{"head_dim", 24}}, "heads of 24 dims");
  expect_bad_folder({{"head_dim", 8}}, "head_dim = 8 is not between 16 and 256");
  expect_bad_folder({{"mlp_bias", true}}, "mlp_bias");
  expect_bad_folder({{"mlp_bias", 1}}, "mlp_bias is not true or false");
  expect_bad_folder({{"hidden_act", "gelu"}}, "hidden_act = \"gelu\"");
  expect_bad_folder({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  expect_bad_folder({{"quantization_config", {{"bits", 4}}}}, "quantization_config: quant_method = \"\"");
  expect_bad_folder({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}, "\"dynamic\" is not one of");
  expect_bad_folder({{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling: the key \"factor\" is missing");
  expect_bad_folder({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}},
                    "\"full_attention\" is an object");
  expect_bad_folder({{"sliding_window", 0}}, "sliding_window = 0", "mistral");
}

TEST(ConfigFolder, BrokenFiles) {
  expect_refused([] { parse("{"); }, "config.json: ");
  expect_refused([] { parse("[]"); }, "config.json: ");
  expect_refused([] { parse(std::string(100, '[') + std::string(100, ']')); }, "config.json: ");
  expect_refused([] { config_from_folder("/nonexistent"); }, "/nonexistent/config.json");
}

}  // namespace
}  // namespace quire::model
