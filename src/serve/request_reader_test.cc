#include "serve/request_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "serve/api_error.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::kEnd;

std::string refusal_of_body(std::string body) {
  http::Request request;
  request.body = std::move(body);
  try {
    body_of(request);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(RequestReader, ABodyIsAnObject) {
  http::Request request;
  request.body = R"({"z": 1, "a": [true, null]})";
  EXPECT_EQ(body_of(request).dump(), R"({"z":1,"a":[true,null]})");
}

TEST(RequestReader, WhatIsNoBodyIs400) {
  EXPECT_TRUE(contains(refusal_of_body(""), "empty"));
  EXPECT_TRUE(contains(refusal_of_body("{\n\"a\": nope}"), "line 2"));
  EXPECT_TRUE(contains(refusal_of_body("[1]"), "not an object"));
  EXPECT_TRUE(contains(refusal_of_body(R"({"a": 1, "a": 2})"), "\"a\" occurs twice"));
  EXPECT_TRUE(contains(refusal_of_body("{\"a\": \"\xff\"}"), "not JSON"));
  EXPECT_TRUE(contains(refusal_of_body(R"({"a": 1e999})"), "not JSON"));
  EXPECT_TRUE(contains(refusal_of_body("{\"a\":" + std::string(100'000, '[')), "deeper"));
  EXPECT_EQ(refusal_of_body("{\"a\":" + std::string(63, '[') + std::string(63, ']') + "}"), "");
}

TEST(RequestReader, ABodyHasLimitedKeysAndValues) {
  std::string keys = "{", values = R"({"a": [)";
  for (int i = 0; i < 2000; ++i) keys += cat(i ? "," : "", "\"", i, "\":0");
  for (int i = 0; i < 1'100'000; ++i) values += i ? ",0" : "0";
  EXPECT_TRUE(contains(refusal_of_body(keys + "}"), "more than 1024 keys"));
  EXPECT_TRUE(contains(refusal_of_body(values + "]}"), "more than 1048576 values"));
}

class Sampling : public ::testing::Test {
 protected:
  engine::Request read(const std::string& body) {
    const ordered_json object = ordered_json::parse(body);
    Fields fields(object, "");
    engine::Request request;
    read_sampling(fields, tiny_.service(), request);
    fields.finish();
    return request;
  }
  std::string refusal(const std::string& body) {
    try {
      read(body);
    } catch (const ApiError& error) {
      return error.param;
    }
    return "";
  }

  testing::TinyService tiny_{{.loop = false}};
};

TEST_F(Sampling, DefaultsAreThoseOfTheInterfaces) {
  const engine::Request one = read("{}"), other = read("{}");
  EXPECT_EQ(one.sampling.temperature, 1);
  EXPECT_EQ(one.sampling.top_p, 1);
  EXPECT_EQ(one.sampling.top_k, 0);
  EXPECT_NE(one.sampling.seed, other.sampling.seed);
  EXPECT_EQ(one.stop_ids, std::vector<int32_t>{kEnd});
  EXPECT_EQ(one.min_new_tokens, 0);
}

TEST_F(Sampling, EverythingIsRead) {
  const engine::Request request = read(R"({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
      "frequency_penalty": -1, "presence_penalty": 1.5, "repetition_penalty": 1.2, "seed": -1,
      "logit_bias": {"3": -100, "5": 2.5}, "min_tokens": 4, "ignore_eos": true, "stop_token_ids": [8, 9]})");
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.frequency_penalty, -1);
  EXPECT_EQ(request.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(request.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -100}, {5, 2.5f}}));
  EXPECT_EQ(request.min_new_tokens, 4);
  EXPECT_EQ(request.stop_ids, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(read(R"({"min_new_tokens": 3})").min_new_tokens, 3);
}

TEST_F(Sampling, ATopPOf0TakesTheLikeliestToken) { EXPECT_GT(read(R"({"top_p": 0})").sampling.top_p, 0); }

TEST_F(Sampling, WhatIsOutOfRangeIsNamed) {
  EXPECT_EQ(refusal(R"({"temperature": -0.1})"), "temperature");
  EXPECT_EQ(refusal(R"({"top_p": 1.1})"), "top_p");
  EXPECT_EQ(refusal(R"({"top_k": -2})"), "top_k");
  EXPECT_EQ(refusal(R"({"frequency_penalty": 3})"), "frequency_penalty");
  EXPECT_EQ(refusal(R"({"repetition_penalty": 0})"), "repetition_penalty");
  EXPECT_EQ(refusal(R"({"logit_bias": {"x": 1}})"), "logit_bias");
  EXPECT_EQ(refusal(R"({"logit_bias": {"-1": 1}})"), "logit_bias");
  EXPECT_EQ(refusal(R"({"logit_bias": {"1": 101}})"), "logit_bias");
  EXPECT_EQ(refusal(R"({"logit_bias": {"1": 2, "01": 3}})"), "logit_bias");
  EXPECT_EQ(refusal(R"({"logit_bias": [1]})"), "logit_bias");
  EXPECT_EQ(refusal(R"({"min_tokens": -1})"), "min_tokens");
  EXPECT_EQ(refusal(R"({"stop_token_ids": [-1]})"), "stop_token_ids[0]");
  EXPECT_EQ(refusal(R"({"stop_token_ids": [320]})"), "stop_token_ids") << "there is no such token";
}

TEST(RequestReader, WhatIsNotGivenIsAsTheModelsMakersAdvise) {
  testing::TinyService tiny(
      {.change =
           [](ServiceOptions& options) {
             options.sampling = {
                 .temperature = 0.2f, .top_k = 20, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 1.5f};
           },
       .loop = false});
  const auto read = [&](const char* text) {
    const ordered_json body = ordered_json::parse(text);
    Fields fields(body, "");
    engine::Request request;
    read_sampling(fields, tiny.service(), request);
    return request.sampling;
  };
  const ops::SamplingParams none = read("{}");
  EXPECT_EQ(none.temperature, 0.2f);
  EXPECT_EQ(none.top_k, 20);
  EXPECT_EQ(none.top_p, 0.9f);
  EXPECT_EQ(none.min_p, 0.1f);
  EXPECT_EQ(none.repetition_penalty, 1.5f);
  const ops::SamplingParams some = read(R"({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0,
                                            "repetition_penalty": 1})");
  EXPECT_EQ(some.temperature, 1);
  EXPECT_EQ(some.top_k, 0);
  EXPECT_EQ(some.top_p, 1);
  EXPECT_EQ(some.min_p, 0);
  EXPECT_EQ(some.repetition_penalty, 1);
}

TEST(Stops, NullsAreNone) {
  const ordered_json body = ordered_json::parse(R"({"stop": [null, "a", null, "b"]})");
  Fields fields(body, "");
  EXPECT_EQ(read_stops(fields), (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace quire::serve
