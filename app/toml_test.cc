#include "toml.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/testing/expect_refused.h"

namespace quire {
namespace {

using Values = std::vector<std::string>;

TEST(Toml, ReadsValuesOfEveryKind) {
  const std::vector<TomlEntry> read = read_toml(
      "# options\n\nmodel = \"a \\\"b\\\" \\u00e9\\t#\"  # its path\r\nliteral = 'C:\\dir'\n"
      "port = 30_000\nrate = -1.5e3\non = true\nkeys = [\n  \"one\",  # the first\n  'two',\n]\n\"quoted-key\" = 1");
  ASSERT_EQ(read.size(), 7u);
  EXPECT_EQ(read[0].key, "model");
  EXPECT_EQ(read[0].line, 3);
  EXPECT_EQ(read[0].values, Values{"a \"b\" \u00e9\t#"});
  EXPECT_EQ(read[1].values, Values{"C:\\dir"});
  EXPECT_EQ(read[2].values, Values{"30000"});
  EXPECT_EQ(read[3].values, Values{"-1.5e3"});
  EXPECT_EQ(read[4].values, Values{"true"});
  EXPECT_EQ(read[5].values, (Values{"one", "two"}));
  EXPECT_EQ(read[6].key, "quoted-key");
  EXPECT_EQ(read[6].line, 12);
  EXPECT_TRUE(read_toml("").empty());
}

TEST(Toml, SaysTheLineOfWhatItCannotRead) {
  expect_refused([] { read_toml("a = 1\n\nport = many\n"); }, "line 3: a value is a text in quotes, a number");
  for (const char* number : {"1_0_", "1__0", "1_.5", "1._5", "1e_5"})
    expect_refused([&] { read_toml(cat("a = ", number, "\n")); }, "line 1: a value is a text in quotes, a number");
  expect_refused([] { read_toml("port 1\n"); }, "line 1: after \"port\" comes =");
  expect_refused([] { read_toml("port =\n"); }, "line 1: a value is");
  expect_refused([] { read_toml("a = \"x\n"); }, "line 1: the text does not end on its line");
  expect_refused([] { read_toml("a = \"\\q\"\n"); }, "line 1: ");
  expect_refused([] { read_toml("a = [1,\n2\n"); }, "line 3: the array does not end");
  expect_refused([] { read_toml("a = [1 2]\n"); }, "line 1: in an array, commas");
  expect_refused([] { read_toml("a = 1 2\n"); }, "line 1: there is more than one value");
  expect_refused([] { read_toml("a = 1\nb = 2\na = 3\n"); }, "line 3: \"a\" is set twice, on line 1 too");
  expect_refused([] { read_toml("[server]\nport = 1\n"); }, "line 1: tables are not used here");
  expect_refused([] { read_toml("= 1\n"); }, "line 1: the name of an option");
}

}  // namespace
}  // namespace quire
