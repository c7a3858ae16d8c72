#include "serve/chat_marks.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using Places = std::vector<size_t>;

text::Vocabulary vocabulary() {
  text::Vocabulary made;
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<s>", "[INST]", "<tool>"}) {
    const bool special = std::string_view(name) != "<tool>";
    made.added.push_back({.id = made.tokens.add(name), .special = special});
  }
  return made;
}

TEST(SpecialSpellings, WhereTheyBegin) {
  const text::Vocabulary made = vocabulary();
  const SpecialSpellings spellings(made);
  EXPECT_EQ(spellings.places(""), Places{});
  EXPECT_EQ(spellings.places("Hello, is 1 < 2 and a[0] > b?"), Places{});
  EXPECT_EQ(spellings.places("<tool>"), Places{}) << "not special";
  EXPECT_EQ(spellings.places("a<|im_end|>b<s><s>"), (Places{1, 12, 15}));
  EXPECT_EQ(spellings.places("<|im_start|>[INST]"), (Places{0, 12}));
  EXPECT_EQ(spellings.places("<|im_en d|>"), Places{});
}

TEST(SpecialSpellings, WhatNeighboursMayComplete) {
  const text::Vocabulary made = vocabulary();
  const SpecialSpellings spellings(made);
  EXPECT_EQ(spellings.places("a <"), Places{2});
  EXPECT_EQ(spellings.places("a <|im_ \n"), Places{2}) << "templates trim";
  EXPECT_EQ(spellings.places("|im_end|> b"), Places{0});
  EXPECT_EQ(spellings.places("  > b"), Places{2});
  EXPECT_EQ(spellings.places("NST] b ["), (Places{0, 7}));
}

TEST(Marks, ComeOutAgain) {
  const text::Vocabulary made = vocabulary();
  Marks marks(made);
  ordered_json value = {{"messages", {{{"role", "user"}, {"content", "x<s>y"}}}}, {"k<s>", {1, "<s>", nullptr, true}}};
  const ordered_json before = value;
  marks.mark(value);
  EXPECT_NE(value, before);
  const std::string content = value["messages"][0]["content"];
  const Marks::Text text = marks.unmarked("<s>" + content + "<s>");
  EXPECT_EQ(text.text, "<s>x<s>y<s>");
  EXPECT_EQ(text.never_special, Places{4});
  EXPECT_EQ(marks.unmarked(value.dump()).text, before.dump());
}

TEST(Marks, OrdinaryTextIsNotTouched) {
  const text::Vocabulary made = vocabulary();
  Marks marks(made);
  ordered_json value = {{"content", "plain \xEF\xB7\x90"}};
  const ordered_json before = value;
  marks.mark(value);
  EXPECT_EQ(value, before);
  const Marks::Text text = marks.unmarked(value.dump());
  EXPECT_EQ(text.text, before.dump());
  EXPECT_TRUE(text.never_special.empty());
}

TEST(Marks, AreCharactersThatOccurNowhere) {
  const text::Vocabulary made = vocabulary();
  std::string most;
  for (char32_t code = 0xFDD0; code < 0xFDEF; ++code) append_utf8(most, code);
  Marks marks(made);
  ordered_json value = {{"a", most + "<s>"}, {"b", {most}}};
  marks.mark(value);
  EXPECT_EQ(marks.unmarked(value["a"].get<std::string>()).text, most + "<s>");

  ordered_json all = {{"a", most + "\xEF\xB7\xAF<s>"}};
  Marks none(made);
  EXPECT_THROW(none.mark(all), ApiError);
}

}  // namespace
}  // namespace quire::serve
