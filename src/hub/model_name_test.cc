#include "hub/model_name.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

TEST(ModelName, ItsParts) {
  EXPECT_EQ(parse_model_name("Qwen/Qwen3-0.6B"), (ModelName{.repository = "Qwen/Qwen3-0.6B"}));
  EXPECT_EQ(parse_model_name("o/n@refs/pr/3"), (ModelName{.repository = "o/n", .revision = "refs/pr/3"}));
  EXPECT_EQ(parse_model_name("o/n:a/b.Q8_0.gguf"), (ModelName{.repository = "o/n", .file = "a/b.Q8_0.gguf"}));
  EXPECT_EQ(parse_model_name("o_1/n.2@v1:Q8_0"),
            (ModelName{.repository = "o_1/n.2", .revision = "v1", .file = "Q8_0"}));
}

TEST(ModelName, IsWrittenAsItWasRead) {
  for (const char* text : {"o/n", "o/n@v1", "o/n:f.gguf", "o/n@v1:f.gguf"})
    EXPECT_EQ(to_string(parse_model_name(text).value()), text);
  EXPECT_EQ(parse_model_name("o/n")->revision_or_main(), "main");
  EXPECT_EQ(parse_model_name("o/n@v1")->revision_or_main(), "v1");
}

TEST(ModelName, PathsAreNoNames) {
  for (const char* text : {"",         "name",   "model.gguf", "/o/n",          "./o/n",           "../n", "~/n",
                           "a/b/c",    "o/",     "/n",         "models/x.gguf", "o/n.safetensors", "o/n:", "o/n@",
                           "o/n:../x", "o/n@..", "o/n:/x",     "o n/x",         "o--p/n",          "o/n-", "-o/n",
                           "o/.n",     "o/n\n",  "o/n:a\\b",   "http://o/n",    "o/n:a\x1b.gguf",
                           "o/n:a\u009b.gguf", "o/n:a\u202egguf.b"})
    EXPECT_EQ(parse_model_name(text), std::nullopt) << text;
}

TEST(ModelName, ACommitIsFortyDigits) {
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789abcdef"));
  EXPECT_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("../3456789abcdef0123456789abcdef01234567"));
}

}  // namespace
}  // namespace quire::hub
