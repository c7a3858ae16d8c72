#include "serve/openai_answer.h"

#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::TestingExchange;

// An answer whose choices are nothing but their text.
class PlainAnswer final : public OpenAiAnswer {
 public:
  using OpenAiAnswer::on_progress;
  PlainAnswer(std::shared_ptr<http::Exchange> exchange, Terms terms)
      : OpenAiAnswer(std::move(exchange), std::move(terms)) {}

 private:
  void take(size_t choice, Progress& progress, std::string& part) override {
    if (terms().stream && !progress.text.empty())
      chunks().append(part, choice, "\"text\":" + ordered_json(progress.text).dump());
    texts_ += progress.text;
  }
  std::string choices() override { return ordered_json(texts_).dump(); }

  std::string texts_;
};

struct Answered {
  explicit Answered(OpenAiAnswer::Terms terms)
      : exchange(testing::posted("/v1", "")), answer(std::make_shared<PlainAnswer>(exchange, std::move(terms))) {}
  std::shared_ptr<TestingExchange> exchange;
  std::shared_ptr<PlainAnswer> answer;
};

const AnswerHead kHead{"id-1", "answer", "tiny", 7};
const End kStopped{EndReason::stop};

TEST(OpenAiAnswer, InOnePieceWhenAllHaveEnded) {
  Answered call({.head = kHead, .choices = 4, .choices_of_a_prompt = 2});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(call.exchange->begun());
    call.answer->on_progress(i, {.text = "a"});
    call.answer->on_progress(i,
                             {.text = "b", .end = kStopped, .prompt_tokens = 10, .cached_tokens = 3, .generated = 2});
  }
  EXPECT_EQ(ordered_json::parse(call.exchange->body()), ordered_json::parse(R"({"id": "id-1", "object": "answer",
      "created": 7, "model": "tiny", "choices": "abababab", "usage": {"prompt_tokens": 20, "completion_tokens": 8,
      "total_tokens": 28, "prompt_tokens_details": {"cached_tokens": 6}}})"));
}

TEST(OpenAiAnswer, AStreamBeginsWithItsFirstProgress) {
  Answered call({.head = kHead, .stream = true, .stream_usage = true, .choices = 2, .choices_of_a_prompt = 2});
  EXPECT_FALSE(call.exchange->begun());
  call.answer->on_progress(1, {});
  EXPECT_TRUE(call.exchange->streams());
  EXPECT_EQ(call.exchange->body(), "");
  call.answer->on_progress(1, {.text = "x", .end = kStopped, .prompt_tokens = 5, .generated = 1});
  call.answer->on_progress(0, {.text = "y", .prompt_tokens = 5, .generated = 1});
  EXPECT_FALSE(call.exchange->ended());
  call.answer->on_progress(0, {.end = kStopped, .prompt_tokens = 5, .cached_tokens = 4, .generated = 2});
  EXPECT_TRUE(call.exchange->ended());
  const std::vector<ordered_json> events = testing::events_of(call.exchange->body());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["index"], 1);
  EXPECT_TRUE(events[0].at("usage").is_null());
  EXPECT_EQ(events[2]["usage"], ordered_json::parse(R"({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
      "prompt_tokens_details": {"cached_tokens": 4}})"));
}

TEST(OpenAiAnswer, AFailureBeforeAnythingWasSentHasAStatus) {
  for (const bool stream : {false, true}) {
    Answered call({.head = kHead, .stream = stream, .choices = 2});
    call.answer->on_progress(0, {.end = End{EndReason::failed, {}, "broken"}});
    EXPECT_EQ(call.exchange->status(), 500);
    EXPECT_FALSE(call.exchange->streams());
    const ordered_json body = ordered_json::parse(call.exchange->body());
    EXPECT_EQ(body["error"]["message"], kServerFailed);
    call.answer->on_progress(1, {.text = "late", .end = kStopped});  // is not told any more
  }
}

TEST(OpenAiAnswer, AFailureInAStreamIsItsLastEvent) {
  Answered call({.head = kHead, .stream = true, .stream_usage = true, .choices = 2});
  call.answer->on_progress(0, {.text = "a"});
  call.answer->on_progress(1, {.end = End{EndReason::failed, {}, "broken"}});
  EXPECT_TRUE(call.exchange->ended());
  const std::vector<ordered_json> events = testing::events_of(call.exchange->body());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1]["error"]["message"], kServerFailed);
  EXPECT_EQ(events[1]["error"]["type"], "server_error");
  call.answer->on_progress(0, {.text = "late", .end = kStopped});
}

TEST(OpenAiAnswer, WaitingTooLongIsToldRunningTooLongIsAnAnswer) {
  Answered waited({.head = kHead, .stream = true});
  waited.answer->on_progress(0, {.end = End{EndReason::timeout, {}, "busy"}});
  EXPECT_EQ(waited.exchange->status(), 503);

  Answered ran({.head = kHead});
  ran.answer->on_progress(0, {.text = "some", .end = End{EndReason::timeout}});
  EXPECT_EQ(ran.exchange->status(), 200);
  EXPECT_EQ(finish_reason(End{EndReason::timeout}), "abort");
}

}  // namespace
}  // namespace quire::serve
