#include "engine/growing_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>
#include <set>

#include "base/check.h"
#include "engine/draft_tree.h"

namespace quire::engine {
namespace {

// A record that believes what the model says, as far as its bins go.
DraftRecord believing() { return DraftRecord(std::make_shared<DraftRates>()); }

using Path = std::vector<int32_t>;

Path path_to(std::span<const DraftToken> drafts, int32_t i) {
  Path path;
  for (; i >= 0; i = parent_of(drafts, i)) path.insert(path.begin(), drafts[i].token);
  return path;
}

// What a model says behind a path: nothing but its tokens decides it.
std::vector<DraftToken> said_behind(const Path& path, int32_t topk) {
  uint32_t seed = 1;
  for (const int32_t token : path) seed = seed * 31 + static_cast<uint32_t>(token) + 7;
  std::mt19937 random(seed);
  std::vector<DraftToken> said;
  float left = 1;
  for (int32_t i = 0; i < topk; ++i) {
    const float hit = left * (0.3f + 0.4f * static_cast<float>(random() % 1000) / 1000);
    said.push_back({.token = static_cast<int32_t>(10 * path.size()) + i, .hit = hit});
    left -= hit;
  }
  std::ranges::sort(said, [](const DraftToken& a, const DraftToken& b) { return a.hit > b.hit; });
  return said;
}

// Follows the branches as a model would, by their tokens; returns how many levels there are.
int32_t grow(GrowingTree& tree, int32_t topk, double least) {
  tree.add_level(said_behind({}, topk));
  std::vector<Path> paths(topk);
  int32_t levels = 1;
  for (; tree.grows(least); ++levels) {
    std::vector<Path> next;
    std::vector<DraftToken> said;
    for (int32_t branch = 0; branch < topk; ++branch) {
      Path path = levels == 1 ? Path{} : paths[tree.continues(branch)];
      path.push_back(tree.token(branch));
      for (const DraftToken& draft : said_behind(path, topk)) said.push_back(draft);
      next.push_back(path);
    }
    paths = next;
    tree.add_level(said);
  }
  return levels;
}

// Of as many branches and passes as options allow, it is the best that are kept in order: what is said costs no more to
// look through than to say.
TEST(GrowingTree, OfTheLargestSizeIsMadeInMuchLessThanAStep) {
  const DraftRecord record = believing();
  constexpr int32_t kTopk = 64, kDepth = 63;
  std::vector<DraftToken> said(kTopk * kTopk);
  for (int32_t i = 0; i < kTopk * kTopk; ++i) said[i] = {.token = i, .hit = i % kTopk == 0 ? 1.0f : 0.0f};
  const std::clock_t start = std::clock();
  GrowingTree tree({.topk = kTopk, .depth = kDepth, .most = kDepth}, record);
  tree.add_level(std::span(said).first(kTopk));
  int32_t levels = 1;
  for (; tree.grows(0); ++levels) tree.add_level(said);
  std::vector<DraftToken> drafts;
  tree.take_best(drafts);
  EXPECT_EQ(levels, kDepth);
  EXPECT_EQ(std::ssize(drafts), kDepth);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.15);  // 0.6 where all is sorted every time
}

// Every draft is what the model said behind its own path, parents first, the likeliest first, and nothing that was said
// and is likelier is missing.
TEST(GrowingTree, TakesTheBestOfAllThatWasSaid) {
  const DraftRecord record = believing();
  for (const int32_t topk : {2, 3, 5})
    for (const int32_t depth : {1, 2, 4})
      for (const int32_t most : {1, 3, 8, 20}) {
        SCOPED_TRACE(::testing::Message() << "topk " << topk << ", depth " << depth << ", most " << most);
        GrowingTree tree({.topk = topk, .depth = depth, .most = most}, record);
        const int32_t levels = grow(tree, topk, 0);
        EXPECT_LE(levels, depth);
        std::vector<DraftToken> drafts;
        tree.take_best(drafts);
        EXPECT_EQ(std::ssize(drafts), std::min(most, topk + (levels - 1) * topk * topk));
        std::map<Path, double> likely;
        std::vector<double> order;
        for (int32_t i = 0; i < std::ssize(drafts); ++i) {
          const Path path = path_to(drafts, i), above(path.begin(), path.end() - 1);
          const double parent = above.empty() ? 1 : likely.at(above);
          bool was_said = false;
          for (const DraftToken& said : said_behind(above, topk))
            was_said = was_said || (said.token == path.back() && said.hit == drafts[i].hit);
          EXPECT_TRUE(was_said);
          likely[path] = parent * static_cast<double>(record.hit(drafts[i].hit));
          order.push_back(likely[path]);
        }
        EXPECT_TRUE(std::ranges::is_sorted(order, std::greater{}));
        for (const DraftToken& said : said_behind({}, topk))
          EXPECT_TRUE(static_cast<double>(record.hit(said.hit)) <= order.back() || likely.contains({said.token}));
      }
}

// Of a level the branches that are likeliest from the text on, whichever branch they continue.
TEST(GrowingTree, FollowsTheBestOfEachLevel) {
  const DraftRecord record = believing();
  GrowingTree tree({.topk = 2, .depth = 4, .most = 20}, record);
  tree.add_level(std::vector<DraftToken>{{.token = 1, .hit = 0.38f}, {.token = 2, .hit = 0.61f}});
  EXPECT_EQ(tree.token(0), 2);
  EXPECT_EQ(tree.token(1), 1);
  tree.add_level(std::vector<DraftToken>{
      {.token = 3, .hit = 0.2f}, {.token = 4, .hit = 0.1f}, {.token = 5, .hit = 0.9f}, {.token = 6, .hit = 0.02f}});
  EXPECT_EQ(tree.token(0), 5);
  EXPECT_EQ(tree.continues(0), 1);
  EXPECT_EQ(tree.token(1), 3);
  EXPECT_EQ(tree.continues(1), 0);
  tree.add_level(std::vector<DraftToken>{
      {.token = 7, .hit = 0.5f}, {.token = 8, .hit = 0.4f}, {.token = 9, .hit = 0.6f}, {.token = 10, .hit = 0.3f}});
  EXPECT_EQ(tree.token(0), 7);
  EXPECT_EQ(tree.token(1), 8);
  EXPECT_EQ(tree.continues(0), 0);
  EXPECT_EQ(tree.continues(1), 0) << "both behind 5";
  std::vector<DraftToken> drafts;
  tree.take_best(drafts);
  EXPECT_EQ(path_to(drafts, 3), (Path{1, 5, 7}));
}

// With room for all, a tree of two levels is all that was said: topk of the first, topk behind each of these.
TEST(GrowingTree, HasAllThatWasSaidWhereThereIsRoom) {
  const DraftRecord record = believing();
  GrowingTree tree({.topk = 3, .depth = 2, .most = 64}, record);
  EXPECT_EQ(grow(tree, 3, 0), 2);
  std::vector<DraftToken> drafts;
  tree.take_best(drafts);
  EXPECT_EQ(drafts.size(), 12u);
}

TEST(GrowingTree, EndsWhereNothingPays) {
  const DraftRecord record = believing();
  GrowingTree tree({.topk = 2, .depth = 9, .most = 64}, record);
  EXPECT_EQ(grow(tree, 2, 0.99), 1) << "nothing is as likely";
  // A deeper draft cannot be among the two best once two are likelier than all that is followed.
  GrowingTree sure({.topk = 2, .depth = 9, .most = 1}, record);
  EXPECT_EQ(grow(sure, 2, 0), 1) << "one draft is the first, whatever comes behind it";
}

// Somebody else's choice of branches is kept: drafts behind others do not come up, and the best of all that was said
// are taken all the same.
TEST(GrowingTree, FollowsWhatItIsTold) {
  const DraftRecord record = believing();
  GrowingTree tree({.topk = 2, .depth = 3, .most = 10}, record);
  tree.add_level(std::vector<DraftToken>{{.token = 1, .hit = 0.6f}, {.token = 2, .hit = 0.3f}});
  tree.follow(std::vector<int32_t>{1, 0});
  EXPECT_EQ(tree.token(0), 2);
  EXPECT_EQ(tree.token(1), 1);
  tree.add_level(std::vector<DraftToken>{
      {.token = 20, .hit = 0.5f}, {.token = 21, .hit = 0.4f}, {.token = 10, .hit = 0.9f}, {.token = 11, .hit = 0.1f}});
  tree.follow(std::vector<int32_t>{3, 1});
  EXPECT_EQ(tree.token(0), 11);
  EXPECT_EQ(tree.continues(0), 1);
  EXPECT_EQ(tree.continues(1), 0);
  tree.add_level(std::vector<DraftToken>{{.token = 110, .hit = 0.5f},
                                         {.token = 111, .hit = 0.4f},
                                         {.token = 210, .hit = 0.5f},
                                         {.token = 211, .hit = 0.4f}});
  std::vector<DraftToken> drafts;
  tree.take_best(drafts);
  std::set<Path> paths;
  for (int32_t i = 0; i < std::ssize(drafts); ++i) paths.insert(path_to(drafts, i));
  EXPECT_EQ(paths,
            (std::set<Path>{
                {1}, {2}, {1, 10}, {1, 11}, {2, 20}, {2, 21}, {1, 11, 110}, {1, 11, 111}, {2, 21, 210}, {2, 21, 211}}));
  EXPECT_EQ(drafts[1].token, 10) << "0.54 is more than 0.3";
  EXPECT_THROW(tree.follow(std::vector<int32_t>{0}), CheckError);
  EXPECT_THROW(tree.follow(std::vector<int32_t>{0, 4}), CheckError);
}

}  // namespace
}  // namespace quire::engine
