#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

TEST(Models, TheOneThatIsServed) {
  testing::TinyService tiny({.loop = false});
  const auto body_at = [&](const char* path) {
    const auto exchange = testing::got(path);
    models(exchange, tiny.service());
    return ordered_json::parse(exchange->body());
  };
  const ordered_json list = body_at("/v1/models");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["max_model_len"], testing::kContext);
  EXPECT_EQ(body_at("/v1/models/tiny"), list["data"][0]);
  testing::expect_api_error([&] { body_at("/v1/models/other"); }, 404, "model", "other");
}

}  // namespace
}  // namespace quire::serve
