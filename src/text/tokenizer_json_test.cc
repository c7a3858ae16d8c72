#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/testing/expect_refused.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

Strings pieces(const std::string& pre_tokenizer, const std::string& text, bool at_start = true) {
  const Pieces found = PreTokenizer(pre_tokenizer_from_json(json::parse(pre_tokenizer)).steps)(text, at_start);
  Strings strings;
  for (const TextRange r : found.ranges) strings.push_back(found.text.substr(r.begin, r.end - r.begin));
  return strings;
}

std::string normalized_by(const std::string& normalizer, const std::string& text) {
  return Normalizer(normalizer_from_json(json::parse(normalizer)))(text);
}

TEST(TokenizerJson, PreTokenizers) {
  EXPECT_EQ(pieces("null", "a b"), (Strings{"a b"}));
  EXPECT_EQ(pieces(R"({"type":"Digits","individual_digits":true})", "a12"), (Strings{"a", "1", "2"}));
  EXPECT_EQ(pieces(R"({"type":"Digits","individual_digits":false})", "a12b"), (Strings{"a", "12", "b"}));
  EXPECT_EQ(pieces(R"({"type":"Split","pattern":{"String":"."},"behavior":"Removed","invert":false})", "a.b"),
            (Strings{"a", "b"}));
  EXPECT_EQ(pieces(R"({"type":"Split","pattern":{"Regex":"[a-c]+"},"behavior":"Removed","invert":true})", "abxc"),
            (Strings{"ab", "c"}));
  EXPECT_EQ(pieces(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})", "it's me"),
            (Strings{"it", "'s", " me"}));
  EXPECT_EQ(pieces(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})", "it's"), (Strings{" it's"}));
  EXPECT_EQ(pieces(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false})", "a b", false),
            (Strings{"a_b"}));
  EXPECT_EQ(pieces(R"({"type":"Metaspace","replacement":"_","add_prefix_space":true})", "a b"), (Strings{"_a", "_b"}));
}

TEST(TokenizerJson, SequencesOfPreTokenizers) {
  const std::string sequence = R"({"type":"Sequence","pretokenizers":[
      {"type":"Digits","individual_digits":true},
      {"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]}]})";
  EXPECT_EQ(pieces(sequence, "no 12"), (Strings{"no", " ", "1", "2"}));
  EXPECT_TRUE(pre_tokenizer_from_json(json::parse(sequence)).byte_level);
  EXPECT_FALSE(pre_tokenizer_from_json(json()).byte_level);
}

TEST(TokenizerJson, Normalizers) {
  EXPECT_EQ(normalized_by("null", "x"), "x");
  EXPECT_EQ(normalized_by(R"({"type":"NFC"})", "e\u0301"), "\u00E9");
  EXPECT_EQ(normalized_by(R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
      {"type":"Replace","pattern":{"String":" "},"content":"_"}]})",
                          "a b"),
            "_a_b");
  EXPECT_EQ(normalized_by(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "})", "a   b"), "a b");
  EXPECT_EQ(normalized_by(R"({"type":"Strip","strip_left":false,"strip_right":true})", " a "), " a");
}

TEST(TokenizerJson, PostProcessors) {
  StringTable tokens;
  for (const char* token : {"a", "<s>", "</s>"}) tokens.add(token);
  const json post_processor = json::parse(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing",
       "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
                 {"SpecialToken":{"id":"</s>","type_id":0}}],
       "special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},
                         "</s>":{"id":"</s>","ids":[2],"tokens":["</s>"]}}}]})");
  const JsonPostProcessor found = post_processor_from_json(post_processor, tokens);
  EXPECT_EQ(found.prefix, std::vector<int32_t>{1});
  EXPECT_EQ(found.suffix, std::vector<int32_t>{2});
  EXPECT_TRUE(post_processor_from_json(json(), tokens).prefix.empty());
}

TEST(TokenizerJson, Decoders) {
  EXPECT_TRUE(decoder_from_json(json::parse(R"({"type":"ByteLevel"})")).byte_level);
  const JsonDecoder llama = decoder_from_json(json::parse(R"({"type":"Sequence","decoders":[
      {"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
      {"type":"Strip","content":" ","start":1,"stop":0}]})"));
  EXPECT_TRUE(llama.drops_first_space);
  EXPECT_FALSE(llama.byte_level);
  EXPECT_TRUE(decoder_from_json(json::parse(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})"))
                  .drops_first_space);
  EXPECT_FALSE(decoder_from_json(json::parse(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})"))
                   .drops_first_space);
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  const auto pre = [](const char* text) { (void)pre_tokenizer_from_json(json::parse(text)); };
  expect_refused([&] { pre(R"({"type":"BertPreTokenizer"})"); }, "the pre-tokenizer \"BertPreTokenizer\"");
  expect_refused([&] { pre(R"({"type":"Split","pattern":{"String":"x"},"behavior":"Doubled"})"); }, "\"Doubled\"");
  expect_refused([&] { pre(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"often"})"); }, "\"often\"");
  expect_refused([&] { pre(R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"); },
                 "\"Digits\" after ByteLevel");
  expect_refused([&] { pre(R"({"behavior":"Isolated"})"); }, "\"type\" is missing");
  expect_refused([&] { pre(R"([1])"); }, "is not an object but array");
  expect_refused([&] { pre(R"({"type":"Digits","individual_digits":1})"); }, "individual_digits is not true or false");
  expect_refused([] { (void)normalizer_from_json(json::parse(R"({"type":"Lowercase"})")); }, "\"Lowercase\"");
  expect_refused([] { (void)decoder_from_json(json::parse(R"({"type":"WordPiece"})")); }, "\"WordPiece\"");
  expect_refused([] { (void)decoder_from_json(json::parse(R"({"type":"Strip","content":" ","start":2,"stop":0})")); },
                 "Strip");
  expect_refused([] { (void)post_processor_from_json(json::parse(R"({"type":"BertProcessing"})"), {}); },
                 "\"BertProcessing\"");
}

TEST(TokenizerJson, EndlessNestingIsRefused) {
  json nested = {{"type", "NFC"}};
  for (int depth = 0; depth < 50; ++depth) nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  expect_refused([&] { (void)normalizer_from_json(nested); }, "nested deeper");
}

}  // namespace
}  // namespace quire::text
