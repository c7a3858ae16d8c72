// /flush_cache, /abort_request and /health_generate.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/openai.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;
using testing::TestingExchange;
using testing::TinyService;

std::shared_ptr<TestingExchange> start(TinyService& tiny, const std::string& rid, const Caller& caller = {}) {
  const json body = {{"text", "0123456789012345"},
                     {"rid", rid},
                     {"sampling_params", {{"max_new_tokens", nullptr}, {"ignore_eos", true}}}};
  auto exchange = testing::posted("/generate", body.dump());
  generate(exchange, tiny.service(), caller);
  return exchange;
}

json aborted(TinyService& tiny, const std::string& body, const Caller& caller = {}) {
  const auto exchange = testing::posted("/abort_request", body);
  abort_request(exchange, tiny.service(), caller);
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

TEST(SglangControl, JobsBelongToTheirKey) {
  TinyService tiny({.loop = false});
  const Caller one{.key = 0, .may_manage = false}, two{.key = 1, .may_manage = false}, admin;
  const auto first = start(tiny, "a-1", one), second = start(tiny, "a-2", two);
  const auto embedded = testing::posted("/v1/embeddings", R"({"input": "hi", "rid": "a-3"})");
  embeddings(embedded, tiny.service(), one);
  const auto completed = testing::posted("/v1/completions", R"({"prompt": "hi", "rid": "a-4"})");
  completions(completed, tiny.service(), two);
  EXPECT_EQ(aborted(tiny, R"({"rid": "a"})", one), 2);
  tiny.engine().step();
  EXPECT_EQ(type_of_end(*first), "abort");
  EXPECT_TRUE(embedded->ended());
  EXPECT_FALSE(second->begun() || completed->begun());
  EXPECT_EQ(aborted(tiny, R"({"rid": "a"})", one), 0);
  EXPECT_EQ(aborted(tiny, R"({"rid": "a"})", admin), 2);
  tiny.engine().step();
  EXPECT_EQ(type_of_end(*second), "abort");
  EXPECT_TRUE(completed->ended());
}

// Where only the admin has a key, everybody else's jobs belong to nobody: a guess at a name must not reach them.
TEST(SglangControl, WithoutAKeyACallIsNamedInFull) {
  TinyService tiny({.loop = false});
  const Caller anyone{.may_manage = false};
  const auto first = start(tiny, "a-1", anyone), second = start(tiny, "a-10", anyone);
  const auto several = testing::posted("/v1/completions", R"({"prompt": ["x", "y"], "rid": "b"})");
  completions(several, tiny.service(), anyone);
  EXPECT_EQ(aborted(tiny, R"({"rid": "a"})", anyone), 0);
  EXPECT_EQ(aborted(tiny, R"({"rid": "a-1"})", anyone), 1);
  EXPECT_EQ(aborted(tiny, R"({"rid": "b"})", anyone), 2);
  tiny.engine().step();
  EXPECT_EQ(type_of_end(*first), "abort");
  EXPECT_TRUE(several->ended());
  EXPECT_FALSE(second->begun());
}

TEST(SglangControl, WhatConcernsAllIsForThoseWhoManage) {
  TinyService tiny({.loop = false});
  const Caller one{.key = 0, .may_manage = false};
  const auto status = [&](const auto& call) {
    try {
      call();
      return 200;
    } catch (const ApiError& error) {
      EXPECT_NE(std::string(error.what()).find("--admin-api-key"), std::string::npos) << error.what();
      return error.status;
    }
  };
  EXPECT_EQ(status([&] { aborted(tiny, R"({"abort_all": true})", one); }), 403);
  EXPECT_EQ(status([&] { flush_cache(testing::posted("/flush_cache", ""), tiny.service(), one); }), 403);
  const auto chat = [&](const char* priority) {
    const std::string body =
        cat(R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "priority": )", priority, "}");
    return status([&] { chat_completions(testing::posted("/v1", body), tiny.service(), one); });
  };
  const auto text = [&](const char* priority) {
    const std::string body = cat(R"({"text": "a", "priority": )", priority, "}");
    return status([&] { generate(testing::posted("/generate", body), tiny.service(), one); });
  };
  EXPECT_EQ(chat("1"), 403);
  EXPECT_EQ(text("1"), 403);
  EXPECT_EQ(chat("-1"), 200) << "who wants to come later may";
  EXPECT_EQ(text("0"), 200);
}

TEST(SglangControl, AnEmptyNameAbortsNobody) {
  TinyService tiny({.loop = false});
  for (const char* body : {"{}", R"({"rid": ""})", R"({"rid": "", "abort_all": false})"})
    EXPECT_THROW(aborted(tiny, body), ApiError) << body;
}

TEST(SglangControl, FlushingDropsWhatNobodyUses) {
  TinyService tiny;
  ASSERT_TRUE(start(tiny, "a")->wait_until_ended());
  ASSERT_TRUE(tiny.wait_until_idle());
  ASSERT_GT(tiny.engine().stats().cached_pages, 0);
  const auto exchange = testing::posted("/flush_cache", "");
  flush_cache(exchange, tiny.service(), {});
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
