#include "attn/decode_cut.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire::attn {
namespace {

TEST(Parts, AreFixedAndGrowWithThePosition) {
  EXPECT_EQ(part_begin(0), 0);
  EXPECT_EQ(part_end(255), 256);
  EXPECT_EQ(part_begin(4095), 3840);
  EXPECT_EQ(part_end(4096), 4608);
  EXPECT_EQ(part_begin(1'000'000), 983'040);
  int32_t index = 0;
  for (int32_t at = 0; at < 1 << 20; at = part_end(at), ++index) {
    ASSERT_EQ(part_index(at), index);
    ASSERT_EQ(begin_of_part(index), at);
    ASSERT_EQ(part_begin(part_end(at) - 1), at);
    ASSERT_EQ(part_index(part_end(at) - 1), index);
  }
  EXPECT_EQ(index, 16 + 8 * 8) << "parts of a million keys";
}

struct Queries {
  int32_t length, queries;
};

// A call, and what its workers make of it.
struct Call {
  DecodeCut cut;
  std::vector<Queries> sequences;
  int32_t workers;

  std::vector<SequenceWork> line() const {
    std::vector<SequenceWork> seqs(sequences.size() + 1);
    int32_t row = 0, units = 0;
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto [length, queries] = sequences[b];
      SequenceWork& seq = seqs[b];
      seq = {.units_before = units,
             .first = first_seen(length, queries),
             .length = length,
             .first_row = row,
             .table_row = 0,
             .first_page = 0};
      units += units_of(cut, seq, queries);
      row += queries;
    }
    seqs.back() = {.units_before = units, .first = 0, .length = 0, .first_row = row, .table_row = 0, .first_page = 0};
    return seqs;
  }

  int32_t first_seen(int32_t length, int32_t queries) const {
    if (cut.window < 0 || queries == 0) return 0;
    const int32_t end = cut.branch ? length + 1 : length - (queries - 1);
    return std::clamp(end - 1 - cut.window, 0, length);
  }
};

std::string to_string(const Call& call) {
  std::string text =
      cat("group ", call.cut.group, ", tiles of ", 1 << call.cut.tile_shift, ", branch ", call.cut.branch, ", window ",
          call.cut.window, call.cut.is_causal ? ", causal" : "", call.cut.is_fixed ? ", fixed" : "", ", slots ",
          call.cut.slots_of_worker, ", ", call.workers, " workers:");
  for (const auto& [length, queries] : call.sequences) text += cat(" ", queries, " of ", length);
  return text;
}

// As TileScheduler does it, for one worker after the other.
class Workers {
 public:
  explicit Workers(const Call& call)
      : call_(call), seqs_(call.line()), stream_k_(StreamK::of(seqs_.back().units_before, call.workers)) {}

  struct Split {
    size_t b;
    int32_t tile, first, end;
    bool is_whole;
  };

  std::vector<Split> of(int32_t worker) const {
    std::vector<Split> splits;
    int32_t unit = begin(worker);
    const int32_t end = begin(worker + 1);
    while (unit < end) {
      const size_t b = sequence_of(unit);
      const SequenceWork& seq = seqs_[b];
      const int32_t at = unit - seq.units_before, tile = tile_with(call_.cut, seq, queries(b), at);
      const TileWork work = tile_work(call_.cut, seq, queries(b), tile);
      EXPECT_GE(at, work.units_before);
      EXPECT_LT(at, work.units_before + work.units);
      EXPECT_GE(work.units, work.units_of_keys());
      const int32_t in_tile = at - work.units_before, count = std::min(end - unit, work.units - in_tile);
      const int32_t first = work.first + in_tile * kUnit;
      unit += count;
      if (first >= work.end) continue;
      splits.push_back({b, tile, first, std::min(first + count * kUnit, work.end),
                        in_tile == 0 && first + count * kUnit >= work.end});
    }
    return splits;
  }

  int32_t count() const { return stream_k_.count; }
  int32_t queries(size_t b) const { return seqs_[b + 1].first_row - seqs_[b].first_row; }
  TileWork tile(size_t b, int32_t tile) const { return tile_work(call_.cut, seqs_[b], queries(b), tile); }
  TileWorkers workers_of(size_t b, const TileWork& tile) const { return attn::workers_of(stream_k_, seqs_[b], tile); }

 private:
  size_t sequence_of(int32_t unit) const {
    size_t b = 0;
    while (seqs_[b + 1].units_before <= unit) ++b;
    return b;
  }
  int32_t begin(int32_t worker) const {
    const int32_t unit = stream_k_.begin(worker);
    if (unit >= seqs_.back().units_before) return seqs_.back().units_before;
    const size_t b = sequence_of(unit);
    return seqs_[b].units_before +
           worker_begin(call_.cut, stream_k_, seqs_[b], queries(b), unit - seqs_[b].units_before);
  }

  const Call& call_;
  std::vector<SequenceWork> seqs_;
  StreamK stream_k_;
};

// Every place of every tile is one worker's, parts are not cut, and partial results have places of their own.
void expect_right(const Call& call) {
  SCOPED_TRACE(to_string(call));
  const Workers workers(call);
  std::map<std::pair<size_t, int32_t>, int32_t> done;  // places of a tile
  std::map<std::pair<size_t, int32_t>, int32_t> arrived;
  std::set<int32_t> slots;
  for (int32_t worker = 0; worker < workers.count(); ++worker)
    for (const Workers::Split& split : workers.of(worker)) {
      const TileWork tile = workers.tile(split.b, split.tile);
      const auto key = std::pair{split.b, split.tile};
      const auto [known, is_new] = done.emplace(key, tile.first);
      ASSERT_EQ(known->second, split.first);
      known->second = split.end;
      int32_t parts = 0;
      if (call.cut.is_fixed) {
        ASSERT_EQ(split.first, part_begin(split.first));
        int32_t end = split.first;
        for (; end < split.end; end = std::min(tile.tail.part_end_at(end), tile.end)) ++parts;
        ASSERT_EQ(end, split.end);
      } else {
        parts = 1;
      }
      if (split.is_whole) {
        ASSERT_TRUE(!call.cut.is_fixed || parts == tile.parts);
        continue;
      }
      const TileWorkers of_tile = workers.workers_of(split.b, tile);
      ASSERT_LT(of_tile.first, of_tile.last);
      const int32_t before = call.cut.is_fixed
                                 ? part_index(std::min(split.first, tile.tail.begin)) - part_index(tile.first)
                                 : worker - of_tile.first;
      ASSERT_EQ(before, arrived[key]);
      arrived[key] += parts;
      for (int32_t i = 0; i < parts; ++i) {
        const int32_t slot = (of_tile.first + 1) * call.cut.slots_of_worker + before + i;
        ASSERT_LT(slot, (of_tile.last + 1) * call.cut.slots_of_worker);
        ASSERT_TRUE(slots.insert(slot).second);
      }
    }
  for (size_t b = 0; b < call.sequences.size(); ++b)
    for (int32_t tile = 0; tile < call.cut.tiles_of(workers.queries(b)); ++tile) {
      const TileWork work = workers.tile(b, tile);
      const auto key = std::pair{b, tile};
      ASSERT_TRUE(work.end <= work.first || done[key] == work.end) << "sequence " << b << ", tile " << tile;
      const auto counted = arrived.find(key);
      if (counted == arrived.end()) continue;
      const TileWorkers of_tile = workers.workers_of(b, work);
      ASSERT_EQ(counted->second, call.cut.is_fixed ? work.parts : of_tile.last - of_tile.first + 1);
    }
}

class RandomCalls {
 public:
  Call next() {
    const bool is_tree = below(3) == 0;
    Call call{.cut = {.group = pick({1, 2, 3, 4, 7, 8, 16, 128}),
                      .tile_shift = 3 + below(4),
                      .branch = is_tree ? 1 + below(70) : 0,
                      .window = below(3) == 0 ? below(700) : -1,
                      .round = pick({128, 256}),
                      .slots_of_worker = 2 + below(below(2) ? 3 : 40),
                      .is_causal = !is_tree && below(4) > 0,
                      .is_fixed = below(3) > 0},
              .sequences = {},
              .workers = 1 + below(140)};
    const int32_t count = 1 + below(12), longest = pick({40, 600, 5000, 70000}), most = pick({1, 3, 40, 300});
    for (int32_t b = 0; b < count; ++b) {
      const int32_t queries = below(8) == 0 ? 0 : 1 + below(most);
      call.sequences.push_back({(call.cut.is_causal ? queries : 0) + below(longest), queries});
    }
    return call;
  }

 private:
  int32_t below(int32_t bound) { return static_cast<int32_t>(random_() % bound); }
  int32_t pick(std::initializer_list<int32_t> of) { return of.begin()[below(static_cast<int32_t>(of.size()))]; }
  std::mt19937 random_{5};
};

TEST(DecodeCut, EveryKeyIsOneWorkers) {
  RandomCalls calls;
  for (int32_t i = 0; i < 1000 && !::testing::Test::HasFatalFailure(); ++i) expect_right(calls.next());
}

// 4096 keys of one sequence: a part for each of the 16 workers that 8 kv heads leave.
TEST(DecodeCut, OneSequenceUsesAllWorkers) {
  const Call call{.cut = {.group = 4,
                          .tile_shift = 3,
                          .branch = 0,
                          .window = -1,
                          .round = 128,
                          .slots_of_worker = 64,
                          .is_causal = true,
                          .is_fixed = true},
                  .sequences = {{4096, 1}},
                  .workers = 16};
  const Workers workers(call);
  for (int32_t worker = 0; worker < 16; ++worker) {
    const std::vector<Workers::Split> splits = workers.of(worker);
    ASSERT_EQ(splits.size(), 1u);
    EXPECT_EQ(splits[0].first, worker * 256);
    EXPECT_EQ(splits[0].end, worker * 256 + 256);
  }
}

// A branch's key lies where it would lie in pages: in the same part, and at the same place of a round.
TEST(Tail, PlacesOfABranchAreThoseOfItsPositions) {
  for (const int32_t round : {128, 256})
    for (const int32_t length : {0, 1, 127, 128, 250, 255, 256, 511, 4090, 4096, 8191})
      for (const int32_t branch : {1, 6, 64, 300}) {
        const DecodeCut cut{.group = 2,
                            .tile_shift = 3,
                            .branch = branch,
                            .window = -1,
                            .round = round,
                            .slots_of_worker = 2,
                            .is_causal = false,
                            .is_fixed = true};
        const Tail tail = tail_of(cut, length, 3);
        const int32_t end = end_of_places(cut, length, tail, 3);
        std::map<std::pair<int32_t, int32_t>, int32_t> seen;  // (query, position): times
        int32_t part_of_place = -1;
        for (int32_t place = 0; place < end; ++place) {
          const auto [position, query] = tail.at(place);
          ASSERT_EQ(place % round, position % round);
          ASSERT_EQ(query < 0, place < tail.begin);
          ASSERT_GE(part_index(position), part_of_place);
          part_of_place = part_index(position);
          ++seen[{query, position}];
        }
        for (int32_t query = 0; query < 3; ++query)
          for (int32_t position = tail.begin; position < length + branch; ++position)
            ASSERT_EQ((seen[{query, position}]), 1);
      }
}

}  // namespace
}  // namespace quire::attn
