#include "serve/event_stream.h"

#include <gtest/gtest.h>

#include <thread>

#include "serve/openai_testing.h"
#include "serve/sglang.h"

namespace quire::serve {
namespace {

using namespace std::chrono_literals;
using testing::TestingExchange;
using testing::TinyService;

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "ignore_eos": true, "stream": true})";
constexpr const char* kGenerate =
    R"({"text": "a", "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}, "stream": true})";

using Interfaces = std::pair<testing::Handler, const char*>;

class Heartbeat : public ::testing::TestWithParam<Interfaces> {
 protected:
  std::shared_ptr<TestingExchange> start(TinyService& tiny) {
    const auto exchange = testing::posted("/", GetParam().second);
    GetParam().first(exchange, tiny.service(), {});
    return exchange;
  }
  static void step_to_the_end(TinyService& tiny) {
    while (tiny.engine().step()) {
    }
  }
  // What comes after the signs of life.
  static std::string rest_of(const TestingExchange& exchange) {
    std::string rest = exchange.body();
    while (rest.starts_with(kHeartbeat)) rest.erase(0, kHeartbeat.size());
    return rest;
  }
};

TEST_P(Heartbeat, ComesUntilTheFirstTokenDoes) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.heartbeat = 2ms; }, .loop = false});
  const auto exchange = start(tiny);
  ASSERT_TRUE(exchange->wait_for_parts(2));
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->response().content_type, "text/event-stream");
  tiny.engine().step();
  std::this_thread::sleep_for(10ms);
  step_to_the_end(tiny);
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->body().rfind(kHeartbeat), exchange->body().find("data: ") - kHeartbeat.size())
      << "tokens are signs enough";
  EXPECT_FALSE(testing::events_of(rest_of(*exchange)).empty());
}

TEST_P(Heartbeat, ThenAWaitThatWasTooLongIsAnEvent) {
  const auto change = [](ServiceOptions& options) {
    options.heartbeat = 2ms;
    options.queue_time = 20ms;
  };
  TinyService tiny({.change = change, .loop = false});
  const auto exchange = start(tiny);
  ASSERT_TRUE(exchange->wait_for_parts(1));
  std::this_thread::sleep_for(30ms);
  step_to_the_end(tiny);
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200);
  const auto events = testing::events_of(rest_of(*exchange));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0]["error"]["message"].get<std::string>().find("waited too long"), std::string::npos);
}

TEST_P(Heartbeat, BeforeItTheSameIsAStatus) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.queue_time = 2ms; }, .loop = false});
  const auto exchange = start(tiny);
  EXPECT_FALSE(exchange->begun());
  std::this_thread::sleep_for(10ms);
  step_to_the_end(tiny);
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 503);
}

TEST_P(Heartbeat, EndsWithItsStream) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.heartbeat = 1ms; }, .loop = false});
  auto exchange = start(tiny);
  const std::weak_ptr<TestingExchange> weak = exchange;
  ASSERT_TRUE(exchange->wait_for_parts(1));
  exchange->leave();
  exchange.reset();
  step_to_the_end(tiny);
  for (int i = 0; i < 1000 && !weak.expired(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(weak.expired());
}

INSTANTIATE_TEST_SUITE_P(Interfaces, Heartbeat,
                         ::testing::Values(Interfaces(chat_completions, kChat), Interfaces(generate, kGenerate)));

}  // namespace
}  // namespace quire::serve
