#include "serve/call_weight.h"

#include <gtest/gtest.h>

namespace quire::serve {
namespace {

Weight weight(std::string body) {
  http::Request request;
  request.body = std::move(body);
  return weight_of(request);
}

TEST(CallWeight, LongBodiesAreHeavy) {
  EXPECT_EQ(weight(""), Weight::light);
  EXPECT_EQ(weight(std::string(kMostLightBytes, ' ')), Weight::light);
  EXPECT_EQ(weight(std::string(kMostLightBytes + 1, ' ')), Weight::heavy);
}

TEST(CallWeight, WhatHasToBeCompiledIsHeavy) {
  EXPECT_EQ(weight(R"({"messages":[{"role":"user","content":"a regex, or a grammar?"}],"stream":true})"),
            Weight::light);
  for (const char* field : {"json_schema", "regex", "ebnf", "response_format", "tools", "guided_json", "guided_choice",
                            "structured_outputs", "grammar"})
    EXPECT_EQ(weight(std::string(R"({"prompt":"a",")") + field + R"(":{}})"), Weight::heavy) << field;
}

TEST(CallWeight, ANameIsNotHiddenByEscapes) {
  for (const char* name : {R"(\u0065bnf)", R"(e\u0062nf)", R"(json\u005Fschema)", R"(re\u0067ex)", R"(\u0074ools)"})
    EXPECT_EQ(weight(std::string(R"({"prompt":"a",")") + name + R"(":{}})"), Weight::heavy) << name;
  EXPECT_EQ(weight(R"({"prompt":"\u4f60\u597d \u00e9\u000a \ud83d\ude00 \u00"})"), Weight::light)
      << "what encoders write";
}

}  // namespace
}  // namespace quire::serve
