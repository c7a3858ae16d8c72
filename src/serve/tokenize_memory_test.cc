// What the longest text of /tokenize takes, for each byte of its body: DESIGN.md says so, and a limit on bodies is then
// one on memory.
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/peak_memory.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

double bytes_for_each(const std::string& text) {
  testing::TinyService tiny({.loop = false});
  const auto exchange = testing::posted("/tokenize", cat(R"({"prompt": ")", text, R"("})"));
  const size_t peak = quire::testing::peak_of([&] { tokenize(exchange, tiny.service()); });
  EXPECT_EQ(exchange->status(), 200);
  return static_cast<double>(peak) / static_cast<double>(exchange->request().body.size());
}

TEST(TokenizeMemory, IsInProportionToTheBody) {
  EXPECT_LT(bytes_for_each(std::string((1 << 18) + 8, 'a')), 64);
  std::string words;
  while (words.size() < (1 << 18) + 8) words += "word ";
  EXPECT_LT(bytes_for_each(words), 64);
}

}  // namespace
}  // namespace quire::serve
