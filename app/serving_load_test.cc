#include "serving_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/testing/expect_refused.h"

namespace quire::bench {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const LoadShape kShape{.shared_tokens = 80,
                       .least_prompt = 20,
                       .most_prompt = 150,
                       .output_tokens = 12,
                       .seed = 7,
                       .vocabulary = 1000,
                       .ignore_eos = true};

TEST(ServingLoad, TheSeedDecidesEverything) {
  const Load first(kShape, "h:1", ""), again(kShape, "h:1", "");
  LoadShape other_shape = kShape;
  other_shape.seed = 8;
  const Load other(other_shape, "h:1", "");
  for (const int64_t request : {0, 1, 50}) {
    EXPECT_EQ(first.bytes(request), again.bytes(request));
    EXPECT_NE(first.bytes(request), other.bytes(request));
  }
  EXPECT_NE(first.body(0), first.body(1));
}

TEST(ServingLoad, PromptsShareAsMuchOfThePrefixAsFits) {
  const Load load(kShape, "h:1", "");
  std::set<size_t> lengths;
  const Ids* longest = nullptr;
  std::vector<Ids> prompts;
  for (int64_t request = 0; request < 200; ++request) prompts.push_back(load.prompt(request));
  for (const Ids& prompt : prompts) {
    lengths.insert(prompt.size());
    EXPECT_TRUE(prompt.size() >= 20 && prompt.size() <= 150);
    EXPECT_TRUE(std::all_of(prompt.begin(), prompt.end(), [](int32_t id) { return id >= 0 && id < 1000; }));
    if (!longest || prompt.size() > longest->size()) longest = &prompt;
  }
  EXPECT_GT(lengths.size(), 50);
  for (const Ids& prompt : prompts) {
    const auto shared = std::min<std::ptrdiff_t>(80, std::ssize(prompt) - 1);
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.begin() + shared, longest->begin()));
  }
}

TEST(ServingLoad, Bodies) {
  LoadShape shape = kShape;
  const json completion = json::parse(Load(shape, "h:1", "").body(3));
  EXPECT_EQ(completion["prompt"].get<Ids>(), Load(shape, "h:1", "").prompt(3));
  EXPECT_EQ(completion["max_tokens"], 12);
  EXPECT_EQ(completion["ignore_eos"], true);
  EXPECT_EQ(completion["stream_options"]["include_usage"], true);
  EXPECT_FALSE(completion.contains("model"));

  shape.endpoint = Endpoint::generate;
  shape.model = "m";
  const json generate = json::parse(Load(shape, "h:1", "").body(3));
  EXPECT_EQ(generate["input_ids"].get<Ids>(), Load(shape, "h:1", "").prompt(3));
  EXPECT_EQ(generate["sampling_params"]["max_new_tokens"], 12);
  EXPECT_EQ(generate["model"], "m");

  shape.more = R"({"sampling_params": {"regex": "a*"}, "rid": "x"})";
  const json bound = json::parse(Load(shape, "h:1", "").body(3));
  EXPECT_EQ(bound["sampling_params"]["max_new_tokens"], 12);
  EXPECT_EQ(bound["sampling_params"]["regex"], "a*");
  EXPECT_EQ(bound["rid"], "x");

  shape.endpoint = Endpoint::chat;
  shape.more.clear();
  shape.least_prompt = 100;
  const json chat = json::parse(Load(shape, "h:1", "").body(3));
  ASSERT_EQ(chat["messages"].size(), 2);
  EXPECT_EQ(chat["messages"][0]["role"], "system");
  EXPECT_EQ(chat["messages"][0]["content"], json::parse(Load(shape, "h:1", "").body(4))["messages"][0]["content"]);
}

TEST(ServingLoad, TheHeadHasLengthAndKey) {
  const Load load(kShape, "h:1", "secret");
  const std::string bytes = load.bytes(0), body = load.body(0);
  EXPECT_TRUE(bytes.starts_with("POST /v1/completions HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer secret\r\n"));
  EXPECT_TRUE(bytes.ends_with("Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body));
  EXPECT_EQ(load.health_check(), "GET /health HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer secret\r\n\r\n");
}

TEST(ServingLoad, NamesAndRefusals) {
  EXPECT_EQ(name_of(kShape), "shared=80/prompt=20-150/output=12");
  EXPECT_EQ(name_of(LoadShape{}), "prompt=128/output=128");
  expect_refused([] { (void)endpoint_from("embeddings"); }, "\"embeddings\"");
  expect_refused([] { Load({.least_prompt = 9, .most_prompt = 8}, "h:1", ""); }, "prompts of 9 to 8");
  for (const char* more : {"[]", "{", "x"})
    expect_refused([&] { Load({.more = more}, "h:1", ""); }, "not a JSON object");
}

}  // namespace
}  // namespace quire::bench
