// The walk of a GPU against one in plain words: random steps of tokens that are often equal.
#include "model/draft_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/cuda.h"

namespace quire::model {
namespace {

constexpr int32_t kWalked = 40, kWalkedRows = 4000, kTableRows = 64, kMostText = 700;

// What the walk says. Rows of all shares, one after the other.
struct Walks {
  std::vector<int32_t> numbers = {};  // live, passing, query_rows, number
  std::vector<int32_t> rows = {}, lengths = {}, wanted_rows = {}, kept_rows = {};
  std::vector<int32_t> input_ids = {}, positions = {}, slots = {}, state_rows = {};
};

struct WalkCase {
  PageSize page_size{16};
  WalkedStep step{};
  std::vector<WalkedShare> shares = {};
  std::vector<int32_t> drawn = {}, ids = {}, pages = {};  // pages: [kTableRows, stride]
  int64_t stride = 0;
};

class RandomWalk {
 public:
  explicit RandomWalk(uint32_t seed) : random_(seed) {}
  WalkCase make() {
    const int32_t page_sizes[] = {1, 16, 64};
    WalkCase made{.page_size = PageSize(page_sizes[below(3)])};
    made.stride = made.page_size.pages_for(kMostText);
    for (int64_t i = 0; i < kTableRows * made.stride; ++i) made.pages.push_back(below(100000));
    made.step = {.live = 0, .passing = 0, .rows = 0, .number = static_cast<uint32_t>(random_())};
    const int32_t live = below(kWalked + 1);
    while (made.step.live < live && std::ssize(made.ids) < kWalkedRows / 2) add_share(made);
    made.step.passing = below(made.step.live + 1);
    return made;
  }

 private:
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }
  int32_t token() { return 1 + below(2); }

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
                           .unused = {}});
    made.step.rows += most_end - begin;
    ++made.step.live;
    const bool whole = below(4) == 0;
    for (int32_t i = 0; draws && i <= drafts; ++i) {
      const bool comes = whole && i < drafts;
      made.drawn.push_back(comes ? made.ids[first_row + text + i] : below(12) == 0 ? -1 : token());
    }
  }

  std::mt19937 random_;
};

// The host's walk, token by token (engine/draft_slots.h), and where it leaves each slot.
Walks expected_of(const WalkCase& given) {
  const WalkedStep& step = given.step;
  Walks walks{.numbers = {step.live, step.passing, step.rows, static_cast<int32_t>(step.number)}};
  for (const WalkedShare& share : given.shares) {
    const int32_t text = share.text_end - share.position;
    std::vector<int32_t> came;  // tokens
    for (int32_t i = 0; share.drawn >= 0; ++i) {
      const int32_t token = given.drawn[share.drawn + i];
      if (token >= 0) came.push_back(token);
      if (token < 0 || i == share.drafts || token != given.ids[share.first_row + text + i]) break;
    }
    const auto tokens = static_cast<int32_t>(came.size());
    const int32_t committed = share.drawn < 0 ? share.text_end : share.text_end + tokens - 1;
    int32_t end = std::min(share.drawn < 0 ? committed : committed + 1, share.most_end);
    end = std::max(end, share.begin + 1);
    walks.rows.push_back(share.row.value);
    walks.lengths.push_back(end);
    walks.wanted_rows.push_back(share.first_slot + end - share.begin - 1);
    walks.kept_rows.push_back(committed > share.position ? share.first_row + committed - share.position - 1 : -1);
    for (int32_t slot = share.begin; slot < share.most_end; ++slot) {
      const int32_t row = share.first_row + slot - share.position, tokens_of_page = given.page_size.tokens();
      const int32_t page = given.pages[share.row.value * given.stride + slot / tokens_of_page];
      const bool was_drawn = slot >= share.text_end && (slot >= committed || tokens == 0);
      // Behind all that came any token does.
      const bool is_meant = slot < end && (!was_drawn || tokens > 0);
      walks.input_ids.push_back(!is_meant ? -1 : was_drawn && slot == committed ? came.back() : given.ids[row]);
      walks.positions.push_back(slot);
      walks.slots.push_back(page * tokens_of_page + slot % tokens_of_page);
      walks.state_rows.push_back(slot == share.position ? -1 - share.state_before : row - 1);
    }
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
    const Buffer drawn = on_device(given.drawn), ids = on_device(given.ids), pages = on_device(given.pages);
    const Buffer out(kArrays * kWalkedRows * sizeof(int32_t), Place::device);
    const auto array = [&](int32_t index) { return reinterpret_cast<int32_t*>(out.data()) + index * kWalkedRows; };
    cuda::walk({.step = reinterpret_cast<const WalkedStep*>(step.data()),
                .shares = reinterpret_cast<const WalkedShare*>(shares.data()),
                .captured = kWalked,
                .drawn = reinterpret_cast<const int32_t*>(drawn.data()),
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
                .state_rows = array(8)},
               exec_);
    const auto read = [&](int32_t index, int64_t count) {
      std::vector<int32_t> numbers(static_cast<size_t>(count));
      if (count == 0) return numbers;
      stream_.copy(reinterpret_cast<std::byte*>(numbers.data()), reinterpret_cast<const std::byte*>(array(index)),
                   numbers.size() * sizeof(int32_t));
      exec_.wait();
      return numbers;
    };
    const int32_t live = given.step.live, rows = given.step.rows;
    return {.numbers = read(0, 4),
            .rows = read(1, live),
            .lengths = read(2, live),
            .wanted_rows = read(3, live),
            .kept_rows = read(4, live),
            .input_ids = read(5, rows),
            .positions = read(6, rows),
            .slots = read(7, rows),
            .state_rows = read(8, rows)};
  }

 private:
  static constexpr int32_t kArrays = 9;
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

TEST(DraftWalk, FindsWhatTheHostFinds) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  DeviceWalk device;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    const WalkCase given = RandomWalk(seed).make();
    const Walks expected = expected_of(given);
    Walks got = device.run(given);
    EXPECT_EQ(got.numbers, expected.numbers);
    EXPECT_EQ(got.rows, expected.rows);
    EXPECT_EQ(got.lengths, expected.lengths);
    EXPECT_EQ(got.wanted_rows, expected.wanted_rows);
    EXPECT_EQ(got.kept_rows, expected.kept_rows);
    for (size_t i = 0; i < expected.input_ids.size(); ++i) {
      EXPECT_GE(got.input_ids[i], 0) << "row " << i << " has no token";
      if (expected.input_ids[i] < 0) got.input_ids[i] = -1;
    }
    EXPECT_EQ(got.input_ids, expected.input_ids);
    EXPECT_EQ(got.positions, expected.positions);
    EXPECT_EQ(got.slots, expected.slots);
    EXPECT_EQ(got.state_rows, expected.state_rows);
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace quire::model
