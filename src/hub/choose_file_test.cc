#include "hub/choose_file.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::hub {
namespace {

using Paths = std::vector<std::string>;

std::string chosen(const Paths& paths, std::string_view wish = "") { return choose_files(paths, wish).gguf; }

TEST(ChooseFile, TheTypeIsTheLastOfTheName) {
  EXPECT_EQ(gguf_type("Qwen3-0.6B-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(gguf_type("a/b.Q8_0.gguf"), "Q8_0");
  EXPECT_EQ(gguf_type("llama-3-q4_0.GGUF"), "Q4_0");
  EXPECT_EQ(gguf_type("x-fp16.gguf"), "F16");
  EXPECT_EQ(gguf_type("x_bf16.gguf"), "BF16");
  EXPECT_EQ(gguf_type("x-UD-Q4_K_XL.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(gguf_type("x-IQ2_XXS.gguf"), "IQ2_XXS");
  EXPECT_EQ(gguf_type("x-Q4_K_M-00001-of-00003.gguf"), "Q4_K_M");
  EXPECT_EQ(gguf_type("q4_0.gguf"), "Q4_0");
  EXPECT_EQ(gguf_type("model.gguf"), "");
  EXPECT_EQ(gguf_type("xq4_0.gguf"), "");
}

TEST(ChooseFile, FourBitsComeFirst) {
  const Paths all = {"m-F16.gguf",    "m-IQ4_XS.gguf", "m-Q2_K.gguf",   "m-Q3_K_M.gguf", "m-Q4_0.gguf",
                     "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q5_K_M.gguf", "m-Q8_0.gguf",   "README.md"};
  EXPECT_EQ(choose_files(all, ""), (ModelFiles{.files = {"m-Q4_K_M.gguf"}, .gguf = "m-Q4_K_M.gguf", .of_many = 6}));
  EXPECT_EQ(chosen({"m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-Q4_0.gguf", "m-Q4_K_S.gguf"}), "m-Q4_K_S.gguf");
  EXPECT_EQ(chosen({"m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-Q4_0.gguf"}), "m-Q4_0.gguf");
  EXPECT_EQ(chosen({"m-Q8_0.gguf", "m-F16.gguf", "m-Q5_K_M.gguf"}), "m-Q5_K_M.gguf");
  EXPECT_EQ(chosen({"m-F16.gguf", "m-Q8_0.gguf", "m-IQ4_NL.gguf"}), "m-Q8_0.gguf");
}

TEST(ChooseFile, WhatIsNoModelIsPassedOver) {
  EXPECT_EQ(chosen({"mmproj-model-Q4_K_M.gguf", "m-Q8_0.gguf", "m.imatrix.gguf"}), "m-Q8_0.gguf");
  EXPECT_EQ(chosen({"m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf", "m-Q8_0.gguf"}), "m-Q8_0.gguf");
  EXPECT_EQ(chosen({"model.gguf"}), "model.gguf");
}

TEST(ChooseFile, EqualsAreChosenTheSameWayInAnyOrder) {
  EXPECT_EQ(chosen({"b-Q4_0.gguf", "a-Q4_0.gguf", "sub/a-Q4_0.gguf"}), "a-Q4_0.gguf");
  EXPECT_EQ(chosen({"sub/a-Q4_0.gguf", "a-Q4_0.gguf", "b-Q4_0.gguf"}), "a-Q4_0.gguf");
}

TEST(ChooseFile, AWishIsAFileOrAType) {
  const Paths all = {"m-Q4_K_M.gguf", "m-Q8_0.gguf", "old/m-Q8_0.gguf", "m-IQ2_XXS.gguf", "README.md"};
  EXPECT_EQ(choose_files(all, "old/m-Q8_0.gguf"),
            (ModelFiles{.files = {"old/m-Q8_0.gguf"}, .gguf = "old/m-Q8_0.gguf", .of_many = 1}));
  EXPECT_EQ(chosen(all, "Q8_0"), "m-Q8_0.gguf");
  EXPECT_EQ(chosen(all, "q4_k_m"), "m-Q4_K_M.gguf");
  EXPECT_EQ(chosen(all, "m-IQ2_XXS.gguf"), "m-IQ2_XXS.gguf");  // said so: the model's reader will speak about it
  expect_refused([&] { chosen(all, "m-Q6_K.gguf"); },
                 "has no file \"m-Q6_K.gguf\"; its GGUF files are \"m-Q4_K_M.gguf\",");
  expect_refused([&] { chosen(all, "README.md"); }, "no GGUF file");
  expect_refused([&] { chosen({"config.json"}, "Q8_0"); }, "no GGUF file at all");
  expect_refused([&] { chosen({"m-Q8_0-00001-of-00002.gguf"}, "Q8_0"); }, "split");
  expect_refused([&] { chosen({"m-Q8_0-00001-of-00002.gguf"}, "m-Q8_0-00001-of-00002.gguf"); }, "split");
}

TEST(ChooseFile, AFolderIsWhatQuireReads) {
  const Paths all = {".gitattributes",
                     "README.md",
                     "config.json",
                     "generation_config.json",
                     "merges.txt",
                     "vocab.json",
                     "model.safetensors",
                     "onnx/model.onnx",
                     "tokenizer.json",
                     "tokenizer_config.json",
                     "special_tokens_map.json",
                     "chat_template.jinja",
                     "pytorch_model.bin",
                     "other.safetensors",
                     "sub/model.safetensors"};
  ModelFiles folder = choose_files(all, "");
  EXPECT_EQ(folder.gguf, "");
  std::sort(folder.files.begin(), folder.files.end());
  EXPECT_EQ(folder.files, (Paths{"chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
                                 "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}));
}

TEST(ChooseFile, AShardedFolder) {
  ModelFiles folder =
      choose_files({"config.json", "tokenizer.json", "model-00001-of-00002.safetensors",
                    "model-00002-of-00002.safetensors", "model.safetensors.index.json", "consolidated.safetensors"},
                   "");
  std::sort(folder.files.begin(), folder.files.end());
  EXPECT_EQ(folder.files, (Paths{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                 "model.safetensors.index.json", "tokenizer.json"}));
}

TEST(ChooseFile, WhatIsMissingIsSaid) {
  expect_refused([] { choose_files({"README.md", "pytorch_model.bin"}, ""); }, "has neither a GGUF file nor");
  expect_refused([] { choose_files({}, ""); }, "has neither a GGUF file nor");
  expect_refused([] { choose_files({"config.json", "model.safetensors"}, ""); }, "has no tokenizer.json");
  expect_refused([] { choose_files({"tokenizer.json", "model.safetensors"}, ""); }, "has no config.json");
  expect_refused(
      [] {
        choose_files({"m-IQ2_XXS.gguf", "m-Q2_K.gguf"}, "");
      },
      "has no GGUF file in a type that quire computes with, but \"m-IQ2_XXS.gguf\", \"m-Q2_K.gguf\"");
  expect_refused(
      [] {
        choose_files({"m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"}, "");
      },
      "has only split GGUF files");
}

TEST(ChooseFile, AFolderTakesTheplaceOfGgufFilesThatWillNotDo) {
  EXPECT_EQ(choose_files({"m-IQ2_XXS.gguf", "config.json", "tokenizer.json", "model.safetensors"}, "").files.size(),
            3u);
}

}  // namespace
}  // namespace quire::hub
