#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"

namespace quire::text {
namespace {

using Strings = std::vector<std::string>;

Strings pieces(const std::vector<PreTokenizerStep>& steps, const std::string& text, bool at_start = true) {
  const Pieces found = PreTokenizer(steps)(text, at_start);
  Strings strings;
  for (const TextRange r : found.ranges) strings.push_back(found.text.substr(r.begin, r.end - r.begin));
  return strings;
}

Strings split(SplitBehavior behavior, const std::string& text, bool invert = false) {
  return pieces({Split{"-", behavior, invert}}, text);
}

TEST(PreTokenizer, Behaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(split(SplitBehavior::removed, text), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::isolated, text), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_previous, text), (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_next, text), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split(SplitBehavior::contiguous, text), (Strings{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizer, EdgesAndInversion) {
  EXPECT_EQ(split(SplitBehavior::merged_with_previous, "-a"), (Strings{"-", "a"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_next, "a-"), (Strings{"a", "-"}));
  EXPECT_EQ(split(SplitBehavior::removed, "a-b", true), (Strings{"-"}));
  EXPECT_EQ(split(SplitBehavior::removed, "---"), Strings{});
  EXPECT_EQ(split(SplitBehavior::isolated, ""), Strings{});
}

TEST(PreTokenizer, LaterStepsSeePiecesAlone) {
  // The second pattern looks ahead, and must not see past the end of its piece.
  EXPECT_EQ(pieces({Split{"\\p{N}"}, Split{"\\s+(?!\\S)|\\s+"}}, "a  1"), (Strings{"a", "  ", "1"}));
  EXPECT_EQ(pieces({Split{"\\s+(?!\\S)|\\s+"}}, "a  1"), (Strings{"a", " ", " ", "1"}));
}

TEST(PreTokenizer, Prefixes) {
  EXPECT_EQ(pieces({Split{"-"}, EnsurePrefix{" "}}, "a- b"), (Strings{" a", " -", " b"}));
  EXPECT_EQ(pieces({Split{"-"}, EnsurePrefix{" ", true}}, "a-b"), (Strings{" a", "-", "b"}));
  EXPECT_EQ(pieces({EnsurePrefix{" ", true}}, "a", false), (Strings{"a"}));
  EXPECT_EQ(pieces({EnsurePrefix{" "}}, ""), Strings{});
}

TEST(PreTokenizer, Metaspace) {
  const std::vector<PreTokenizerStep> metaspace = {Replace{" ", "\u2581"}, EnsurePrefix{"\u2581"},
                                                   Split{"\u2581", SplitBehavior::merged_with_next}};
  EXPECT_EQ(pieces(metaspace, "Hey  you"), (Strings{"\u2581Hey", "\u2581", "\u2581you"}));
}

TEST(PreTokenizer, NoStepsNoCuts) { EXPECT_EQ(pieces({}, "a b"), (Strings{"a b"})); }

TEST(PreTokenizer, BadStepsAreRefused) {
  EXPECT_THROW(PreTokenizer({Split{"["}}), CheckError);
  EXPECT_THROW(PreTokenizer({Replace{"", "x"}}), CheckError);
}

}  // namespace
}  // namespace quire::text
