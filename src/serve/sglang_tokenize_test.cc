#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;
using testing::TinyService;

class SglangTokenize : public ::testing::Test {
 protected:
  using Endpoint = void(std::shared_ptr<http::Exchange>, Service&);

  json asked(Endpoint* endpoint, const std::string& body) {
    const auto exchange = testing::posted("/", body);
    endpoint(exchange, tiny_.service());
    EXPECT_EQ(exchange->status(), 200);
    return json::parse(exchange->body());
  }

  TinyService tiny_{{.loop = false}};
};

TEST_F(SglangTokenize, CountsTheTokensOfAText) {
  EXPECT_EQ(asked(tokenize, R"({"prompt": "hi"})"),
            (json{{"tokens", {testing::kBegin, 'h', 'i'}}, {"count", 3}, {"max_model_len", testing::kContext}}));
  EXPECT_EQ(asked(tokenize, R"({"text": "hi", "model": "m"})").at("count"), 3);
  EXPECT_EQ(asked(tokenize, R"({"prompt": "</s>", "add_special_tokens": false})").at("tokens"),
            json::array({testing::kEnd}));
}

TEST_F(SglangTokenize, ListsGiveLists) {
  const json lists = asked(tokenize, R"({"prompt": ["a", ""], "add_special_tokens": false})");
  EXPECT_EQ(lists.at("tokens"), json::parse("[[97], []]"));
  EXPECT_EQ(lists.at("count"), json::parse("[1, 0]"));
}

TEST_F(SglangTokenize, TokensGiveTheirText) {
  EXPECT_EQ(asked(detokenize, R"({"tokens": [256, 104, 105]})"), (json{{"text", "hi"}}));
  EXPECT_EQ(asked(detokenize, R"({"tokens": [256, 104], "skip_special_tokens": false})"), (json{{"text", "<s>h"}}));
  EXPECT_EQ(asked(detokenize, R"({"tokens": []})"), (json{{"text", ""}}));
  EXPECT_EQ(asked(detokenize, R"({"tokens": [[104], [105, 105]]})"), (json{{"text", {"h", "ii"}}}));
}

TEST_F(SglangTokenize, RefusesWhatIsNotThere) {
  for (const char* body : {"{}", R"({"prompt": 1})", R"({"prompt": "a", "text": "b"})"})
    EXPECT_THROW(asked(tokenize, body), ApiError) << body;
  for (const char* body : {"{}", R"({"tokens": "a"})", R"({"tokens": [-1]})", R"({"tokens": [[1], 2]})",
                           R"({"tokens": [100000]})"})
    EXPECT_THROW(asked(detokenize, body), ApiError) << body;
}

}  // namespace
}  // namespace quire::serve
