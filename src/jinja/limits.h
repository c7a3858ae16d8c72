// How much a template may cost, and the meter that holds one rendering against it. Templates come with model files and
// see text of strangers, so everything that either can make large has a limit.
//
// Memory is counted while it is alive: whoever owns bytes owns a Hold on them, which gives them back when it goes. So a
// template may build a long text piece by piece, but not keep more than the limit at once. Sizes are asked for before
// they are allocated.
//
// Errors   CheckError naming the limit that would be passed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace quire::jinja {

struct Limits {
  size_t source_bytes = size_t{1} << 20;    // of the template itself
  int syntax_depth = 200;                   // nesting of blocks and expressions, chains of operators included
  int evaluation_depth = 1000;              // nesting of what is being evaluated, calls of macros included
  int value_depth = 100;                    // lists in lists, dicts in dicts
  uint64_t steps = 20'000'000;              // evaluated nodes, and work on long values in units of some bytes
  size_t value_bytes = size_t{16} << 20;    // any one string
  size_t value_items = size_t{1} << 20;     // any one list or dict
  size_t memory_bytes = size_t{256} << 20;  // all values and unfinished output that are alive at once
  size_t output_bytes = size_t{16} << 20;   // the rendered text
};

class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void step(uint64_t count = 1) {
    steps_ += count;
    check(steps_ <= limits_.steps, "more than ", limits_.steps, " steps (limit: steps)");
  }
  void work_on_bytes(size_t bytes) { step(bytes / kBytesInStep); }
  void walk(size_t entries) { step(entries / kEntriesInStep); }  // to find a name among them
  size_t most_items() const { return limits_.value_items; }

  // For results about to be built.
  void check_bytes(size_t bytes) const {
    check(bytes <= limits_.value_bytes, "a string of more than ", limits_.value_bytes, " bytes (limit: value_bytes)");
  }
  void check_items(size_t items) const {
    check(items <= limits_.value_items, "a list or dict of more than ", limits_.value_items,
          " items (limit: value_items)");
  }
  void check_depth(int depth) const {
    check(depth <= limits_.value_depth, "values nested more than ", limits_.value_depth, " deep (limit: value_depth)");
  }
  void check_output(size_t bytes) const {
    check(bytes <= limits_.output_bytes, "more than ", limits_.output_bytes, " bytes of output (limit: output_bytes)");
  }

  class Hold {
   public:
    Hold() = default;
    Hold(Meter& meter, size_t bytes) : meter_(&meter) { grow(bytes); }
    Hold(Hold&& other) noexcept
        : meter_(std::exchange(other.meter_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(meter_, other.meter_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() {
      if (meter_) meter_->alive_ -= bytes_;
    }
    void grow(size_t bytes) {
      check(bytes <= meter_->limits_.memory_bytes - meter_->alive_, "more than ", meter_->limits_.memory_bytes,
            " bytes of values at once (limit: memory_bytes)");
      meter_->alive_ += bytes;
      bytes_ += bytes;
    }

   private:
    Meter* meter_ = nullptr;
    size_t bytes_ = 0;
  };

  // One more level of evaluation, for as long as it lives.
  class Level {
   public:
    explicit Level(Meter& meter) : meter_(meter) {
      check(meter.depth_ < meter.limits_.evaluation_depth, "evaluation nested more than ",
            meter.limits_.evaluation_depth, " deep (limit: evaluation_depth)");
      ++meter.depth_;
    }
    ~Level() { --meter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Meter& meter_;
  };

 private:
  static constexpr size_t kBytesInStep = 64;  // copying these takes about as long as evaluating a small node
  static constexpr size_t kEntriesInStep = 8;

  const Limits limits_;
  uint64_t steps_ = 0;
  size_t alive_ = 0;
  int depth_ = 0;
};

}  // namespace quire::jinja
