#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "base/testing/expect_refused.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<int32_t>;

// Pages of 16 tokens are long to write, so a text here is one number a page: {5, 9} is 16 fives and 16 nines.
Tokens text(std::initializer_list<int32_t> pages) {
  Tokens tokens;
  for (const int32_t page : pages) tokens.insert(tokens.end(), 16, page);
  return tokens;
}

class PrefixTreeTest : public ::testing::Test {
 protected:
  std::vector<PageId> take(int32_t count) {
    std::vector<PageId> pages(count);
    EXPECT_TRUE(pool_.allocate(pages));
    return pages;
  }
  void release(std::span<const PageId> pages) {
    for (const PageId page : pages) pool_.release(page);
  }
  // Inserts a text that nobody uses any more.
  std::vector<PageId> cache(const Tokens& tokens, std::string_view salt = "") {
    const std::vector<PageId> pages = take(static_cast<int32_t>(tokens.size() / 16));
    tree_.insert(salt, tokens, pages);
    release(pages);
    return pages;
  }

  PagePool pool_{33, PageSize(16)};
  PrefixTree tree_{pool_};
};

TEST_F(PrefixTreeTest, FindsWholePagesOnly) {
  const std::vector<PageId> pages = cache(text({1, 2, 3}));
  EXPECT_EQ(tree_.match("", text({1, 2, 3})), pages);
  Tokens partly = text({1, 2, 3});
  partly.resize(47);
  EXPECT_EQ(tree_.match("", partly), std::vector<PageId>(pages.begin(), pages.begin() + 2));
  partly = text({1, 2, 4});
  EXPECT_EQ(tree_.match("", partly).size(), 2u);
  EXPECT_TRUE(tree_.match("", text({2})).empty());
  EXPECT_TRUE(tree_.match("", {}).empty());
  tree_.audit();
}

TEST_F(PrefixTreeTest, IgnoresTokensPastTheLastWholePage) {
  Tokens tokens = text({1, 2});
  tokens.push_back(9);
  const std::vector<PageId> pages = take(3);
  EXPECT_TRUE(tree_.insert("", tokens, pages).empty());
  EXPECT_EQ(tree_.cached_pages(), 2);
  EXPECT_EQ(pool_.references(pages[2]), 1);
  EXPECT_TRUE(tree_.insert("", Tokens(15, 3), {&pages[2], 1}).empty());
  EXPECT_EQ(tree_.cached_pages(), 2);
  release(pages);
}

TEST_F(PrefixTreeTest, KeepsSaltsApart) {
  const std::vector<PageId> plain = cache(text({1}));
  EXPECT_TRUE(tree_.match("b", text({1})).empty());
  const std::vector<PageId> salted = cache(text({1}), "b");
  EXPECT_EQ(tree_.match("", text({1})), plain);
  EXPECT_EQ(tree_.match("b", text({1})), salted);
  EXPECT_NE(plain, salted);
  tree_.audit();
}

TEST_F(PrefixTreeTest, KeepsItsOwnPageForTheSameTokensAndNamesIt) {
  const std::vector<PageId> first = cache(text({1, 2}));
  const std::vector<PageId> second = take(3);
  const std::vector<PrefixTree::Kept> kept = tree_.insert("", text({1, 2, 3}), second);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].index, 0);
  EXPECT_EQ(kept[1].index, 1);
  EXPECT_EQ(kept[1].page, first[1]);
  EXPECT_EQ(tree_.match("", text({1, 2, 3})), (std::vector<PageId>{first[0], first[1], second[2]}));
  EXPECT_EQ(tree_.cached_pages(), 3);
  release(second);
  EXPECT_EQ(pool_.used_pages(), 3);
  tree_.audit();
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedFromTheEnd) {
  cache(text({1, 2, 3}));
  cache(text({1, 2, 4}));
  cache(text({5}));
  tree_.match("", text({1, 2, 3}));
  EXPECT_EQ(tree_.evict(1), 1);
  EXPECT_EQ(tree_.match("", text({1, 2, 4})).size(), 2u) << "of the leaves, 4 was used first";
  EXPECT_EQ(tree_.evict(1), 1);
  EXPECT_TRUE(tree_.match("", text({5})).empty());
  EXPECT_EQ(tree_.evict(2), 2);
  EXPECT_EQ(tree_.match("", text({1, 2, 3})).size(), 1u);
  EXPECT_EQ(tree_.evict(100), 1);
  EXPECT_EQ(tree_.cached_pages(), 0);
  EXPECT_EQ(pool_.used_pages(), 0);
  tree_.audit();
}

TEST_F(PrefixTreeTest, UsingTheFrontOfARunDoesNotMakeItsRestRecent) {
  cache(text({1, 2}));
  cache(text({5}));
  tree_.match("", text({1}));
  EXPECT_EQ(tree_.evict(1), 1);
  EXPECT_EQ(tree_.match("", text({1, 2})).size(), 1u);
  EXPECT_EQ(tree_.match("", text({5})).size(), 1u);
}

TEST_F(PrefixTreeTest, NeverEvictsWhatIsInUseNorWhatLiesBeforeIt) {
  const std::vector<PageId> pages = take(3);
  tree_.insert("", text({1, 2, 3}), pages);
  pool_.release(pages[0]);
  pool_.release(pages[2]);
  EXPECT_EQ(tree_.evictable_pages(), 1);
  EXPECT_EQ(tree_.evict(10), 1);
  EXPECT_EQ(tree_.match("", text({1, 2, 3})), (std::vector<PageId>{pages[0], pages[1]}));
  pool_.release(pages[1]);
  EXPECT_EQ(tree_.evictable_pages(), 2);
  EXPECT_EQ(tree_.evict(10), 2);
}

TEST_F(PrefixTreeTest, ForgetsASaltWithItsLastPage) {
  cache(text({1}), "b");
  EXPECT_EQ(tree_.evict(1), 1);
  EXPECT_TRUE(tree_.match("b", text({1})).empty());
  cache(text({1}), "b");
  EXPECT_EQ(tree_.match("b", text({1})).size(), 1u);
  tree_.audit();
}

TEST_F(PrefixTreeTest, GivesEverythingBackWhenClearedOrDestroyed) {
  cache(text({1, 2, 3}));
  const std::vector<PageId> used = take(1);
  tree_.insert("", text({1}), used);
  tree_.clear();
  EXPECT_EQ(tree_.cached_pages(), 0);
  EXPECT_EQ(pool_.used_pages(), 1) << "the page that is still in use";
  {
    PrefixTree other(pool_);
    other.insert("", text({1}), used);
    EXPECT_EQ(pool_.references(used[0]), 2);
  }
  EXPECT_EQ(pool_.references(used[0]), 1);
  release(used);
}

TEST_F(PrefixTreeTest, RefusesPagesThatAreNotInUse) {
  const std::vector<PageId> pages = take(2);
  pool_.release(pages[1]);
  expect_refused([&] { tree_.insert("", text({1, 2}), pages); }, cat("page ", pages[1], " is free"));
  EXPECT_EQ(tree_.cached_pages(), 0);
  EXPECT_EQ(pool_.references(pages[0]), 1);
  pool_.release(pages[0]);
}

// A tree as deep as it gets: every page is a branch.
TEST(PrefixTree, ADeepTreeIsCountedAndFreedWithoutDeepCalls) {
  constexpr int32_t kDepth = 20000;
  PagePool pool(2 * kDepth + 2, PageSize(1));
  PrefixTree tree(pool);
  std::vector<PageId> path(kDepth);
  ASSERT_TRUE(pool.allocate(path));
  const Tokens tokens(kDepth, 7);
  tree.insert("", tokens, path);
  for (const PageId page : path) pool.release(page);
  for (int32_t depth = kDepth - 1; depth >= 0; depth -= 40) {
    const std::vector<PageId> matched = tree.match("", std::span(tokens).first(depth));
    EXPECT_EQ(std::ssize(matched), depth);
  }
  EXPECT_EQ(tree.evictable_pages(), kDepth);
  tree.audit();
  tree.clear();
  EXPECT_EQ(pool.used_pages(), 0);
}

// The naive model: one entry for each cached page, keyed by the salt and all tokens up to the page's end.
class NaiveTree {
 public:
  using Key = std::pair<std::string, Tokens>;
  struct Entry {
    PageId page;
    uint64_t used;
  };

  NaiveTree(const PagePool& pool) : pool_(pool), page_tokens_(pool.page_size().tokens()) {}

  std::vector<PageId> match(const std::string& salt, const Tokens& tokens) {
    ++clock_;
    std::vector<PageId> pages;
    for (size_t end = page_tokens_; end <= tokens.size(); end += page_tokens_) {
      const auto entry = entries_.find({salt, Tokens(tokens.begin(), tokens.begin() + end)});
      if (entry == entries_.end()) break;
      entry->second.used = clock_;
      pages.push_back(entry->second.page);
    }
    return pages;
  }
  // The pages that stand for the tokens afterwards.
  std::vector<PageId> insert(const std::string& salt, const Tokens& tokens, const std::vector<PageId>& pages) {
    std::vector<PageId> standing = match(salt, tokens);
    for (size_t i = standing.size(); (i + 1) * page_tokens_ <= tokens.size() && i < pages.size(); ++i) {
      entries_[{salt, Tokens(tokens.begin(), tokens.begin() + (i + 1) * page_tokens_)}] = {pages[i], clock_};
      standing.push_back(pages[i]);
    }
    return standing;
  }
  // The page to go next: the least recently used that the tree alone holds and that no other continues.
  std::optional<PageId> evict_one() {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (pool_.references(entry->second.page) == 1 && !has_children(entry->first))
        if (oldest == entries_.end() || entry->second.used < oldest->second.used) oldest = entry;
    if (oldest == entries_.end()) return std::nullopt;
    const PageId page = oldest->second.page;
    entries_.erase(oldest);
    return page;
  }
  int32_t evictable() const {
    NaiveTree copy = *this;
    int32_t count = 0;
    while (copy.evict_one()) ++count;
    return count;
  }
  void clear() { entries_.clear(); }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  bool has_children(const Key& key) const {
    const auto next = std::next(entries_.find(key));
    return next != entries_.end() && next->first.first == key.first && next->first.second.size() > key.second.size() &&
           std::equal(key.second.begin(), key.second.end(), next->first.second.begin());
  }

  const PagePool& pool_;
  size_t page_tokens_;
  std::map<Key, Entry> entries_;  // ordered, so that a page's continuations follow it
  uint64_t clock_ = 0;
};

class RandomWalk {
 public:
  explicit RandomWalk(int32_t page_size, uint32_t seed) : pool_(60, PageSize(page_size)), random_(seed) {}

  void run(int actions) {
    for (int action = 0; action < actions && !::testing::Test::HasFailure(); ++action) {
      act();
      tree_.audit();
      pool_.audit();
      ASSERT_EQ(tree_.cached_pages(), naive_.size());
      ASSERT_EQ(tree_.evictable_pages(), naive_.evictable());
    }
    for (const auto& held : holders_) release(held);
    ASSERT_EQ(tree_.evictable_pages(), tree_.cached_pages());
    tree_.clear();
    EXPECT_EQ(pool_.used_pages(), 0);
  }

 private:
  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }
  // Texts over two letters, so that they share much; a letter fills a page or the rest of one.
  Tokens random_text() {
    Tokens tokens;
    const size_t length = below(6 * pool_.page_size().tokens() + 1);
    while (tokens.size() < length)
      tokens.insert(tokens.end(), std::min<size_t>(1 + below(pool_.page_size().tokens()), length - tokens.size()),
                    static_cast<int32_t>(below(2)));
    return tokens;
  }
  Tokens page_wise_text() {
    Tokens tokens;
    for (size_t page = below(7); page > 0; --page)
      tokens.insert(tokens.end(), pool_.page_size().tokens(), static_cast<int32_t>(below(2)));
    tokens.insert(tokens.end(), below(pool_.page_size().tokens()), 0);
    return tokens;
  }

  void act() {
    const Tokens tokens = below(4) ? page_wise_text() : random_text();
    const std::string salt = below(5) ? "" : "salt";
    switch (below(6)) {
      case 0:
      case 1:
        return insert(salt, tokens);
      case 2:
        return hold_match(salt, tokens);
      case 3:
        return evict(static_cast<int32_t>(below(4)));
      case 4:
        return let_go();
      default:
        if (below(200) == 0) {
          tree_.clear();
          naive_.clear();
        }
    }
  }
  void insert(const std::string& salt, const Tokens& tokens) {
    std::vector<PageId> pages(tokens.size() / pool_.page_size().tokens());
    if (!pool_.allocate(pages)) return evict(3);
    std::vector<PageId> standing = naive_.insert(salt, tokens, pages);
    for (const auto& [index, page] : tree_.insert(salt, tokens, pages)) {
      EXPECT_EQ(page, standing[index]);
      EXPECT_NE(page, pages[index]);
      standing[index] = pages[index];
    }
    EXPECT_EQ(standing, pages) << "a page was kept and not named";
    holders_.push_back(pages);
  }
  void hold_match(const std::string& salt, const Tokens& tokens) {
    const std::vector<PageId> pages = tree_.match(salt, tokens);
    EXPECT_EQ(pages, naive_.match(salt, tokens));
    for (const PageId page : pages) pool_.retain(page);
    holders_.push_back(pages);
  }
  void evict(int32_t wanted) {
    std::vector<PageId> expected;
    while (std::ssize(expected) < wanted)
      if (const std::optional<PageId> page = naive_.evict_one())
        expected.push_back(*page);
      else
        break;
    EXPECT_EQ(tree_.evict(wanted), std::ssize(expected));
    for (const PageId page : expected) EXPECT_EQ(pool_.references(page), 0) << "page " << page.value;
  }
  void let_go() {
    if (holders_.empty()) return;
    std::swap(holders_[below(holders_.size())], holders_.back());
    release(holders_.back());
    holders_.pop_back();
  }
  void release(std::span<const PageId> pages) {
    for (const PageId page : pages) pool_.release(page);
  }

  PagePool pool_;
  PrefixTree tree_{pool_};
  NaiveTree naive_{pool_};
  std::vector<std::vector<PageId>> holders_;
  std::mt19937 random_;
};

TEST(PrefixTree, AgreesWithANaiveModelOnRandomWalks) {
  for (const int32_t page_size : {1, 16})
    for (uint32_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(cat("page size ", page_size, ", seed ", seed));
      RandomWalk(page_size, seed).run(1500);
    }
}

}  // namespace
}  // namespace quire::kv
