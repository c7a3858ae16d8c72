// /flush_cache, /abort_request and /health_generate.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "serve/api_error.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;
using testing::TestingExchange;
using testing::TinyService;

std::shared_ptr<TestingExchange> start(TinyService& tiny, const std::string& rid) {
  const json body = {{"text", "0123456789012345"},
                     {"rid", rid},
                     {"sampling_params", {{"max_new_tokens", nullptr}, {"ignore_eos", true}}}};
  auto exchange = testing::posted("/generate", body.dump());
  generate(exchange, tiny.service(), {});
  return exchange;
}

json aborted(TinyService& tiny, const std::string& body) {
  const auto exchange = testing::posted("/abort_request", body);
  abort_request(exchange, tiny.service());
  EXPECT_EQ(exchange->status(), 200);
  return json::parse(exchange->body()).at("aborted");
}

std::string type_of_end(const TestingExchange& exchange) {
  return json::parse(exchange.body()).at("meta_info").at("finish_reason").at("type");
}

TEST(SglangControl, AbortsByTheBeginningOfAName) {
  TinyService tiny({.loop = false});
  const auto first = start(tiny, "a-1"), second = start(tiny, "a-2"), third = start(tiny, "b-1");
  tiny.engine().step();
  EXPECT_EQ(aborted(tiny, R"({"rid": "c"})"), 0);
  EXPECT_EQ(aborted(tiny, R"({"rid": "a"})"), 2);
  tiny.engine().step();
  EXPECT_EQ(type_of_end(*first), "abort");
  EXPECT_EQ(type_of_end(*second), "abort");
  EXPECT_FALSE(third->begun());
  EXPECT_EQ(aborted(tiny, R"({"abort_all": true})"), 1);
  tiny.engine().step();
  EXPECT_EQ(type_of_end(*third), "abort");
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(SglangControl, AnEmptyNameAbortsNobody) {
  TinyService tiny({.loop = false});
  for (const char* body : {"{}", R"({"rid": ""})", R"({"rid": "", "abort_all": false})", R"({"rid": "a", "x": 1})"})
    EXPECT_THROW(aborted(tiny, body), ApiError) << body;
}

TEST(SglangControl, FlushingDropsWhatNobodyUses) {
  TinyService tiny;
  ASSERT_TRUE(start(tiny, "a")->wait_until_ended());
  ASSERT_TRUE(tiny.wait_until_idle());
  ASSERT_GT(tiny.engine().stats().cached_pages, 0);
  const auto exchange = testing::posted("/flush_cache", "");
  flush_cache(exchange, tiny.service());
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->body(), "Cache flushed.\n");
  for (int i = 0; i < 1000 && tiny.engine().stats().cached_pages > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(tiny.engine().stats().cached_pages, 0);
}

TEST(SglangControl, AnIdleEngineProvesItsHealthWithAToken) {
  TinyService tiny;
  const auto exchange = testing::got("/health_generate");
  health_generate(exchange, tiny.service());
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200);
  ASSERT_TRUE(tiny.wait_until_idle());
  EXPECT_EQ(tiny.engine().stats().generated_tokens, 1);
}

TEST(SglangControl, ABusyEngineProvesItsHealthWithAStep) {
  TinyService tiny({.loop = false});
  const auto busy = start(tiny, "a");
  tiny.engine().step();
  const auto exchange = testing::got("/health_generate");
  health_generate(exchange, tiny.service());
  EXPECT_EQ(tiny.service().jobs(), 1) << "a busy engine got another job";
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(exchange->begun()) << "nothing was computed yet";
  tiny.engine().step();
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200);
}

TEST(SglangControl, AnEngineThatComputesNothingIsNotHealthy) {
  TinyService tiny({.loop = false});
  const auto exchange = testing::got("/health_generate");
  health_generate(exchange, tiny.service(), std::chrono::milliseconds(150));
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 503);
}

TEST(SglangControl, ADrainingServerIsNotHealthy) {
  TinyService tiny;
  tiny.service().drain();
  try {
    health_generate(testing::got("/health_generate"), tiny.service());
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 503);
  }
}

}  // namespace
}  // namespace quire::serve
