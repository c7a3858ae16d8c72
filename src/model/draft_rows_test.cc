// The walk of a GPU against one in plain words: random steps of tokens that are often equal, chains and trees.
#include "model/draft_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/cuda.h"

namespace quire::model {
namespace {

constexpr int32_t kWalked = 40, kWalkedRows = 4000, kTableRows = 64, kMostText = 700;
constexpr int32_t kPathWidth = 1 + kMostTreeDrafts, kPathWords = sizeof(WalkedPath) / sizeof(int32_t);
constexpr int32_t kNotWalked = 0x5a5a5a5a;     // what nobody wrote; no number of these tests
constexpr int32_t kMeansNothing = -0x7000000;  // of a slot behind all that came

// What the walk says. Rows of all shares, one after the other.
struct Walks {
  std::vector<int32_t> numbers = {};  // live, passing, query_rows, number
  std::vector<int32_t> rows = {}, lengths = {}, wanted_rows = {}, kept_rows = {};
  std::vector<int32_t> input_ids = {}, positions = {}, slots = {}, state_rows = {};
  std::vector<int32_t> paths = {};      // nodes, position and first_row of each share
  std::vector<int32_t> path_rows = {};  // of trees, as many as each has nodes
};

struct WalkCase {
  PageSize page_size{16};
  WalkedStep step{};
  std::vector<WalkedShare> shares = {};
  std::vector<int32_t> drawn = {}, follows = {}, ids = {}, pages = {};  // pages: [kTableRows, stride]
  int64_t stride = 0;

  // The drawn row of the share that this one follows, which is not the first.
  int32_t followed_by(const WalkedShare& share, int32_t row) const {
    return share.branches ? follows[share.drawn + row] : row - 1;
  }
};

// What each row of a tree follows; of the first it means nothing.
using Follows = std::vector<int32_t>;

Follows only_siblings(int32_t drafts) { return Follows(1 + drafts, 0); }

Follows one_branch(int32_t drafts) {
  Follows follows(1 + drafts, 0);
  std::iota(follows.begin() + 1, follows.end(), 0);
  return follows;
}

std::vector<int32_t> depths_of(const Follows& follows) {
  std::vector<int32_t> depths(follows.size(), 0);
  for (size_t i = 1; i < follows.size(); ++i) depths[i] = depths[follows[i]] + 1;
  return depths;
}

enum class Draws { any, whole_branch, begun_branch, first_missing };

class RandomWalk {
 public:
  explicit RandomWalk(uint32_t seed) : random_(seed) {}
  WalkCase make() {
    const int32_t page_sizes[] = {1, 16, 64, 128};
    WalkCase made = empty(PageSize(page_sizes[below(4)]));
    const int32_t live = below(kWalked + 1);
    while (made.step.live < live && std::ssize(made.ids) < kWalkedRows / 2) {
      if (below(3) == 0)
        add_tree(made, random_tree(), static_cast<Draws>(below(4)));
      else
        add_share(made);
    }
    made.step.passing = below(made.step.live + 1);
    return made;
  }

  WalkCase empty(PageSize page_size) {
    WalkCase made{.page_size = page_size};
    made.stride = made.page_size.pages_for(kMostText);
    for (int64_t i = 0; i < kTableRows * made.stride; ++i) made.pages.push_back(below(100000));
    made.step = {.live = 0, .passing = 0, .rows = 0, .number = static_cast<uint32_t>(random_())};
    return made;
  }

  void add_tree(WalkCase& made, const Follows& follows, Draws draws) {
    const auto drafts = static_cast<int32_t>(follows.size()) - 1;
    const std::vector<int32_t> depths = depths_of(follows);
    const bool drafted = below(4) > 0, has_page = below(5) > 0;
    const int32_t position = below(kMostText / 2), text_end = position + 1, begin = position + drafted;
    const int32_t most_end = text_end + std::ranges::max(depths) + has_page;
    const auto first_row = static_cast<int32_t>(made.ids.size());
    for (int32_t i = 0; i <= drafts; ++i) made.ids.push_back(token());
    made.shares.push_back({.row = {1 + below(kTableRows - 1)},
                           .position = position,
                           .first_row = first_row,
                           .text_end = text_end,
                           .drafts = drafts,
                           .drawn = static_cast<int32_t>(made.drawn.size()),
                           .begin = begin,
                           .most_end = most_end,
                           .first_slot = made.step.rows,
                           .state_before = below(1000),
                           .branches = 1,
                           .unused = 0});
    made.step.rows += most_end - begin;
    ++made.step.live;
    std::vector<int32_t> drawn(follows.size());
    for (int32_t& each : drawn) each = below(12) == 0 ? -1 : token();
    if (draws == Draws::first_missing) drawn.front() = -1;
    if (draws == Draws::whole_branch || draws == Draws::begun_branch) {
      const auto deepest = static_cast<int32_t>(std::ranges::max_element(depths) - depths.begin());
      const int32_t most = draws == Draws::whole_branch ? depths[deepest] : below(depths[deepest] + 1);
      for (int32_t row = deepest; row > 0; row = follows[row])
        if (depths[row] <= most) drawn[follows[row]] = made.ids[first_row + row];
    }
    made.drawn.insert(made.drawn.end(), drawn.begin(), drawn.end());
    made.follows.push_back(-1);
    made.follows.insert(made.follows.end(), follows.begin() + 1, follows.end());
  }

 private:
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }
  int32_t token() { return 1 + below(2); }

  // From a bush to few long branches.
  Follows random_tree() {
    const int32_t drafts = below(4) == 0 ? kMostTreeDrafts : 1 + below(kMostTreeDrafts), reach = 1 + below(8);
    const bool is_bush = below(3) == 0;
    Follows follows = {0};
    for (int32_t row = 1; row <= drafts; ++row)
      follows.push_back(is_bush ? below(row) : row - 1 - below(std::min(reach, row)));
    return follows;
  }

  void add_share(WalkCase& made) {
    const bool is_prompt = below(4) == 0, draws = !is_prompt || below(2) == 0, drafted = !is_prompt && below(4) > 0;
    const int32_t position = below(kMostText / 2), text = is_prompt ? 1 + below(300) : 1;
    const int32_t drafts = draws && below(3) > 0 ? below(8) : 0, end = position + text + drafts;
    const int32_t begin = position + drafted, most_end = end + (draws && below(5) > 0);
    const auto first_row = static_cast<int32_t>(made.ids.size());
    for (int32_t i = position; i < end; ++i) made.ids.push_back(token());
    if (begin >= most_end) return;  // its last token has no page
    made.shares.push_back({.row = {1 + below(kTableRows - 1)},
                           .position = position,
                           .first_row = first_row,
                           .text_end = position + text,
                           .drafts = drafts,
                           .drawn = draws ? static_cast<int32_t>(made.drawn.size()) : -1,
                           .begin = begin,
                           .most_end = most_end,
                           .first_slot = made.step.rows,
                           .state_before = below(1000),
                           .branches = 0,
                           .unused = 0});
    made.step.rows += most_end - begin;
    ++made.step.live;
    const bool whole = below(4) == 0;
    for (int32_t i = 0; draws && i <= drafts; ++i) {
      const bool comes = whole && i < drafts;
      made.drawn.push_back(comes ? made.ids[first_row + text + i] : below(12) == 0 ? -1 : token());
      made.follows.push_back(-1);  // nobody asks
    }
  }

  std::mt19937 random_;
};

// A share's walk: drawn rows from the text's last, and the tokens that they gave.
struct HostWalk {
  std::vector<int32_t> path = {}, came = {};
};

HostWalk walk_of(const WalkCase& given, const WalkedShare& share) {
  if (share.drawn < 0) return {.path = {0}};
  const int32_t last_row = share.first_row + share.text_end - share.position - 1;
  HostWalk walk;
  for (int32_t at = 0; at >= 0;) {
    const int32_t token = given.drawn[share.drawn + at], before = at;
    walk.path.push_back(at);
    at = -1;
    if (token < 0) continue;
    walk.came.push_back(token);
    for (int32_t row = share.drafts; row > 0; --row)  // down to the first of those that are equal
      if (given.followed_by(share, row) == before && given.ids[last_row + row] == token) at = row;
  }
  return walk;
}

// The host's walk, token by token (engine/draft_slots.h), and where it leaves each slot.
Walks expected_of(const WalkCase& given) {
  const WalkedStep& step = given.step;
  Walks walks{.numbers = {step.live, step.passing, step.rows, static_cast<int32_t>(step.number)}};
  for (const WalkedShare& share : given.shares) {
    const auto [path, came] = walk_of(given, share);
    const auto tokens = static_cast<int32_t>(came.size()), nodes = static_cast<int32_t>(path.size());
    const int32_t committed = share.drawn < 0 ? share.text_end : share.text_end + tokens - 1;
    int32_t end = std::min(share.drawn < 0 ? committed : committed + 1, share.most_end);
    end = std::max(end, share.begin + 1);
    // The row of the step whose token lies there after it.
    const auto row_at = [&](int32_t slot) {
      const int32_t ahead = slot - share.text_end + 1, last_row = share.first_row + share.text_end - share.position - 1;
      if (!share.branches || ahead < 0) return last_row + ahead;
      return ahead < nodes ? last_row + path[ahead] : kMeansNothing;
    };
    walks.rows.push_back(share.row.value);
    walks.lengths.push_back(end);
    walks.wanted_rows.push_back(share.first_slot + end - share.begin - 1);
    walks.kept_rows.push_back(committed > share.position ? row_at(committed - 1) : -1);
    for (int32_t slot = share.begin; slot < share.most_end; ++slot) {
      const int32_t tokens_of_page = given.page_size.tokens();
      const int32_t page = given.pages[share.row.value * given.stride + slot / tokens_of_page];
      const bool was_drawn = slot >= share.text_end && (slot >= committed || tokens == 0);
      // Behind all that came any token does.
      const bool is_meant = slot < end && (!was_drawn || tokens > 0);
      walks.input_ids.push_back(!is_meant                        ? -1
                                : was_drawn && slot == committed ? came.back()
                                                                 : given.ids[row_at(slot)]);
      walks.positions.push_back(slot);
      walks.slots.push_back(page * tokens_of_page + slot % tokens_of_page);
      walks.state_rows.push_back(slot == share.position ? -1 - share.state_before : row_at(slot - 1));
    }
    walks.paths.insert(walks.paths.end(), {share.branches ? nodes : 1, share.text_end - 1, row_at(share.text_end - 1)});
    if (share.branches) walks.path_rows.insert(walks.path_rows.end(), path.begin(), path.end());
  }
  return walks;
}

class DeviceWalk {
 public:
  DeviceWalk() : exec_({.threads = 1, .stream = &stream_}) {}

  Walks run(const WalkCase& given) {
    const Buffer step(sizeof(WalkedStep), Place::pinned);
    const Buffer shares(kWalked * sizeof(WalkedShare), Place::pinned);
    *reinterpret_cast<WalkedStep*>(step.data()) = given.step;
    std::copy(given.shares.begin(), given.shares.end(), reinterpret_cast<WalkedShare*>(shares.data()));
    const Buffer follows(std::max<size_t>(given.follows.size(), 1) * sizeof(int32_t), Place::pinned);
    std::copy(given.follows.begin(), given.follows.end(), reinterpret_cast<int32_t*>(follows.data()));
    const Buffer drawn = on_device(given.drawn), ids = on_device(given.ids), pages = on_device(given.pages);
    const Buffer out = on_device(std::vector<int32_t>(kArrays * kWalkedRows, kNotWalked));
    const auto array = [&](int32_t index) { return reinterpret_cast<int32_t*>(out.data()) + index * kWalkedRows; };
    cuda::walk({.step = reinterpret_cast<const WalkedStep*>(step.data()),
                .shares = reinterpret_cast<const WalkedShare*>(shares.data()),
                .captured = kWalked,
                .drawn = reinterpret_cast<const int32_t*>(drawn.data()),
                .follows = reinterpret_cast<const int32_t*>(follows.data()),
                .ids = reinterpret_cast<const int32_t*>(ids.data()),
                .table = {.pages = reinterpret_cast<const PageId*>(pages.data()),
                          .stride = given.stride,
                          .rows = kTableRows,
                          .width = static_cast<int32_t>(given.stride),
                          .page_size = given.page_size,
                          .pool_pages = 100000},
                .live = array(0),
                .passing = array(0) + 1,
                .query_rows = array(0) + 2,
                .number = reinterpret_cast<uint32_t*>(array(0) + 3),
                .rows = reinterpret_cast<RequestRow*>(array(1)),
                .lengths = reinterpret_cast<TokenCount*>(array(2)),
                .wanted_rows = array(3),
                .kept_rows = array(4),
                .input_ids = array(5),
                .positions = array(6),
                .slots = reinterpret_cast<TokenSlot*>(array(7)),
                .state_rows = array(8),
                .paths = reinterpret_cast<WalkedPath*>(array(9)),
                .path_rows = array(10)},
               exec_);
    // All that was written: no more than the first `count`.
    const auto read = [&](int32_t index, int64_t count) {
      std::vector<int32_t> numbers(kWalkedRows);
      stream_.copy(reinterpret_cast<std::byte*>(numbers.data()), reinterpret_cast<const std::byte*>(array(index)),
                   numbers.size() * sizeof(int32_t));
      exec_.wait();
      EXPECT_TRUE(std::all_of(numbers.begin() + count, numbers.end(), [](int32_t x) { return x == kNotWalked; }))
          << "array " << index << " was written behind its " << count;
      numbers.resize(static_cast<size_t>(count));
      return numbers;
    };
    const int32_t live = given.step.live, rows = given.step.rows;
    Walks walks{.numbers = read(0, 4),
                .rows = read(1, live),
                .lengths = read(2, live),
                .wanted_rows = read(3, live),
                .kept_rows = read(4, live),
                .input_ids = read(5, rows),
                .positions = read(6, rows),
                .slots = read(7, rows),
                .state_rows = read(8, rows)};
    const std::vector<int32_t> paths = read(9, live * kPathWords), path_rows = read(10, live * kPathWidth);
    for (int32_t b = 0; b < live; ++b) {
      const auto path = paths.begin() + b * kPathWords, nodes = path_rows.begin() + b * kPathWidth;
      walks.paths.insert(walks.paths.end(), path, path + 3);
      if (given.shares[b].branches)
        walks.path_rows.insert(walks.path_rows.end(), nodes, nodes + std::clamp(*path, 0, kPathWidth));
    }
    return walks;
  }

 private:
  static constexpr int32_t kArrays = 11;
  Buffer on_device(const std::vector<int32_t>& numbers) {
    Buffer buffer(std::max<size_t>(numbers.size(), 1) * sizeof(int32_t), Place::device);
    if (!numbers.empty())
      stream_.copy(buffer.data(), reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * sizeof(int32_t));
    exec_.wait();
    return buffer;
  }

  quire::cuda::Stream stream_;
  Exec exec_;
};

// Where a slot means nothing, any token does, and any row of the step.
void forget_the_meaningless(const WalkCase& given, const Walks& expected, Walks& got) {
  for (size_t i = 0; i < expected.input_ids.size(); ++i) {
    EXPECT_GE(got.input_ids[i], 0) << "row " << i << " has no token";
    if (expected.input_ids[i] < 0) got.input_ids[i] = -1;
    if (expected.state_rows[i] != kMeansNothing) continue;
    EXPECT_GE(got.state_rows[i], 0) << "row " << i << " has no state";
    EXPECT_LT(got.state_rows[i], std::ssize(given.ids)) << "row " << i << " has no state";
    got.state_rows[i] = kMeansNothing;
  }
}

void expect_walked(const WalkCase& given, DeviceWalk& device) {
  const Walks expected = expected_of(given);
  Walks got = device.run(given);
  forget_the_meaningless(given, expected, got);
  EXPECT_EQ(got.numbers, expected.numbers);
  EXPECT_EQ(got.rows, expected.rows);
  EXPECT_EQ(got.lengths, expected.lengths);
  EXPECT_EQ(got.wanted_rows, expected.wanted_rows);
  EXPECT_EQ(got.kept_rows, expected.kept_rows);
  EXPECT_EQ(got.input_ids, expected.input_ids);
  EXPECT_EQ(got.positions, expected.positions);
  EXPECT_EQ(got.slots, expected.slots);
  EXPECT_EQ(got.state_rows, expected.state_rows);
  EXPECT_EQ(got.paths, expected.paths);
  EXPECT_EQ(got.path_rows, expected.path_rows);
}

TEST(DraftWalk, FindsWhatTheHostFinds) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  DeviceWalk device;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    expect_walked(RandomWalk(seed).make(), device);
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(DraftWalk, GoesThroughTreesOfAllDraftsThatThereMayBe) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  DeviceWalk device;
  for (const int32_t page_size : {1, 16, 64, 128}) {
    SCOPED_TRACE(cat("page size ", page_size));
    RandomWalk random(static_cast<uint32_t>(page_size));
    WalkCase given = random.empty(PageSize(page_size));
    for (const Follows& follows : {one_branch(kMostTreeDrafts), only_siblings(kMostTreeDrafts)})
      for (const Draws draws : {Draws::any, Draws::whole_branch, Draws::begun_branch, Draws::first_missing})
        random.add_tree(given, follows, draws);
    expect_walked(given, device);
  }
}

TEST(DraftWalk, TakesTheFirstOfEqualSiblings) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  DeviceWalk device;
  for (const int32_t first : {1, 32, 33, 63, 64}) {
    SCOPED_TRACE(cat("the first that comes is ", first));
    RandomWalk random(static_cast<uint32_t>(first));
    WalkCase given = random.empty(PageSize(16));
    random.add_tree(given, only_siblings(kMostTreeDrafts), Draws::any);
    std::ranges::fill(given.drawn, 1);
    std::fill(given.ids.begin(), given.ids.begin() + first, 2);
    std::fill(given.ids.begin() + first, given.ids.end(), 1);
    EXPECT_EQ(expected_of(given).path_rows, (std::vector<int32_t>{0, first}));
    expect_walked(given, device);
  }
}

}  // namespace
}  // namespace quire::model
