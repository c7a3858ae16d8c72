#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json byte_level() {
  return json::parse(R"({
    "added_tokens": [
      {"id":5,"content":"<|im_end|>","lstrip":false,"rstrip":true,"normalized":false,"special":true},
      {"id":7,"content":"[T]","single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false}],
    "normalizer": {"type":"NFC"},
    "pre_tokenizer": {"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
    "post_processor": null,
    "decoder": {"type":"ByteLevel"},
    "model": {"type":"BPE","unk_token":null,"vocab":{"b":1,"a":0,"ab":2,"Ġ":3,"Ġa":4,"<|im_end|>":5},
              "merges":["a b",["Ġ","a"]]}})");
}

Vocabulary read(const json& tokenizer, const json& config = nullptr, const json& generation = nullptr) {
  const TemporaryFolder folder;
  folder.put("tokenizer.json", tokenizer.dump());
  if (!config.is_null()) folder.put("tokenizer_config.json", config.dump());
  if (!generation.is_null()) folder.put("generation_config.json", generation.dump());
  return vocabulary_from_path(folder.path());
}

TEST(VocabularyFolder, ByteLevel) {
  const Tokenizer tokenizer(read(byte_level()));
  EXPECT_EQ(tokenizer.size(), 8);  // id 6 is a hole
  EXPECT_EQ(tokenizer.encode("ab a"), (Ids{2, 4}));
  EXPECT_EQ(tokenizer.encode("a<|im_end|>  b[T]", {.parse_special = true}), (Ids{0, 5, 1, 7}));
  EXPECT_EQ(tokenizer.decode(Ids{4, 7, 5}, true), " a[T]");
  EXPECT_EQ(tokenizer.decode(Ids{6, 0}), "a");
  EXPECT_TRUE(tokenizer.is_end(5));
}

TEST(VocabularyFolder, SentencePieceStyle) {
  const Tokenizer tokenizer(read(json::parse(R"({
    "added_tokens": [{"id":0,"content":"<unk>","special":true},{"id":1,"content":"<s>","special":true}],
    "normalizer": {"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
                   {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type":"TemplateProcessing",
      "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
      "special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},
    "decoder": {"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
                {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
    "model": {"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,
              "vocab":{"<unk>":0,"<s>":1,"<0xC3>":2,"<0xA9>":3,"▁":4,"a":5,"▁a":6},"merges":["▁ a"]}})")));
  EXPECT_EQ(tokenizer.encode("a \u00E9x"), (Ids{1, 6, 4, 2, 3, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 6, 4, 2, 3}, true), "a \u00E9");
}

TEST(VocabularyFolder, TheCompanionsSayWhatIsSpecial) {
  const Vocabulary vocabulary =
      read(byte_level(),
           {{"bos_token", {{"content", "a"}}}, {"eos_token", "b"}, {"pad_token", nullptr}, {"chat_template", "plain"}},
           {{"eos_token_id", {2, 3}}});
  EXPECT_EQ(vocabulary.bos, 0);
  EXPECT_EQ(vocabulary.eos, 1);
  EXPECT_EQ(vocabulary.pad, std::nullopt);
  EXPECT_EQ(vocabulary.end_ids, (Ids{1, 2, 3, 5}));
  EXPECT_EQ(vocabulary.chat_template, "plain");
  EXPECT_EQ(read(byte_level(), nullptr, {{"eos_token_id", 3}}).end_ids, (Ids{3, 5}));
}

TEST(VocabularyFolder, ChatTemplates) {
  const json named = {{{"name", "tool_use"}, {"template", "t"}}, {{"name", "default"}, {"template", "d"}}};
  EXPECT_EQ(read(byte_level(), {{"chat_template", named}}).chat_template, "d");
  EXPECT_EQ(read(byte_level(), json::object()).chat_template, std::nullopt);
  const TemporaryFolder folder;
  folder.put("tokenizer.json", byte_level().dump());
  folder.put("tokenizer_config.json", R"({"chat_template":"old"})");
  folder.put("chat_template.jinja", "new");
  EXPECT_EQ(vocabulary_from_folder(folder.path()).chat_template, "new");
}

TEST(VocabularyFolder, WhatIsWrongIsSaidWithThePath) {
  const auto refused = [](auto&& change, const std::string& part) {
    json tokenizer = byte_level();
    change(tokenizer);
    expect_refused([&] { (void)read(tokenizer); }, part);
  };
  refused([](json& t) { t.erase("model"); }, "tokenizer.json: the key \"model\" is missing");
  refused([](json& t) { t["model"]["type"] = "Unigram"; }, "the tokenizer model");
  refused([](json& t) { t["model"]["vocab"] = json::array(); }, "is not an object but array");
  refused([](json& t) { t["model"]["vocab"]["c"] = -1; }, "the token \"c\" has the id -1");
  refused([](json& t) { t["model"]["vocab"]["c"] = 1; }, "have the same id 1");
  refused([](json& t) { t["model"]["vocab"]["c"] = 1 << 30; }, "far above");
  refused([](json& t) { t["model"]["merges"][0] = 7; }, "neither a string nor a pair");
  refused([](json& t) { t["model"]["merges"][0] = "a x"; }, "not in the vocabulary");
  refused([](json& t) { t["model"]["unk_token"] = "?"; }, "unk_token");
  refused([](json& t) { t["model"]["dropout"] = 0.1; }, "dropout");
  refused([](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  refused([](json& t) { t["added_tokens"][0]["special"] = "yes"; }, "special is not true or false");
  refused([](json& t) { t["decoder"] = {{"type", "Fuse"}}; }, "one of pre-tokenizer and decoder is ByteLevel");
  refused([](json& t) { t["added_tokens"] = 3; }, "added_tokens");
  expect_refused(
      [] {
        (void)read(byte_level(), nullptr, {{"eos_token_id", 8}});
      },
      "eos_token_id 8 is not one of the 8");
  const TemporaryFolder empty;
  expect_refused([&] { (void)vocabulary_from_folder(empty.path()); }, "tokenizer.json: No such file or directory");
}

}  // namespace
}  // namespace quire::text
