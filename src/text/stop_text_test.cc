#include "text/stop_text.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"

namespace quire::text {
namespace {

// All that is shown of a text that comes in these pieces.
std::string shown(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopText text(std::move(stops));
  std::string all;
  for (const std::string& piece : pieces) all += text.push(piece);
  return all + text.flush();
}

TEST(StopText, EndsBeforeAStopTextInOnePiece) { EXPECT_EQ(shown({"###"}, {"one ### two"}), "one "); }

TEST(StopText, EndsBeforeAStopTextThatSpansPieces) {
  EXPECT_EQ(shown({"\nUser:"}, {"yes\n", "Us", "er", ": no"}), "yes");
}

TEST(StopText, ShowsWhatOnlyLookedLikeAStopText) { EXPECT_EQ(shown({"abcd"}, {"xab", "c", "abc", "e"}), "xabcabce"); }

TEST(StopText, ShowsWhatWasHeldBackAtTheEnd) { EXPECT_EQ(shown({"abcd"}, {"xabc"}), "xabc"); }

TEST(StopText, TakesTheOneThatIsCompleteFirst) {
  EXPECT_EQ(shown({"abcd", "bc"}, {"xabcd"}), "xa");
  EXPECT_EQ(shown({"bc", "abc"}, {"xabcd"}), "x");
}

TEST(StopText, TakesTheFirstOfSeveral) { EXPECT_EQ(shown({"later", "soon"}, {"so", "on, later"}), ""); }

TEST(StopText, HoldsBackNoMoreThanCouldBegin) {
  StopText text({"--end"});
  EXPECT_EQ(text.push("a--"), "a");
  EXPECT_EQ(text.push("-"), "-");
  EXPECT_EQ(text.push("b"), "--b");
}

TEST(StopText, ShowsNothingAfterwards) {
  StopText text({"."});
  EXPECT_EQ(text.push("a.b"), "a");
  EXPECT_TRUE(text.found());
  EXPECT_EQ(text.push("c") + text.flush(), "");
}

TEST(StopText, SaysWhichOneItWas) {
  for (const auto& [text, match] : {std::pair("xbc", "bc"), {"xabc", "abc"}, {"x.", "."}}) {
    StopText stop({".", "bc", "abc"});
    stop.push(text);
    EXPECT_EQ(stop.match(), match) << text;
  }
}

TEST(StopText, WithoutStopTextsShowsEverythingAtOnce) {
  StopText text({});
  EXPECT_EQ(text.push("abc"), "abc");
}

TEST(StopText, RefusesAnEmptyOne) { EXPECT_THROW(StopText({"a", ""}), CheckError); }

std::string ended_by(const std::vector<std::string>& stops, const std::string& whole) {
  for (size_t length = 1; length <= whole.size(); ++length) {
    const std::string beginning = whole.substr(0, length);
    size_t shown = length;
    for (const std::string& stop : stops)
      if (beginning.ends_with(stop)) shown = std::min(shown, length - stop.size());
    if (shown < length) return beginning.substr(0, shown);
  }
  return whole;
}

// However a text is cut, it ends where a search of all beginnings of the whole text says.
TEST(StopText, CutsDoNotMatter) {
  std::mt19937 random(7);
  const auto letters = [&](size_t count) {
    std::string text;
    while (text.size() < count) text += "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {letters(1 + random() % 6), letters(2 + random() % 6)};
    const std::string whole = letters(random() % 24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < whole.size(); at += pieces.back().size())
      pieces.push_back(whole.substr(at, 1 + random() % 4));
    EXPECT_EQ(shown(stops, pieces), ended_by(stops, whole)) << whole << " until " << stops[0] << " or " << stops[1];
  }
}

}  // namespace
}  // namespace quire::text
