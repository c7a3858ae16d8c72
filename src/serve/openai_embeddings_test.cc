#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::answer;
using testing::expect_api_error;

class Embeddings : public ::testing::Test {
 protected:
  ordered_json embed(const char* body) { return answer(embeddings, tiny_.service(), ordered_json::parse(body)); }
  testing::TinyService tiny_;
};

std::vector<float> vector_of(const ordered_json& body, size_t i = 0) {
  return body["data"][i]["embedding"].get<std::vector<float>>();
}

std::vector<float> from_base64(const std::string& text) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0, count = 0;
  for (const char letter : text) {
    if (letter == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(letters.find(letter));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  std::vector<float> numbers(bytes.size() / 4);
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * 4);
  return numbers;
}

TEST_F(Embeddings, OfOneText) {
  const ordered_json body = embed(R"({"input": "hello", "model": "tiny"})");
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["data"][0]["object"], "embedding");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  const std::vector<float> vector = vector_of(body);
  ASSERT_EQ(vector.size(), 64u);
  double squares = 0;
  for (const float number : vector) squares += double{number} * number;
  EXPECT_NEAR(squares, 1, 1e-4);
}

TEST_F(Embeddings, Base64HasTheSameNumbers) {
  const std::vector<float> numbers = vector_of(embed(R"({"input": "hello"})"));
  const ordered_json body = embed(R"({"input": "hello", "encoding_format": "base64"})");
  EXPECT_EQ(from_base64(body["data"][0]["embedding"].get<std::string>()), numbers);
}

TEST_F(Embeddings, ManyTextsComeInOrder) {
  ordered_json input = ordered_json::array();
  for (int i = 0; i < 100; ++i) input.push_back("text " + std::to_string(i % 7));
  const ordered_json body = answer(embeddings, tiny_.service(), {{"input", input}});
  ASSERT_EQ(body["data"].size(), 100u);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(body["data"][i]["index"], i);
    EXPECT_EQ(vector_of(body, i), vector_of(body, i % 7));
  }
  EXPECT_NE(vector_of(body, 0), vector_of(body, 1));
}

TEST_F(Embeddings, TokensAndPooling) {
  const std::vector<float> last = vector_of(embed(R"({"input": "hi"})"));
  EXPECT_EQ(vector_of(embed(R"({"input": [256, 104, 105]})")), last);
  EXPECT_EQ(vector_of(embed(R"({"input": [[1], [256, 104, 105]], "dimensions": 64, "user": "u"})"), 1), last);
  EXPECT_NE(vector_of(embed(R"({"input": "hi", "pooling": "mean"})")), last);
  EXPECT_EQ(vector_of(embed(R"({"input": "hi", "pooling": "last"})")), last);
}

TEST_F(Embeddings, WhatIsRefused) {
  const auto expect = [&](const std::string& body, const std::string& param, int status = 400) {
    expect_api_error([&] { embeddings(testing::posted("/v1", body), tiny_.service(), {}); }, status, param);
  };
  expect("{}", "input");
  expect(R"({"input": []})", "input");
  expect(R"({"input": "a", "dimensions": 32})", "dimensions");
  expect(R"({"input": "a", "encoding_format": "int8"})", "encoding_format");
  expect(R"({"input": "a", "pooling": "max"})", "pooling");
  expect(R"({"input": "a", "model": 1})", "model");
  expect(R"({"input": ")" + std::string(600, 'a') + "\"}", "input");
}

std::shared_ptr<testing::TestingExchange> begun_with(int texts, Service& service) {
  ordered_json input = ordered_json::array();
  for (int i = 0; i < texts; ++i) input.push_back("text " + std::to_string(i));
  auto exchange = testing::posted("/v1/embeddings", ordered_json{{"input", input}}.dump());
  embeddings(exchange, service, {});
  return exchange;
}

TEST(EmbeddingsOfManyTexts, EndAlsoWhenTheServerDrains) {
  testing::TinyService stepped({.loop = false});
  const auto exchange = begun_with(100, stepped.service());
  stepped.engine().step();
  stepped.service().drain();
  while (stepped.engine().step()) {
  }
  ASSERT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
}

TEST(EmbeddingsOfManyTexts, NeedOnlyOnePlaceInTheQueue) {
  testing::TinyService stepped(
      {.engine = {.max_total_tokens = testing::kContext, .max_running_requests = 1, .max_queued_requests = 4},
       .loop = false});
  const auto exchange = begun_with(40, stepped.service());
  while (stepped.engine().step()) {
  }
  ASSERT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
}

TEST(EmbeddingsOfOthers, WhoIsAbortedMayTryAgain) {
  testing::TinyService stepped({.loop = false});
  const auto exchange = testing::posted("/v1/embeddings", R"({"input": "hello", "rid": "mine"})");
  embeddings(exchange, stepped.service(), {});
  EXPECT_EQ(stepped.service().abort("mine"), 1);
  stepped.engine().step();
  ASSERT_TRUE(exchange->ended());
  EXPECT_EQ(exchange->status(), 503) << exchange->body();
}

}  // namespace
}  // namespace quire::serve
