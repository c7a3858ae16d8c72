// Constraints over the default model's own vocabulary: what its masks allow is what was asked for, and a mask costs
// little beside a token. Skipped where the model's file is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "grammar/compiler.h"
#include "grammar/testing.h"
#include "grammar/testing_regex.h"
#include "text/tokenizer.h"

namespace quire::grammar {
namespace {

using nlohmann::json;

std::optional<std::string> model_file() {
  const auto environment = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  std::string path = environment("QUIRE_MODEL");
  if (path.empty()) {
    std::string cache = environment("QUIRE_CACHE");
    if (cache.empty() && !environment("XDG_CACHE_HOME").empty()) cache = environment("XDG_CACHE_HOME") + "/quire";
    if (cache.empty()) cache = environment("HOME") + "/.cache/quire";
    path = cache + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

class GrammarVocabulary : public testing::Test {
 protected:
  void SetUp() override {
    const std::optional<std::string> path = model_file();
    if (!path) GTEST_SKIP() << "the default model is not there: cmake/default_model.sh fetches it";
    const text::Tokenizer tokenizer(text::vocabulary_from_path(*path));
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      const bool is_text = !tokenizer.is_special(id) && !tokenizer.is_end(id);
      tokens.pieces.push_back(is_text ? std::string(tokenizer.piece(id)) : "");
      if (tokenizer.is_end(id)) tokens.end_ids.push_back(id);
    }
    compiler.emplace(tokens);
  }

  Tokens tokens;
  std::optional<Compiler> compiler;
};

constexpr const char* kSchema = R"({"type":"object","properties":{
    "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"code":{"type":"string","maxLength":12},
    "tags":{"type":"array","items":{"type":"string"},"maxItems":5},"score":{"type":"number"},
    "kind":{"enum":["person","company"]},"address":{"anyOf":[{"type":"null"},{"type":"object","properties":{
        "street":{"type":"string"},"city":{"type":"string"}},"required":["street","city"]}]}},
    "required":["name","age","tags","kind"]})";

TEST_F(GrammarVocabulary, WalksSatisfyTheSchema) {
  const json schema = json::parse(kSchema);
  const auto compiled = compiler->compile({Kind::json_schema, kSchema});
  std::mt19937 random(11);
  int ended = 0;
  for (int i = 0; i < 20; ++i) {
    const Walk walked = walk(*compiler->mask(compiled), tokens, random, 300);
    if (!walked.ended) continue;
    ++ended;
    ASSERT_TRUE(json::accept(walked.text)) << walked.text;
    ASSERT_NO_THROW(judge(json::parse(walked.text), schema, schema)) << walked.text;
  }
  EXPECT_GE(ended, 5);
}

TEST_F(GrammarVocabulary, WalksMatchTheRegularExpression) {
  const char* source = "[A-Z][a-z]{1,8}( [a-z]{1,70}){0,2}\\.";
  const auto compiled = compiler->compile({Kind::regex, source});
  std::mt19937 random(12);
  int ended = 0;
  for (int i = 0; i < 20; ++i) {
    const Walk walked = walk(*compiler->mask(compiled), tokens, random, 150);
    if (!walked.ended) continue;
    ++ended;
    ASSERT_TRUE(RegexJudge(source).matches(walked.text)) << walked.text;
  }
  EXPECT_GE(ended, 5);
}

// For people to read, not to judge by: machines differ.
TEST_F(GrammarVocabulary, TimeOfAMask) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto compiled = compiler->compile({Kind::json_schema, kSchema});
  const std::chrono::duration<double, std::milli> compiling = Clock::now() - begin;
  std::vector<double> microseconds;
  std::mt19937 random(13);
  for (int i = 0; i < 10; ++i) {
    const auto mask = compiler->mask(compiled);
    for (int step = 0; step < 100; ++step) {
      const auto start = Clock::now();
      const uint32_t* bits = mask->next();
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      int32_t token = static_cast<int32_t>(random() % tokens.pieces.size());
      while (!allows(bits, token)) token = (token + 1) % static_cast<int32_t>(tokens.pieces.size());
      const auto accepting = Clock::now();
      mask->accept(token);
      microseconds.push_back(time.count() +
                             std::chrono::duration<double, std::micro>(Clock::now() - accepting).count());
      if (std::find(tokens.end_ids.begin(), tokens.end_ids.end(), token) != tokens.end_ids.end()) break;
    }
  }
  ASSERT_FALSE(microseconds.empty());
  std::sort(microseconds.begin(), microseconds.end());
  const auto at = [&](double part) { return microseconds[static_cast<size_t>(part * (microseconds.size() - 1))]; };
  std::printf("%zu tokens of %zu: compiled in %.0f ms; a mask and its token take %.1f us (median), %.1f (of 99 %%)\n",
              microseconds.size(), tokens.pieces.size(), compiling.count(), at(0.5), at(0.99));
}

}  // namespace
}  // namespace quire::grammar
