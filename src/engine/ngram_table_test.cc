#include "engine/ngram_table.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens text_of_random_tokens(size_t length, int32_t vocabulary) {
  std::mt19937 random(1);
  Tokens text(length);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % vocabulary);
  return text;
}

// Of few tokens: all runs come often. Of many: the table grows, and hardly any does.
TEST(NgramTable, KnowsTheNewestPlaceOfEveryRunAndWhetherItBranches) {
  for (const int32_t n : {2, 3, 8})
    for (const int32_t vocabulary : {3, 50000}) {
      const Tokens text = text_of_random_tokens(3000, vocabulary);
      struct Known {
        int32_t after;
        bool branches;
      };
      std::map<Tokens, Known> expected;
      NgramTable table(n);
      for (int32_t i = 0; i < std::ssize(text); ++i) {
        table.add(text, i);
        if (i < n) continue;
        const auto [known, is_new] = expected.try_emplace({text.begin() + i - n, text.begin() + i}, Known{i, false});
        if (!is_new) known->second = {i, known->second.branches || text[known->second.after] != text[i]};
      }
      for (const auto& [run, known] : expected) {
        const NgramTable::Place place = table.find(text, run);
        ASSERT_EQ(place.after, known.after) << n << " of " << vocabulary;
        ASSERT_EQ(place.branches, known.branches);
      }
      EXPECT_EQ(table.find(text, Tokens(n, -1)).after, 0);
    }
}

TEST(NgramTable, ATextOfOneTokenHasOneRun) {
  const Tokens text(10000, 7);
  NgramTable table(2);
  for (int32_t i = 0; i < std::ssize(text); ++i) table.add(text, i);
  EXPECT_EQ(table.find(text, Tokens{7, 7}).after, 9999);
  EXPECT_FALSE(table.find(text, Tokens{7, 7}).branches);
}

// "a b x", each pair with a slot of its own only in tables larger than this text makes.
Tokens colliding_pairs(int32_t count) {
  constexpr uint64_t kSlots = 4096;
  Tokens text;
  for (int32_t a = 0; std::ssize(text) < 3 * count; ++a)
    for (int32_t b = 0; b < 50000 && std::ssize(text) < 3 * count; ++b)
      if (NgramTable::hash_of(std::array{a, b}) % kSlots == 0) text.insert(text.end(), {a, b, 100000 + a});
  return text;
}

// Everybody waits while a text is read, and whoever sends it chooses its tokens.
TEST(NgramTable, RunsThatAreMadeToCollideTakeEachOthersPlaces) {
  const Tokens text = colliding_pairs(400);
  NgramTable table(2);
  for (int32_t i = 0; i < std::ssize(text); ++i) table.add(text, i);
  int32_t kept = 0;
  for (int32_t i = 0; i < std::ssize(text); i += 3) {
    const NgramTable::Place place = table.find(text, std::span(text).subspan(i, 2));
    EXPECT_TRUE(place.after == 0 || place.after == i + 2) << "that of another";
    EXPECT_FALSE(place.branches) << "as the one whose place it took would";
    kept += place.after != 0;
  }
  EXPECT_LE(kept, static_cast<int32_t>(NgramTable::kMostProbes));
  EXPECT_EQ(table.find(text, std::span(text).last(3).first(2)).after, std::ssize(text) - 1) << "the newest";
}

}  // namespace
}  // namespace quire::engine
