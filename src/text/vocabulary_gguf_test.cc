#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/gguf.h"
#include "base/testing/expect_refused.h"
#include "base/testing/gguf_bytes.h"
#include "base/testing/temporary_folder.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace quire::text {
namespace {

using Ids = std::vector<int32_t>;

// A file of metadata only, put down key by key.
class MetadataBytes {
 public:
  MetadataBytes& text(const std::string& key, const std::string& value) { return count(keys_.key_text(key, value)); }
  MetadataBytes& number(const std::string& key, uint32_t value) { return count(keys_.key_u32(key, value)); }
  MetadataBytes& flag(const std::string& key, bool value) {
    return count(keys_.key(key, gguf_type::boolean, static_cast<uint8_t>(value)));
  }
  MetadataBytes& texts(const std::string& key, const std::vector<std::string>& values) {
    keys_.key_array(key, gguf_type::string, values.size());
    for (const std::string& value : values) keys_.text(value);
    return count(keys_);
  }
  template <class T>
  MetadataBytes& numbers(const std::string& key, uint32_t type, const std::vector<T>& values) {
    keys_.key_array(key, type, values.size());
    for (const T value : values) keys_.number(value);
    return count(keys_);
  }
  std::string file() const { return GgufBytes(0, count_).raw(keys_.str().substr(kHeader)).str(); }

 private:
  static constexpr size_t kHeader = 24;  // that GgufBytes begins with; the true one is made at the end
  MetadataBytes& count(GgufBytes&) {
    ++count_;
    return *this;
  }
  GgufBytes keys_{0, 0};
  uint64_t count_ = 0;
};

Vocabulary read(const MetadataBytes& bytes) {
  const TemporaryFolder folder;
  return vocabulary_from_gguf(GgufFile(folder.put("model.gguf", bytes.file())));
}

void expect_bad(const MetadataBytes& bytes, const std::string& part) {
  expect_refused([&] { (void)read(bytes); }, part);
}

const std::vector<std::string> kTokens = {"a", "b", "ab", "\u0120", "<|im_end|>", "[T]"};

MetadataBytes byte_bpe(const std::string& pre = "gpt-2") {
  MetadataBytes bytes;
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
  bytes.texts("tokenizer.ggml.tokens", kTokens).texts("tokenizer.ggml.merges", {"a b"});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", gguf_type::i32, {1, 1, 1, 1, 3, 4});
  return bytes;
}

TEST(VocabularyGguf, ByteLevel) {
  const Vocabulary vocabulary = read(byte_bpe()
                                         .number("tokenizer.ggml.bos_token_id", 4)
                                         .number("tokenizer.ggml.eos_token_id", 4)
                                         .text("tokenizer.chat_template", "{{ x }}"));
  EXPECT_EQ(vocabulary.kind, VocabularyKind::byte_bpe);
  EXPECT_EQ(vocabulary.tokens.size(), 6);
  EXPECT_EQ(vocabulary.types[5], TokenType::user_defined);
  ASSERT_EQ(vocabulary.merges.size(), 1u);
  EXPECT_EQ(vocabulary.merges[0].joined, 2);
  EXPECT_EQ(vocabulary.bos, 4);
  EXPECT_EQ(vocabulary.unk, std::nullopt);
  EXPECT_TRUE(vocabulary.prefix.empty());
  EXPECT_EQ(vocabulary.end_ids, Ids{4});
  EXPECT_EQ(vocabulary.chat_template, "{{ x }}");
  const Tokenizer tokenizer(vocabulary_from_gguf(GgufFile(TemporaryFolder().put("x", byte_bpe().file()))));
  EXPECT_EQ(tokenizer.encode("ab[T]<|im_end|>", {.parse_special = true}), (Ids{2, 5, 4}));
}

TEST(VocabularyGguf, BosIsAddedAsTheFileOrTheKindSays) {
  const auto with_bos = [](const std::string& pre) { return byte_bpe(pre).number("tokenizer.ggml.bos_token_id", 4); };
  EXPECT_EQ(read(with_bos("llama-bpe")).prefix, Ids{4});
  EXPECT_TRUE(read(with_bos("dbrx")).prefix.empty());
  EXPECT_TRUE(read(byte_bpe("llama-bpe")).ignore_merges && !read(byte_bpe("dbrx")).ignore_merges);
  EXPECT_TRUE(read(with_bos("llama-bpe").flag("tokenizer.ggml.add_bos_token", false)).prefix.empty());
  EXPECT_TRUE(read(with_bos("qwen2")).prefix.empty());
  EXPECT_EQ(read(with_bos("qwen2").flag("tokenizer.ggml.add_bos_token", true)).prefix, Ids{4});
  EXPECT_TRUE(read(byte_bpe("llama-bpe")).prefix.empty());
  EXPECT_EQ(read(byte_bpe().number("tokenizer.ggml.eos_token_id", 1).flag("tokenizer.ggml.add_eos_token", true)).suffix,
            Ids{1});
}

TEST(VocabularyGguf, EndsAreAllThatTheFileNames) {
  const Vocabulary vocabulary = read(byte_bpe()
                                         .number("tokenizer.ggml.eos_token_id", 0)
                                         .number("tokenizer.ggml.eot_token_id", 1)
                                         .number("tokenizer.ggml.eom_token_id", 3));
  EXPECT_EQ(vocabulary.end_ids, (Ids{0, 1, 3, 4}));
  EXPECT_EQ(vocabulary.eot, 1);
}

MetadataBytes spm() {
  MetadataBytes bytes;
  bytes.text("tokenizer.ggml.model", "llama").number("tokenizer.ggml.unknown_token_id", 0);
  bytes.texts("tokenizer.ggml.tokens", {"<unk>", "\u2581", "a", "\u2581a"});
  bytes.numbers<float>("tokenizer.ggml.scores", gguf_type::f32, {0, -1, -2, -3});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", gguf_type::i32, {2, 1, 1, 1});
  return bytes;
}

TEST(VocabularyGguf, SentencePiece) {
  EXPECT_EQ(Tokenizer(read(spm())).encode("a  a"), (Ids{3, 1, 3}));
  EXPECT_EQ(Tokenizer(read(spm().flag("tokenizer.ggml.add_space_prefix", false))).encode("a a"), (Ids{2, 3}));
  EXPECT_EQ(Tokenizer(read(spm().flag("tokenizer.ggml.remove_extra_whitespaces", true))).encode(" a  a "), (Ids{3, 3}));
  EXPECT_EQ(Tokenizer(read(spm())).encode("<unk>", {.parse_special = true}), Ids{0});
}

TEST(VocabularyGguf, WhatIsWrongIsSaid) {
  expect_bad(MetadataBytes{}, "tokenizer.ggml.tokens");
  expect_bad(MetadataBytes{}.texts("tokenizer.ggml.tokens", {}), "has 0 tokens");
  expect_bad(byte_bpe("martian"), "the pre-tokenizer \"martian\" is not supported");
  expect_bad(MetadataBytes{}.texts("tokenizer.ggml.tokens", {"a"}).text("tokenizer.ggml.model", "bert"),
             "the tokenizer model \"bert\" is not supported");
  expect_bad(byte_bpe().number("tokenizer.ggml.eos_token_id", 6), "eos_token_id 6 is not one of the 6 tokens");
  const auto with_merges = [](const std::string& merge) {
    return MetadataBytes{}
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", kTokens)
        .texts("tokenizer.ggml.merges", {merge});
  };
  expect_bad(with_merges("a x"), "merge 0 has \"x\", which is not in the vocabulary");
  expect_bad(with_merges("b a"), "merge 0 has \"ba\", which is not in the vocabulary");
  expect_bad(with_merges("ab"), "merge 0, \"ab\", is not two tokens");
  const auto with_scores = [](const std::vector<float>& scores) {
    return MetadataBytes{}
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", {"a", "b"})
        .numbers<float>("tokenizer.ggml.scores", gguf_type::f32, scores);
  };
  expect_bad(with_scores({0}), "there are 2 tokens and the scores of 1");
  expect_bad(with_scores({0, std::numeric_limits<float>::quiet_NaN()}), "a token's score is not a number");
  const auto with_types = [](const std::vector<int32_t>& types) {
    return MetadataBytes{}
        .texts("tokenizer.ggml.tokens", {"a", "b"})
        .numbers<int32_t>("tokenizer.ggml.token_type", gguf_type::i32, types);
  };
  expect_bad(with_types({1}), "there are 2 tokens and the types of 1");
  expect_bad(with_types({1, 7}), "token 1 has the unknown type 7");
}

}  // namespace
}  // namespace quire::text
