#include "serve/reasoning_parser.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::serve {
namespace {

using Parts = ReasoningParser::Parts;

Parts parsed(std::string_view text, Reasoning start, size_t piece) {
  ReasoningParser parser(start);
  Parts all;
  const auto add = [&](const Parts& parts) {
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  };
  for (size_t at = 0; at < text.size(); at += piece) add(parser.push(text.substr(at, piece)));
  add(parser.finish());
  return all;
}

// However the text is cut.
void expect_parts(std::string_view text, Reasoning start, const std::string& reasoning, const std::string& content) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{5}, size_t{1000}}) {
    const Parts parts = parsed(text, start, piece);
    EXPECT_EQ(parts.reasoning, reasoning) << text << " in pieces of " << piece;
    EXPECT_EQ(parts.content, content) << text << " in pieces of " << piece;
  }
}

TEST(ReasoningParser, TheTagsAreAtTheBeginning) {
  expect_parts("<think>a b\nc</think>d e", Reasoning::may_begin, "a b\nc", "d e");
  expect_parts("\n<think>\n\na  b \n</think>\n\n d <think>e</think>\n", Reasoning::may_begin, "a  b",
               "d <think>e</think>\n");
  expect_parts("<think>\n\n</think>\n\nd", Reasoning::may_begin, "", "d");
  expect_parts("a <think>b</think>", Reasoning::may_begin, "", "a <think>b</think>");
  expect_parts(" \n<thin>k", Reasoning::may_begin, "", " \n<thin>k");
  expect_parts("a</think>b", Reasoning::may_begin, "", "a</think>b");
  expect_parts("<thin", Reasoning::may_begin, "", "<thin");
  expect_parts(" ", Reasoning::may_begin, "", " ");
}

TEST(ReasoningParser, ThePromptMayHaveBegunIt) {
  expect_parts("\na < b </thin\n</think>\n\nc", Reasoning::begun, "a < b </thin", "c");
  expect_parts("<think>a</think>c", Reasoning::begun, "a", "c");
  expect_parts("</think>c", Reasoning::begun, "", "c");
  expect_parts("a", Reasoning::begun, "a", "");
}

TEST(ReasoningParser, ReasoningThatIsCutIsReasoning) {
  expect_parts("<think>a </thi", Reasoning::may_begin, "a </thi", "");
  expect_parts("<think>a</think>", Reasoning::may_begin, "a", "");
}

TEST(ReasoningParser, HoldsBackOnlyWhatMayBeATag) {
  ReasoningParser parser(Reasoning::may_begin);
  EXPECT_EQ(parser.push("<think>one").reasoning, "one");
  EXPECT_TRUE(parser.began());
  EXPECT_EQ(parser.push(" two < 3").reasoning, " two < 3");
  EXPECT_EQ(parser.push(" <").reasoning, "");
  EXPECT_EQ(parser.push("/t").reasoning, "");
  EXPECT_EQ(parser.push("hem ").reasoning, " </them");
  EXPECT_FALSE(parser.is_over());
  EXPECT_EQ(parser.push("</think>x").content, "x");
  EXPECT_TRUE(parser.is_over());
  EXPECT_EQ(parser.push(" <think").content, " <think");
  ReasoningParser plain(Reasoning::may_begin);
  EXPECT_EQ(plain.push("H").content, "H");
  EXPECT_FALSE(plain.began());
}

TEST(ReasoningParser, IsChosenByNameOrTemplate) {
  EXPECT_TRUE(reasons("", "{{ '<think>' }}"));
  EXPECT_TRUE(reasons("", "{{ content.split('</think>') }}"));
  EXPECT_FALSE(reasons("", "{{ content }}"));
  EXPECT_FALSE(reasons("none", "<think>"));
  for (const char* name : {"qwen3", "smollm3", "deepseek-r1"}) EXPECT_TRUE(reasons(name, ""));
  expect_refused([] { (void)reasons("o1", ""); }, "\"o1\"");
  EXPECT_EQ(reasoning_after("", "<|im_start|>assistant\n"), Reasoning::may_begin);
  EXPECT_EQ(reasoning_after("", "assistant\n<think>\n"), Reasoning::begun);
  EXPECT_EQ(reasoning_after("deepseek-r1", "<think>\n\n</think>\n\n"), Reasoning::none);
  EXPECT_EQ(reasoning_after("deepseek-r1", "assistant\n"), Reasoning::begun);
  EXPECT_EQ(reasoning_after("qwen3", ""), Reasoning::may_begin);
}

}  // namespace
}  // namespace quire::serve
