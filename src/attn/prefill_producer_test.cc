// prefill's producer beside a model of its consumers, as threads of which one runs at a time. It goes on until it has
// to wait; when all have to, nobody ever gets on, and the test fails instead of hanging. What a thread waits for never
// ceases to be so, hence the order in which threads run does not matter.
#include "attn/prefill_producer.h"

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace quire::attn::cuda {
namespace {

struct NobodyGetsOn {};

// Runs its threads in turns.
class Turns {
 public:
  void add(const std::function<void()>& work) {
    const size_t self = threads_.size();
    wanted_.push_back([] { return true; });
    threads_.emplace_back([this, self, work] {
      try {
        wait_until(self, [] { return true; });
        work();
      } catch (const NobodyGetsOn&) {
      }
      const std::lock_guard lock(mutex_);
      wanted_[self] = nullptr;
      pass_on();
    });
  }

  // Whether all came to their end.
  bool run() {
    {
      const std::lock_guard lock(mutex_);
      running_ = 0;
      turned_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    return !is_stuck_;
  }

  // Called by a thread that runs.
  void wait_until(const std::function<bool()>& wanted) { wait_until(*running_, wanted); }

 private:
  void wait_until(size_t self, const std::function<bool()>& wanted) {
    std::unique_lock lock(mutex_);
    if (running_ == self) {
      if (wanted()) return;
      wanted_[self] = wanted;
      pass_on();
    }
    turned_.wait(lock, [&] { return running_ == self || is_stuck_; });
    if (is_stuck_) throw NobodyGetsOn{};
  }

  void pass_on() {
    if (is_stuck_) return;
    bool is_over = true;
    for (size_t i = 0; i < wanted_.size(); ++i) {
      is_over = is_over && !wanted_[i];
      if (!wanted_[i] || !wanted_[i]()) continue;
      running_ = i;
      turned_.notify_all();
      return;
    }
    is_stuck_ = !is_over;
    turned_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable turned_;
  std::optional<size_t> running_;
  bool is_stuck_ = false;
  std::vector<std::function<bool()>> wanted_;  // by each thread before it goes on; none: it has ended
  std::vector<std::thread> threads_;
};

// As the hardware's: a phase is over when all arrivals came, and is waited for by its parity.
struct Barrier {
  int32_t arrivals;
  int32_t arrived = 0, phases = 0;

  void arrive() {
    if (++arrived < arrivals) return;
    arrived = 0;
    ++phases;
  }
  bool is_over(int32_t parity) const { return phases % 2 != parity; }
};

struct PipelineState {
  int32_t stage = 0, phase = 0;
  void next(int32_t count) {
    if (++stage < count) return;
    stage = 0;
    phase ^= 1;
  }
};

struct Tile {
  int32_t steps;
};
struct Source {
  explicit Source(const Tile&) {}
};
struct Steps {
  int32_t first = 0, end;
  explicit Steps(const Tile& tile) : end(tile.steps) {}
};

struct Shape {
  int32_t producers, consumers, stages;
  bool publishes_late = false;
};

struct Block {
  Block(const Shape& of, const std::vector<Tile>& given) : shape(of), tiles(given) {
    keys_full.assign(shape.stages, {shape.producers});
    values_full.assign(shape.stages, {shape.producers});
    keys_empty.assign(shape.stages, {shape.consumers});
    values_empty.assign(shape.stages, {shape.consumers});
    tile_full.fill({1});
    tile_empty.fill({shape.consumers + shape.producers});
    passed.assign(shape.consumers, 0);
    passed[0] = 1;
  }

  void wait(const Barrier& barrier, int32_t parity) {
    turns.wait_until([&barrier, parity] { return barrier.is_over(parity); });
  }

  Shape shape;
  std::vector<Tile> tiles;
  Turns turns;
  std::vector<Barrier> keys_full, values_full, keys_empty, values_empty;
  std::array<Barrier, kTileRing> tile_full, tile_empty;
  std::array<const Tile*, kTileRing> published = {};
  std::vector<int32_t> passed;  // how often each consumer was given its turn
  int32_t keys_used = 0, values_used = 0;
};

class Tiles {
 public:
  explicit Tiles(Block& block) : block_(block) {}
  const Tile* take() {
    block_.wait(block_.tile_full[taken_.stage], taken_.phase);
    const Tile* const tile = block_.published[taken_.stage];
    taken_.next(kTileRing);
    return tile;
  }
  void release() {
    block_.tile_empty[released_.stage].arrive();
    released_.next(kTileRing);
  }

 private:
  Block& block_;
  PipelineState taken_, released_;
};

class TileScheduler {
 public:
  explicit TileScheduler(Block& block) : block_(block) {}
  void publish_next() {
    block_.wait(block_.tile_empty[turn_.stage], turn_.phase ^ 1);
    block_.published[turn_.stage] = next_ < block_.tiles.size() ? &block_.tiles[next_] : nullptr;
    ++next_;
    block_.tile_full[turn_.stage].arrive();
    turn_.next(kTileRing);
  }

 private:
  Block& block_;
  PipelineState turn_;
  size_t next_ = 0;
};

// A copy is there as soon as its maker looks.
struct Copies {
  static void end_load() {}
  template <int32_t kLoads>
  static void wait_for_all_but() {}
  static void signal(Barrier* full) { full->arrive(); }
};

class Loader {
 public:
  explicit Loader(Block& block) : block_(block) {}
  int32_t look_up(const Source&, int32_t) const { return 0; }
  void load_keys(const Source&, int32_t, int32_t) { load(block_.keys_empty, block_.keys_full, keys_); }
  void load_values(const Source&, int32_t, int32_t) { load(block_.values_empty, block_.values_full, values_); }
  bool publishes_late() const { return block_.shape.publishes_late; }
  bool keys_must_wait() const { return !block_.keys_empty[keys_.stage].is_over(keys_.phase ^ 1); }
  void flush() { loads_.flush(); }

 private:
  void load(std::vector<Barrier>& empty, std::vector<Barrier>& full, PipelineState& turn) {
    block_.wait(empty[turn.stage], turn.phase ^ 1);
    loads_.issued(&full[turn.stage]);
    turn.next(block_.shape.stages);
  }

  Block& block_;
  PipelineState keys_, values_;
  DeferredSignal<Copies, Barrier> loads_;
};

void produce_all(Block& block, bool publishes) {
  Tiles tiles(block);
  TileScheduler scheduler(block);
  Loader loader(block);
  if (publishes) scheduler.publish_next();
  produce<Source, Steps>(tiles, scheduler, publishes, loader);
}

// The waits of the kernel's consume() and Consumer::fold(), in their order.
class Consumer {
 public:
  Consumer(Block& block, int32_t number) : block_(block), number_(number) {}

  void consume() {
    Tiles tiles(block_);
    for (const Tile* tile = tiles.take(); tile;) {
      const Tile* next = nullptr;
      fold(*tile, [&] { next = tiles.take(); });
      tiles.release();
      tile = next;
    }
  }

 private:
  template <class Meanwhile>
  void fold(const Tile& tile, const Meanwhile& meanwhile) {
    if (tile.steps == 0) return meanwhile();
    wait_for_keys();
    warp_scheduler_barrier_sync();
    warp_scheduler_barrier_arrive();
    release_keys();
    for (int32_t step = tile.steps - 2; step >= 0; --step) {
      wait_for_keys();
      warp_scheduler_barrier_sync();
      wait_for_values();
      warp_scheduler_barrier_arrive();
      release_keys();
      release_values();
    }
    wait_for_values();
    meanwhile();
    release_values();
  }

  void wait_for_keys() { block_.wait(block_.keys_full[keys_.stage], keys_.phase); }
  void wait_for_values() { block_.wait(block_.values_full[values_.stage], values_.phase); }
  void warp_scheduler_barrier_sync() {
    block_.turns.wait_until([this] { return block_.passed[number_] > taken_; });
    ++taken_;
  }
  void warp_scheduler_barrier_arrive() { ++block_.passed[(number_ + 1) % block_.shape.consumers]; }
  void release_keys() {
    ++block_.keys_used;
    block_.keys_empty[keys_.stage].arrive();
    keys_.next(block_.shape.stages);
  }
  void release_values() {
    ++block_.values_used;
    block_.values_empty[values_.stage].arrive();
    values_.next(block_.shape.stages);
  }

  Block& block_;
  int32_t number_;
  int32_t taken_ = 0;
  PipelineState keys_, values_;
};

std::string to_string(const Shape& shape, const std::vector<int32_t>& steps) {
  std::string text = cat(shape.producers, " producers, ", shape.consumers, " consumers, ", shape.stages, " stages, ",
                         shape.publishes_late ? "published late, " : "", "tiles with so many steps:");
  for (const int32_t count : steps) text += cat(" ", count);
  return text;
}

void expect_end(const Shape& shape, const std::vector<int32_t>& steps) {
  SCOPED_TRACE(to_string(shape, steps));
  std::vector<Tile> tiles;
  int32_t all = 0;
  for (const int32_t count : steps) {
    tiles.push_back({count});
    all += count;
  }
  Block block(shape, tiles);
  for (int32_t i = 0; i < shape.producers; ++i) block.turns.add([&block, i] { produce_all(block, i == 0); });
  for (int32_t i = 0; i < shape.consumers; ++i) block.turns.add([&block, i] { Consumer(block, i).consume(); });
  ASSERT_TRUE(block.turns.run()) << "everybody waits for somebody";
  EXPECT_EQ(block.keys_used, all * shape.consumers);
  EXPECT_EQ(block.values_used, all * shape.consumers);
}

constexpr Shape kShapes[] = {{2, 2, kLeastStages}, {2, 3, 4}, {1, 2, 3}, {2, 2, kLeastStages, true}};

TEST(PrefillProducer, TilesWithAndWithoutKeys) {
  const std::vector<int32_t> lists[] = {
      {},
      {0},
      {1},
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},           // none
      {3, 2, 5, 1, 1, 4, 1, 2},                 // all
      {2, 0, 0, 0, 0, 0, 0, 0, 0, 0},           // the first
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 2},           // the last
      {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1},        // every second
      {0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0},        //
      {1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0},  // as far apart as the ring is long, and further
      {5, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 5},     //
  };
  for (const Shape& shape : kShapes)
    for (const std::vector<int32_t>& steps : lists) expect_end(shape, steps);
}

TEST(PrefillProducer, RandomTiles) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t bound) { return static_cast<int32_t>(random() % bound); };
  for (int32_t round = 0; round < 100 && !testing::Test::HasFailure(); ++round) {
    std::vector<int32_t> steps(below(16));
    const int32_t empty_of_five = below(6);
    for (int32_t& count : steps) count = below(5) < empty_of_five ? 0 : 1 + below(4);
    expect_end(kShapes[below(std::size(kShapes))], steps);
  }
}

}  // namespace
}  // namespace quire::attn::cuda
