#include "serve/text_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>

#include "base/check.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using engine::Finish;
using testing::kAssistant;
using testing::kEnd;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer tiny(testing::tiny_vocabulary());
  return tiny;
}

// An answer of these tokens; the last comes with the finish.
struct Answer {
  explicit Answer(TextRules rules) : stream(tokenizer(), std::move(rules)) {}

  void on_output(int32_t token, Finish finish = Finish::none) {
    const auto count = static_cast<int32_t>(++heard);
    stream.on_output({.token = token, .finish = finish, .prompt_tokens = 3, .cached_tokens = 1, .generated = count},
                     all);
  }
  void hear_bytes(std::string_view bytes) {
    for (const char byte : bytes) on_output(static_cast<unsigned char>(byte));
  }
  std::string matched_text() const { return std::get<std::string>(all.end.value().matched); }

  TextStream stream;
  Progress all;
  int heard = 0;
};

TEST(TextStream, GivesTextTokensAndCounts) {
  Answer answer({});
  answer.hear_bytes("ab");
  EXPECT_EQ(answer.all.text, "ab");
  EXPECT_FALSE(answer.all.end);
  answer.on_output('c', Finish::length);
  EXPECT_EQ(answer.all.text, "abc");
  ASSERT_EQ(answer.all.tokens.size(), 3u);
  EXPECT_EQ(answer.all.tokens[2].token, 'c');
  EXPECT_EQ(answer.all.prompt_tokens, 3);
  EXPECT_EQ(answer.all.cached_tokens, 1);
  EXPECT_EQ(answer.all.generated, 3);
  EXPECT_EQ(answer.all.end.value().reason, EndReason::length);
  EXPECT_FALSE(answer.stream.stopped());
}

TEST(TextStream, CharactersComeWhole) {
  Answer answer({});
  answer.hear_bytes("a\xE2\x82");
  EXPECT_EQ(answer.all.text, "a");
  answer.on_output(0xAC);
  EXPECT_EQ(answer.all.text, "a\u20AC");
}

TEST(TextStream, HalfACharacterAtTheEndIsReplaced) {
  Answer answer({});
  answer.hear_bytes("a\xE2\x82");
  answer.on_output(kEnd, Finish::stop);
  EXPECT_EQ(answer.all.text, "a\uFFFD");
  EXPECT_EQ(std::get<int32_t>(answer.all.end.value().matched), kEnd);
}

TEST(TextStream, AStopTextOverSeveralTokensEndsTheAnswer) {
  Answer answer({.stops = {"END"}});
  answer.hear_bytes("one ENEN");
  EXPECT_EQ(answer.all.text, "one EN");
  EXPECT_FALSE(answer.stream.stopped());
  answer.on_output('D');
  EXPECT_EQ(answer.all.text, "one EN");
  EXPECT_EQ(answer.all.end.value().reason, EndReason::stop);
  EXPECT_EQ(answer.matched_text(), "END");
  EXPECT_TRUE(answer.stream.stopped());

  answer.on_output('x', Finish::cancelled);  // the engine's own end comes later, and is nobody's business
  EXPECT_EQ(answer.all.text, "one EN");
  EXPECT_EQ(answer.all.end->reason, EndReason::stop);
  EXPECT_EQ(answer.all.tokens.size(), 9u);
}

TEST(TextStream, WhatOnlyBeganLikeAStopTextIsShownAtTheEnd) {
  Answer answer({.stops = {"END"}});
  answer.hear_bytes("one E");
  EXPECT_EQ(answer.all.text, "one ");
  answer.on_output('N', Finish::length);
  EXPECT_EQ(answer.all.text, "one EN");
}

TEST(TextStream, StopsCanBeKept) {
  Answer text({.stops = {"END"}, .keep_stop = true});
  text.hear_bytes("a END");
  EXPECT_EQ(text.all.text, "a END");
  EXPECT_EQ(text.matched_text(), "END");

  for (const bool keep : {false, true}) {
    Answer token({.keep_stop = keep});
    token.on_output('a');
    token.on_output('.', Finish::stop);
    EXPECT_EQ(token.all.text, keep ? "a." : "a");
    EXPECT_EQ(std::get<int32_t>(token.all.end.value().matched), '.');
  }
}

TEST(TextStream, SpecialTokensAreLeftOutUnlessWanted) {
  for (const bool skip : {false, true}) {
    Answer answer({.skip_special = skip, .keep_stop = true});
    answer.on_output(kAssistant);
    answer.on_output('a');
    answer.on_output(kEnd, Finish::stop);
    EXPECT_EQ(answer.all.text, skip ? "a" : "<|assistant|>a</s>");
    EXPECT_EQ(answer.all.tokens.size(), 3u);
  }
}

TEST(TextStream, TheLastTokenMayBringAStopTextAndTheLimit) {
  Answer answer({.stops = {"b"}});
  answer.on_output('a');
  answer.on_output('b', Finish::length);
  EXPECT_EQ(answer.all.text, "a");
  EXPECT_EQ(answer.all.end.value().reason, EndReason::stop);
}

TEST(TextStream, PassesOnWhatElseCame) {
  TextStream stream(tokenizer(), {});
  Progress progress;
  engine::Output output{.token = 'a',
                        .logprobs = {.logprob = -0.5f, .top = {{'a', -0.5f}}},
                        .prompt_logprobs = {{.token = 1}, {.token = 2}},
                        .embedding = {1, 2},
                        .finish = Finish::failed,
                        .error = "broken"};
  stream.on_output(output, progress);
  EXPECT_EQ(progress.tokens.at(0).token, 'a');
  EXPECT_EQ(progress.tokens.at(0).logprob, -0.5f);
  EXPECT_EQ(progress.tokens.at(0).top.size(), 1u);
  EXPECT_EQ(progress.prompt_logprobs.size(), 2u);
  EXPECT_EQ(progress.embedding.size(), 2u);
  EXPECT_EQ(progress.end.value().reason, EndReason::failed);
  EXPECT_EQ(progress.end->error, "broken");
}

TEST(TextStream, AnEmptyStopTextIsRefused) { EXPECT_THROW(TextStream(tokenizer(), {.stops = {""}}), CheckError); }

// Whatever tokens come, and however deliveries are cut, the parts put together are the text of the whole.
TEST(TextStream, PartsAddUp) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    TextStream stream(tokenizer(), {});
    std::vector<int32_t> ids;
    std::string text;
    for (int i = 0; i < 40; ++i) {
      ids.push_back(static_cast<int32_t>(random() % testing::kVocabulary));
      Progress part;
      stream.on_output({.token = ids.back(), .finish = i == 39 ? Finish::length : Finish::none, .generated = i + 1},
                       part);
      text += part.text;
    }
    EXPECT_EQ(text, tokenizer().decode(ids, true));
  }
}

TEST(EndError, TheCauseOfAFailureIsNotForTheCaller) {
  const auto failed = error_of({.reason = EndReason::failed, .error = "no such file: /models/secret"});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->status, 500);
  EXPECT_STREQ(failed->what(), kServerFailed);
}

TEST(EndError, WhatTheCallerCanChangeIsTold) {
  const auto refused = error_of({.reason = EndReason::refused, .error = "too slow a constraint"});
  const auto late = error_of({.reason = EndReason::timeout, .error = "it waited too long"});
  ASSERT_TRUE(refused && late);
  EXPECT_EQ(refused->status, 400);
  EXPECT_STREQ(refused->what(), "too slow a constraint");
  EXPECT_EQ(late->status, 503);
  EXPECT_STREQ(late->what(), "it waited too long");
  EXPECT_FALSE(error_of({.reason = EndReason::length}));
}

}  // namespace
}  // namespace quire::serve
