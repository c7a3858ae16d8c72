// Where each run of n tokens of a text stood last: an open-addressing table of places in the text, which it does not
// keep. A lookup compares tokens, so it never finds another run.
//
// A run lies within kMostProbes slots of its hash, and where others have all of them it takes one's place: so tokens
// that somebody has chosen to collide cost as little as others, and all that is lost is what the table knew of them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace quire::engine {

class NgramTable {
 public:
  static constexpr size_t kMostProbes = 32;

  struct Place {
    int32_t after = 0;      // position of the token behind the run; 0: there is none
    bool branches = false;  // another token has stood behind the same run elsewhere
  };

  explicit NgramTable(int32_t n) : n_(n), places_(16) {}
  int32_t n() const { return n_; }

  // The run before text[position] is followed by it. In ascending order, for each text the same.
  void add(std::span<const int32_t> text, int32_t position);
  // run: n tokens; text: as it was added.
  Place find(std::span<const int32_t> text, std::span<const int32_t> run) const;

  static uint64_t hash_of(std::span<const int32_t> run);  // its slot, modulo their number

 private:
  bool is_of(const Place& place, std::span<const int32_t> text, std::span<const int32_t> run) const;
  size_t slot_of(std::span<const int32_t> text, std::span<const int32_t> run) const;
  void grow(std::span<const int32_t> text);

  int32_t n_;
  size_t used_ = 0;
  std::vector<Place> places_;  // a power of two, at most half full
};

}  // namespace quire::engine
