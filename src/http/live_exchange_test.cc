#include "http/live_exchange.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/expect_refused.h"

namespace quire::http {
namespace {

class Sink final : public AnswerSink {
 public:
  std::string sent;
  int finished = 0, cuts = 0;
  bool keep_alive = false, last = false;
  std::vector<std::function<void()>> posted;

  void send(std::string bytes) override { sent += bytes; }
  void finish(bool keep) override {
    ++finished;
    keep_alive = keep;
  }
  void cut() override { ++cuts; }
  bool last_answer() const override { return last; }
  void post(std::function<void()> task) override { posted.push_back(std::move(task)); }
  void run_posted() {
    for (const auto& task : std::exchange(posted, {})) task();
  }
  std::string body() const { return sent.substr(sent.find("\r\n\r\n") + 4); }
};

struct Case {
  std::shared_ptr<Sink> sink = std::make_shared<Sink>();
  std::shared_ptr<LiveExchange> exchange;
  explicit Case(const AnswerTerms& terms = {})
      : exchange(std::make_shared<LiveExchange>(sink, Request{.path = "/p"}, terms)) {}
};

TEST(LiveExchange, Responds) {
  Case c;
  EXPECT_EQ(c.exchange->request().path, "/p");
  c.exchange->respond({.body = "hello"});
  EXPECT_EQ(c.sink->body(), "hello");
  EXPECT_EQ(c.sink->finished, 1);
  EXPECT_TRUE(c.sink->keep_alive);
}

TEST(LiveExchange, StreamsInChunks) {
  Case c;
  c.exchange->start_stream({.body = "a"});
  c.exchange->write("bcd");
  c.exchange->write("");  // would end the stream as a chunk
  EXPECT_EQ(c.sink->finished, 0);
  c.exchange->finish();
  EXPECT_EQ(c.sink->body(), "1\r\na\r\n3\r\nbcd\r\n0\r\n\r\n");
  EXPECT_EQ(c.sink->finished, 1);
}

TEST(LiveExchange, StreamsToOldClientsUntilTheEnd) {
  Case c({.http_1_0 = true, .keep_alive = true});
  c.exchange->start_stream({});
  c.exchange->write("abc");
  c.exchange->finish();
  EXPECT_EQ(c.sink->body(), "abc");
  EXPECT_FALSE(c.sink->keep_alive);
}

TEST(LiveExchange, AnswersHeadWithoutBody) {
  Case c({.without_body = true});
  c.exchange->respond({.body = "hello"});
  EXPECT_NE(c.sink->sent.find("Content-Length: 5"), std::string::npos);
  EXPECT_EQ(c.sink->body(), "");
  Case stream({.without_body = true});
  stream.exchange->start_stream({.body = "a"});
  stream.exchange->write("b");
  stream.exchange->finish();
  EXPECT_EQ(stream.sink->body(), "");
}

TEST(LiveExchange, SaysWhenTheConnectionEnds) {
  Case c;
  c.sink->last = true;
  c.exchange->respond({});
  EXPECT_NE(c.sink->sent.find("Connection: close"), std::string::npos);
  EXPECT_FALSE(c.sink->keep_alive);
}

TEST(LiveExchange, RefusesToAnswerTwice) {
  Case c;
  expect_refused([&] { c.exchange->write("x"); }, "outside of a stream");
  expect_refused([&] { c.exchange->finish(); }, "does not run");
  c.exchange->respond({});
  expect_refused([&] { c.exchange->respond({}); }, "twice");
  expect_refused([&] { c.exchange->start_stream({}); }, "twice");
  expect_refused([&] { c.exchange->write("x"); }, "outside of a stream");
  EXPECT_EQ(c.sink->finished, 1);
}

TEST(LiveExchange, TellsInOrderThatTheClientLeft) {
  Case c;
  std::string order;
  c.exchange->on_gone([&] { order += "a"; });
  c.exchange->on_gone([&] { order += "b"; });
  c.exchange->client_left();
  c.exchange->client_left();
  EXPECT_EQ(order, "ab");
  c.exchange->on_gone([&] { order += "c"; });  // on an io thread, so not in this call
  EXPECT_EQ(order, "ab");
  c.sink->run_posted();
  EXPECT_EQ(order, "abc");
}

TEST(LiveExchange, SaysNothingAfterTheAnswer) {
  Case c;
  auto token = std::make_shared<int>();
  bool gone = false;
  c.exchange->on_gone([&gone, token] { gone = true; });
  c.exchange->respond({});
  EXPECT_EQ(token.use_count(), 1) << "the action is kept";
  c.exchange->client_left();
  c.exchange->on_gone([&] { gone = true; });
  c.sink->run_posted();
  EXPECT_FALSE(gone);
}

TEST(LiveExchange, AnUnansweredOneIsAnsweredWhenItIsLetGo) {
  Case c;
  c.exchange.reset();
  EXPECT_TRUE(c.sink->sent.starts_with("HTTP/1.1 500 ")) << c.sink->sent;
  EXPECT_FALSE(c.sink->keep_alive);
  Case stream;
  stream.exchange->start_stream({});
  stream.exchange.reset();
  EXPECT_EQ(stream.sink->cuts, 1);
  EXPECT_EQ(stream.sink->finished, 0);
}

TEST(LiveExchange, ATaskThatThrowsEndsItsExchangeOnly) {
  Case c;
  bool gone = false;
  c.exchange->on_gone([&] { gone = true; });
  c.exchange->post([] { throw std::runtime_error("oh"); });
  c.sink->run_posted();
  EXPECT_TRUE(c.sink->sent.starts_with("HTTP/1.1 500 "));
  EXPECT_TRUE(gone) << "what works for this exchange should stop";
}

}  // namespace
}  // namespace quire::http
