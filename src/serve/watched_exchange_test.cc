#include "serve/watched_exchange.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "serve/testing_exchange.h"

namespace quire::serve {
namespace {

using testing::TestingExchange;

struct Watched {
  explicit Watched(http::Headers headers = {})
      : exchange(testing::posted("/x", "")),
        call(WatchedExchange::watch(exchange, std::move(headers),
                                    [this](const Answered& one) { answers.push_back(one); })) {}

  std::shared_ptr<TestingExchange> exchange;
  std::vector<Answered> answers;
  std::shared_ptr<WatchedExchange> call;
};

TEST(WatchedExchange, ReportsAnAnswerOnce) {
  Watched watched(http::Headers{{"added", "1"}});
  watched.call->note([](Answered& so_far) { so_far.prompt_tokens = 3; });
  note(*watched.call, [](Answered& so_far) { so_far.generated_tokens += 5; });
  note(*watched.exchange, [](Answered&) { FAIL() << "that one is not watched"; });
  EXPECT_FALSE(watched.call->begun());
  watched.call->respond({.status = 201, .body = "b", .headers = {{"own", "2"}}});
  EXPECT_TRUE(watched.call->begun());
  EXPECT_EQ(watched.exchange->response().headers, (http::Headers{{"own", "2"}, {"added", "1"}}));
  EXPECT_THROW(watched.call->respond({}), CheckError);
  watched.call.reset();
  ASSERT_EQ(watched.answers.size(), 1u);
  const Answered& answered = watched.answers[0];
  EXPECT_EQ(answered.method + answered.path, "POST/x");
  EXPECT_EQ(answered.status, 201);
  EXPECT_EQ(answered.prompt_tokens, 3);
  EXPECT_EQ(answered.generated_tokens, 5);
  EXPECT_TRUE(answered.complete);
}

TEST(WatchedExchange, NamesWhatWasIgnored) {
  Watched one, stream;
  note(*one.call, [](Answered& so_far) { so_far.ignored = "store, user"; });
  one.call->respond({});
  EXPECT_EQ(one.exchange->response().headers, (http::Headers{{"x-quire-ignored", "store, user"}}));
  EXPECT_EQ(one.answers.at(0).ignored, "store, user");
  note(*stream.call, [](Answered& so_far) { so_far.ignored = "store"; });
  stream.call->start_stream({});
  EXPECT_EQ(stream.exchange->response().headers, (http::Headers{{"x-quire-ignored", "store"}}));
}

TEST(WatchedExchange, ReportsAStreamAtItsEnd) {
  Watched watched;
  watched.call->start_stream({.body = "a"});
  watched.call->write("b");
  EXPECT_TRUE(watched.answers.empty());
  watched.call->finish();
  ASSERT_EQ(watched.answers.size(), 1u);
  EXPECT_TRUE(watched.answers[0].complete);
  EXPECT_EQ(watched.exchange->body(), "ab");
}

TEST(WatchedExchange, ReportsWhenTheClientLeft) {
  Watched streaming, unanswered;
  streaming.call->start_stream({.body = {}});
  streaming.exchange->leave();
  streaming.call->finish();
  EXPECT_EQ(streaming.answers.at(0).status, 200);
  EXPECT_FALSE(streaming.answers.at(0).complete);
  EXPECT_TRUE(streaming.answers.at(0).client_left);
  unanswered.call.reset();
  EXPECT_FALSE(unanswered.answers.at(0).client_left);
  EXPECT_EQ(unanswered.answers.at(0).status, 499);
  EXPECT_FALSE(unanswered.answers.at(0).complete);
}

TEST(WatchedExchange, HoldsTasksBackUntilItsFunctionHasReturned) {
  Watched watched;
  std::string order;
  watched.call->post([&] { order += "1"; });
  watched.call->post([&] { order += "2"; });
  EXPECT_EQ(order, "");
  watched.call->post([&] { watched.call->post([&] { order += "4"; }); });
  watched.call->post([&] { order += "3"; });
  watched.call->release();
  EXPECT_EQ(order, "1234");
  watched.call->post([&] { order += "5"; });
  EXPECT_EQ(order, "12345");
}

TEST(WatchedExchange, ReportsWhyATaskFailed) {
  Watched watched;
  watched.call->release();
  EXPECT_THROW(watched.call->post([] { check(false, "no such thing"); }), CheckError);
  watched.call.reset();
  ASSERT_EQ(watched.answers.size(), 1u);
  EXPECT_EQ(watched.answers[0].status, 500);
  EXPECT_EQ(watched.answers[0].failure, "no such thing");
}

}  // namespace
}  // namespace quire::serve
