#include "serve/routes.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::TestingExchange;
using testing::TinyService;

http::Request request_of(std::string method, std::string path, std::string body = {}, http::Headers headers = {}) {
  http::Request request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.body = std::move(body);
  request.headers = std::move(headers);
  return request;
}

http::Response answer_to(Routes& routes, http::Request request) {
  const auto exchange = std::make_shared<TestingExchange>(std::move(request));
  routes.handle(exchange);
  EXPECT_TRUE(exchange->wait_until_ended()) << exchange->request().path;
  return exchange->response();
}

http::Response get(Routes& routes, const std::string& path, http::Headers headers = {}) {
  return answer_to(routes, request_of("GET", path, "", std::move(headers)));
}

std::string header(const http::Response& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

std::string message(const http::Response& response) {
  return ordered_json::parse(response.body)["error"]["message"].get<std::string>();
}

// Its answer waits until the test lets it go, on the thread that gives it.
class HeldExchange : public TestingExchange {
 public:
  using TestingExchange::TestingExchange;
  void respond(http::Response response) override {
    asked_.set_value();
    may_respond_.get_future().wait();
    TestingExchange::respond(std::move(response));
  }
  void wait_until_asked() { asked_.get_future().wait(); }
  void let_go() { may_respond_.set_value(); }

 private:
  std::promise<void> asked_, may_respond_;
};

constexpr const char* kOneToken = R"({"text": "a", "sampling_params": {"max_new_tokens": 1}})";

TEST(Routes, WhileTheModelLoadsOnlyThePageIsThere) {
  Routes routes({});
  EXPECT_EQ(get(routes, "/").status, 200);
  for (const char* path : {"/health", "/health_generate", "/metrics", "/v1/models", "/server_info"}) {
    const http::Response response = get(routes, path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(message(response), "the model is still being loaded") << path;
    EXPECT_EQ(header(response, "retry-after"), "1") << path;
  }
  EXPECT_EQ(answer_to(routes, request_of("POST", "/generate", kOneToken)).status, 503);
}

TEST(Routes, HealthFollowsTheService) {
  TinyService tiny;
  Routes routes({});
  routes.set_service(&tiny.service());
  EXPECT_EQ(get(routes, "/health").status, 200);
  tiny.service().drain();
  const http::Response response = get(routes, "/health");
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("draining"), std::string::npos);
  EXPECT_EQ(answer_to(routes, request_of("POST", "/generate", kOneToken)).status, 503);
}

TEST(Routes, HealthTellsOfABrokenEngine) {
  TinyService tiny;
  Routes routes({});
  routes.set_service(&tiny.service());
  tiny.engine().stop();
  const http::Response response = get(routes, "/health");
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("broken"), std::string::npos);
}

TEST(Routes, EveryPathHasItsFunction) {
  TinyService tiny;
  Routes routes({});
  routes.set_service(&tiny.service());
  for (const char* path : {"/health", "/health_generate", "/metrics", "/v1/models", "/v1/models/tiny", "/model_info",
                           "/get_model_info", "/server_info", "/get_server_info", "/get_load", "/v1/loads"})
    EXPECT_EQ(get(routes, path).status, 200) << path;
  const std::pair<const char*, const char*> posts[] = {
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})"},
      {"/v1/completions", R"({"prompt": "a", "max_tokens": 1})"},
      {"/v1/embeddings", R"({"input": "a"})"},
      {"/generate", kOneToken},
      {"/tokenize", R"({"prompt": "a"})"},
      {"/v1/tokenize", R"({"prompt": "a"})"},
      {"/detokenize", R"({"tokens": [97]})"},
      {"/v1/detokenize", R"({"tokens": [97]})"},
      {"/flush_cache", ""},
      {"/abort_request", R"({"rid": "x"})"},
  };
  for (const auto& [path, body] : posts) {
    const http::Response response = answer_to(routes, request_of("POST", path, body));
    EXPECT_EQ(response.status, 200) << path << ": " << response.body;
  }
  EXPECT_TRUE(tiny.wait_until_idle());
}

TEST(Routes, WhatIsNotThereIsSaidInTheCallersForm) {
  Routes routes({});
  const http::Response sglang = get(routes, "/nothing\n"), openai = get(routes, "/v1/nothing");
  EXPECT_EQ(sglang.status, 404);
  EXPECT_TRUE(message(sglang).starts_with("there is no \"/nothing\\n\" here")) << message(sglang);
  EXPECT_EQ(ordered_json::parse(sglang.body)["error"].size(), 1u);
  EXPECT_EQ(openai.status, 404);
  EXPECT_EQ(ordered_json::parse(openai.body)["error"]["type"], "invalid_request_error");
}

TEST(Routes, AWrongMethodIsToldTheRightOnes) {
  Routes routes({});
  const std::pair<const char*, const char*> allowed[] = {
      {"/", "GET, HEAD"}, {"/health", "GET, HEAD"}, {"/generate", "POST, PUT"}, {"/v1/chat/completions", "POST"}};
  for (const auto& [path, methods] : allowed) {
    const http::Response response = answer_to(routes, request_of("DELETE", path));
    EXPECT_EQ(response.status, 405) << path;
    EXPECT_EQ(header(response, "allow"), methods) << path;
  }
  EXPECT_EQ(answer_to(routes, request_of("OPTIONS", "/generate")).status, 405);
}

TEST(Routes, ErrorsHaveTheInterfacesForm) {
  TinyService tiny;
  Routes routes({});
  routes.set_service(&tiny.service());
  const http::Response openai = answer_to(routes, request_of("POST", "/v1/completions", R"({"prompt": 1})"));
  EXPECT_EQ(openai.status, 400);
  EXPECT_EQ(ordered_json::parse(openai.body)["error"]["param"], "prompt");
  const http::Response sglang = answer_to(routes, request_of("POST", "/generate", "{}"));
  EXPECT_EQ(sglang.status, 400);
  EXPECT_EQ(ordered_json::parse(sglang.body)["error"].size(), 1u);
}

struct Logged {
  OnAnswered listener() {
    return [this](const Answered& answered) {
      const std::lock_guard lock(mutex);
      answers.push_back(answered);
      changed.notify_all();
    };
  }
  std::vector<Answered> wait_for(size_t count) {  // they are told after the client was
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(60), [&] { return answers.size() >= count; });
    return answers;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Answered> answers;
};

TEST(Routes, FaultsOfTheServerAreItsOwn) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.tool_call_parser = "no such parser"; }});
  Logged logged;
  Routes routes({.on_answered = logged.listener()});
  routes.set_service(&tiny.service());
  const http::Response response = answer_to(routes, request_of("POST", "/v1/chat/completions",
                                                               R"({"messages": [{"role": "user", "content": "a"}],
                             "tools": [{"type": "function", "function": {"name": "f"}}]})"));
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(message(response), "the server failed at this request") << "what failed is not the caller's business";
  const std::vector<Answered> answers = logged.wait_for(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].failure.find("no such parser"), std::string::npos) << "but that of the log";
}

// What rooms below the interfaces refuse, each by a sentence of its own.
TEST(Routes, FaultsOfTheCallerAreTheirs) {
  TinyService tiny({.change = [](ServiceOptions& options) {
    options.chat_template = "{{ raise_exception('roles must take turns') }}";
  }});
  Routes routes({});
  routes.set_service(&tiny.service());
  const struct {
    const char *path, *body, *says;
  } faults[] = {
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})", "roles must take turns"},
      {"/v1/completions", R"({"prompt": "a", "regex": "("})", "regex: "},
      {"/v1/completions", R"({"prompt": "a", "stop": ""})", "stop: a stop text is empty"},
      {"/v1/completions", R"({"prompt": "a", "logit_bias": {"99999": 1}})", "99999"},
      {"/generate", R"({"text": "a", "sampling_params": {"json_schema": "{"}})", "sampling_params.json_schema: "},
      {"/generate", R"({"text": "a", "sampling_params": {"stop": ""}})", "sampling_params.stop: a stop text is empty"},
      {"/generate", R"({"input_ids": [99999]})", "token 99999"},
      {"/generate", R"({"text": "a", "return_logprob": true, "token_ids_logprob": [99999]})", "token 99999"},
      {"/detokenize", R"({"tokens": [99999]})", "token 99999"},
  };
  for (const auto& [path, body, says] : faults) {
    const http::Response response = answer_to(routes, request_of("POST", path, body));
    EXPECT_EQ(response.status, 400) << path << body;
    EXPECT_NE(message(response).find(says), std::string::npos) << message(response);
  }
}

class Keys : public ::testing::Test {
 protected:
  Keys() { routes_.set_service(&tiny_.service()); }
  int status(const std::string& path, const std::string& key) {
    return get(routes_, path, key.empty() ? http::Headers() : http::Headers{{"authorization", "Bearer " + key}}).status;
  }

  TinyService tiny_;
  Routes routes_{{.keys = {{"key one", ""}, {"key two", "salt"}}, .metrics_key = "for metrics"}};
};

TEST_F(Keys, AreAskedForWhereTheyMatter) {
  for (const char* path : {"/", "/health", "/health_generate"}) EXPECT_EQ(status(path, ""), 200) << path;
  for (const char* path : {"/v1/models", "/v1/models/tiny", "/model_info", "/get_model_info", "/server_info",
                           "/get_server_info", "/get_load", "/v1/loads"}) {
    EXPECT_EQ(status(path, ""), 401) << path;
    EXPECT_EQ(status(path, "key three"), 401) << path;
    EXPECT_EQ(status(path, "for metrics"), 401) << path;
    EXPECT_EQ(status(path, "key one"), 200) << path;
    EXPECT_EQ(status(path, "key two"), 200) << path;
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate", "/tokenize",
                           "/v1/tokenize", "/detokenize", "/v1/detokenize", "/flush_cache", "/abort_request"})
    EXPECT_EQ(answer_to(routes_, request_of("POST", path, "{}")).status, 401) << path;
}

TEST_F(Keys, OfSeveralNoneManagesTheServer) {
  const auto flush = [](Routes& routes, const std::string& key) {
    return answer_to(routes, request_of("POST", "/flush_cache", "", {{"authorization", "Bearer " + key}})).status;
  };
  EXPECT_EQ(flush(routes_, "key one"), 403);
  Routes managed({.keys = {{"key one"}}, .admin_key = "admin"}), alone({.keys = {{"key one"}}}), open({});
  for (Routes* routes : {&managed, &alone, &open}) routes->set_service(&tiny_.service());
  EXPECT_EQ(flush(managed, "key one"), 403);
  EXPECT_EQ(flush(managed, "admin"), 200);
  EXPECT_EQ(flush(managed, "nobody"), 401);
  EXPECT_EQ(get(managed, "/v1/models", {{"authorization", "Bearer admin"}}).status, 200) << "it is a key like others";
  EXPECT_EQ(flush(alone, "key one"), 200);
  EXPECT_EQ(flush(open, ""), 200);
}

TEST_F(Keys, MetricsMayHaveTheirOwn) {
  EXPECT_EQ(status("/metrics", ""), 401);
  EXPECT_EQ(status("/metrics", "key one"), 401);
  EXPECT_EQ(status("/metrics", "for metrics"), 200);
}

TEST_F(Keys, ARefusalSaysWhatIsMissing) {
  const http::Response response = get(routes_, "/v1/models");
  const ordered_json error = ordered_json::parse(response.body)["error"];
  EXPECT_EQ(error["type"], "authentication_error");
  EXPECT_EQ(error["code"], "invalid_api_key");
  EXPECT_EQ(header(response, "www-authenticate"), "Bearer");
}

TEST_F(Keys, OnesSaltKeepsPrefixesApart) {
  const std::string body =
      cat(R"({"text": ")", std::string(64, 'a'), R"(", "sampling_params": {"max_new_tokens": 1}})");
  const auto cached = [&](const std::string& key) {
    const http::Response response =
        answer_to(routes_, request_of("POST", "/generate", body, {{"authorization", "Bearer " + key}}));
    return ordered_json::parse(response.body)["meta_info"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("key one"), 0);
  EXPECT_GT(cached("key one"), 0);
  EXPECT_EQ(cached("key two"), 0);
  EXPECT_GT(cached("key two"), 0);
}

TEST(Routes, OtherOriginsOnlyWhenAllowed) {
  const http::Headers from{{"origin", "https://chat.example"}};
  Routes closed({});
  EXPECT_EQ(get(closed, "/", from).status, 403);
  EXPECT_EQ(header(get(closed, "/", from), "access-control-allow-origin"), "");
  EXPECT_EQ(answer_to(closed, request_of("OPTIONS", "/generate", "", from)).status, 403);

  Routes one({.keys = {{"key"}}, .allow_origins = {"https://chat.example"}}), all({.allow_origins = {"*"}});
  EXPECT_EQ(header(get(one, "/", from), "access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(get(one, "/", {{"origin", "https://other.example"}}).status, 403);
  EXPECT_EQ(header(get(all, "/health", from), "access-control-allow-origin"), "*") << "errors, too";
  const http::Response preflight = answer_to(one, request_of("OPTIONS", "/generate", "", from));
  EXPECT_EQ(preflight.status, 204) << "without a key: browsers send none";
  EXPECT_EQ(header(preflight, "access-control-allow-origin"), "https://chat.example");
  EXPECT_NE(header(preflight, "access-control-allow-headers").find("authorization"), std::string::npos);
}

TEST(Routes, OnLoopbackForeignHostsAreRefused) {
  Routes local({.host = "127.0.0.1"});
  EXPECT_EQ(get(local, "/", {{"host", "localhost:30000"}}).status, 200);
  EXPECT_EQ(get(local, "/", {{"host", "evil.example:30000"}}).status, 403);
}

TEST(Routes, WhatTheHeadTellsIsJudgedBeforeTheBody) {
  const Routes routes({.keys = {{"key"}}, .metrics_key = "other", .host = "127.0.0.1"});
  const http::Headers key{{"authorization", "Bearer key"}, {"content-length", "9"}};
  const auto judged = [&](const char* method, const char* path, http::Headers headers) {
    return routes.judge(request_of(method, path, "", std::move(headers)));
  };
  EXPECT_EQ(judged("POST", "/v1/chat/completions", key), SIZE_MAX) << "the server's own limit";
  EXPECT_EQ(judged("POST", "/tokenize", key), size_t{2} << 20);
  EXPECT_EQ(judged("POST", "/abort_request", key), size_t{64} << 10);
  EXPECT_EQ(judged("POST", "/flush_cache", key), size_t{64} << 10);
  EXPECT_FALSE(judged("POST", "/nothing", key));
  EXPECT_FALSE(judged("POST", "/health", key));
  EXPECT_FALSE(judged("GET", "/flush_cache", key)) << "state changes by POST alone";
  EXPECT_FALSE(judged("POST", "/v1/chat/completions", {{"content-length", "9"}})) << "no key";
  EXPECT_FALSE(judged("POST", "/v1/chat/completions", {{"authorization", "Bearer other"}})) << "a wrong one";
  for (const auto& more : {std::pair("origin", "https://evil.example"), std::pair("host", "evil.example"),
                           std::pair("content-type", "text/plain")}) {
    http::Headers headers = key;
    headers.emplace_back(more);
    EXPECT_FALSE(judged("POST", "/v1/chat/completions", headers)) << more.first;
    EXPECT_GE(answer_to(const_cast<Routes&>(routes), request_of("POST", "/v1/chat/completions", "", headers)).status,
              400);
  }
}

TEST(Routes, FormsAreRefusedWithAHint) {
  Routes routes({});
  const http::Response response =
      answer_to(routes, request_of("POST", "/generate", kOneToken,
                                   {{"content-type", "application/x-www-form-urlencoded"}, {"content-length", "9"}}));
  EXPECT_EQ(response.status, 415);
  EXPECT_NE(message(response).find("-H 'Content-Type: application/json'"), std::string::npos) << message(response);
}

// One caller's heavy calls hold all of its lane's threads; a light one is answered.
TEST(Routes, HeavyCallsDoNotHoldUpLightOnes) {
  TinyService tiny;
  Routes routes({.workers = 1});
  routes.set_service(&tiny.service());
  const auto heavy = std::make_shared<HeldExchange>(
      request_of("POST", "/tokenize", cat(R"({"prompt": ")", std::string(70 << 10, 'a'), R"("})")));
  routes.handle(heavy);
  heavy->wait_until_asked();
  EXPECT_EQ(answer_to(routes, request_of("POST", "/tokenize", R"({"prompt": "a"})")).status, 200);
  EXPECT_FALSE(heavy->ended());
  heavy->let_go();
  EXPECT_TRUE(heavy->wait_until_ended());
}

// One caller may have half of those that may wait.
TEST(Routes, WhenTooManyWaitToBeReadOthersAreTold503) {
  constexpr int kMostOfOne = 512;
  TinyService tiny;
  Routes routes({.workers = 1});
  routes.set_service(&tiny.service());
  const http::Request request = request_of("POST", "/tokenize", R"({"prompt": "a"})");
  const auto first = std::make_shared<HeldExchange>(request);
  routes.handle(first);
  first->wait_until_asked();
  std::vector<std::shared_ptr<TestingExchange>> waiting;
  for (int i = 0; i < kMostOfOne; ++i) routes.handle(waiting.emplace_back(std::make_shared<TestingExchange>(request)));
  const http::Response refused = answer_to(routes, request);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(message(refused), "too many calls wait to be read");
  EXPECT_NE(header(refused, "retry-after"), "");
  first->let_go();
  for (const auto& one : waiting) EXPECT_TRUE(one->wait_until_ended() && one->status() == 200);
}

TEST(Routes, CallsWhoseClientLeftAreNotRead) {
  TinyService tiny;
  Logged logged;
  Routes routes({.workers = 1, .on_answered = logged.listener()});
  routes.set_service(&tiny.service());
  const std::string body = cat(R"({"prompt": ")", std::string(70 << 10, 'a'), R"("})");
  const auto first = std::make_shared<HeldExchange>(request_of("POST", "/tokenize", body));
  routes.handle(first);
  first->wait_until_asked();
  const auto second = std::make_shared<TestingExchange>(request_of("POST", "/tokenize", body));
  routes.handle(second);
  second->leave();
  first->let_go();
  EXPECT_EQ(answer_to(routes, request_of("POST", "/tokenize", body)).status, 200) << "who comes after it";
  EXPECT_FALSE(second->begun());
}

TEST(Routes, AnswersAreCountedAndReported) {
  TinyService tiny;
  Logged logged;
  Routes routes({.on_answered = logged.listener()});
  routes.set_service(&tiny.service());
  answer_to(routes, request_of("POST", "/generate", kOneToken));
  ASSERT_TRUE(tiny.wait_until_idle());
  get(routes, "/nothing");
  const std::string metrics = get(routes, "/metrics").body;
  EXPECT_NE(metrics.find("/generate"), std::string::npos);
  const std::vector<Answered> answers = logged.wait_for(3);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].path, "/generate");
  EXPECT_EQ(answers[0].status, 200);
  EXPECT_EQ(answers[0].generated_tokens, 1);
  EXPECT_EQ(answers[1].status, 404);
  EXPECT_TRUE(answers[1].reason.starts_with("there is no \"/nothing\" here")) << answers[1].reason;
}

TEST(Routes, TheLogHearsTheKeysNameAndTheRequestsId) {
  std::vector<Answered> answers;
  Routes routes(
      {.keys = {{"secret", "", "alice"}}, .on_answered = [&](const Answered& one) { answers.push_back(one); }});
  http::Request request = request_of("GET", "/v1/models", "", {{"authorization", "Bearer secret"}});
  request.id = "req-7";
  answer_to(routes, request);
  request.headers = {};
  answer_to(routes, request);
  routes.report({.peer = "10.0.0.1:9", .id = "req-8", .method = "", .path = "", .status = 408, .reason = "late"});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].caller + answers[0].id, "alicereq-7");
  EXPECT_EQ(answers[1].caller, "");
  EXPECT_EQ(answers[1].status, 401);
  EXPECT_EQ(answers[2].peer + answers[2].id + answers[2].reason, "10.0.0.1:9req-8late");
}

TEST(Routes, WhatAbortingDoesNotKnowIsNamed) {
  for (const bool strict : {false, true}) {
    TinyService tiny({.change = [&](ServiceOptions& options) { options.strict_fields = strict; }});
    Routes routes({});
    routes.set_service(&tiny.service());
    const http::Response response = answer_to(routes, request_of("POST", "/abort_request", R"({"rid": "a", "x": 1})"));
    EXPECT_EQ(response.status, strict ? 400 : 200);
    EXPECT_EQ(header(response, "x-quire-ignored"), strict ? "" : "x");
  }
}

// Whoever has one address of a network of version 6 has as many as they like.
TEST(Routes, CallersOfOneNetworkShareTheirTurn) {
  TinyService tiny;
  Routes routes({.workers = 2});
  routes.set_service(&tiny.service());
  const auto from = [](const char* network, const char* peer) {
    http::Request request = request_of("POST", "/tokenize", R"({"prompt": "a"})");
    request.network = network;
    request.peer = peer;
    return request;
  };
  const auto first = std::make_shared<HeldExchange>(from("one", "[2001:db8::1]:9"));
  const auto second = std::make_shared<TestingExchange>(from("one", "[2001:db8::2]:9"));
  routes.handle(first);
  first->wait_until_asked();
  routes.handle(second);
  EXPECT_EQ(answer_to(routes, from("other", "[2001:db8:1::1]:9")).status, 200);
  EXPECT_FALSE(second->ended()) << "a network has one of two threads";
  first->let_go();
  EXPECT_TRUE(first->wait_until_ended() && second->wait_until_ended());
}

}  // namespace
}  // namespace quire::serve
