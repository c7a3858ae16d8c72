#include "engine/ngram_drafter.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "engine/ngram_table.h"

namespace quire::engine {
namespace {

constexpr std::array<int32_t, 5> kRuns = {8, 5, 3, 2, 1};  // descending
constexpr int32_t kLongest = kRuns.front(), kShortest = kRuns.back();

// Tokens before a draft that stood before its place as well, up to kLongest; and whether that place branches.
struct Match {
  int32_t length = 0;
  bool branches = false;
};

// How often drafts came, by their matches.
class MatchHits {
 public:
  double rate(const Match& match) const {
    const Count& count = counts_[match.branches][match.length - kShortest];
    return count.hits / count.trials;
  }
  // Older ones count less and less: texts change.
  void count(const Match& match, bool hit) {
    constexpr double kMostTrials = 4096;
    Count& of = counts_[match.branches][match.length - kShortest];
    of.hits += hit;
    of.trials += 1;
    if (of.trials < kMostTrials) return;
    of.hits /= 2;
    of.trials /= 2;
  }

 private:
  struct Count {
    double hits, trials;
  };
  static constexpr double kFirst = 32;  // trials that the first guess is worth
  static constexpr Count first(double rate) { return {rate * kFirst, kFirst}; }
  std::array<std::array<Count, kLongest - kShortest + 1>, 2> counts_ = {
      {{first(0.3), first(0.56), first(0.66), first(0.69), first(0.8), first(0.8), first(0.83), first(0.94)},
       {first(0.17), first(0.21), first(0.24), first(0.35), first(0.45), first(0.5), first(0.55), first(0.7)}}};
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(std::shared_ptr<MatchHits> hits) : hits_(std::move(hits)) {}
  void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) override;

 private:
  struct Proposed {
    int32_t token;
    Match match;
  };
  void learn(std::span<const int32_t> text);
  void add(std::span<const int32_t> text);
  bool propose_next(std::span<const int32_t> text);
  double factor() const;

  std::shared_ptr<MatchHits> hits_;
  std::array<NgramTable, 5> tables_ = {NgramTable(kRuns[0]), NgramTable(kRuns[1]), NgramTable(kRuns[2]),
                                       NgramTable(kRuns[3]), NgramTable(kRuns[4])};
  int32_t added_ = 0;                               // tokens of the text that the tables have
  int32_t known_ = 0;                               // and that there were when it last proposed
  std::vector<Proposed> proposed_;                  // then
  std::vector<int32_t> path_;                       // scratch: the end of the text, and drafts
  double came_ = kOwnFirst, expected_ = kOwnFirst;  // of its own drafts; older ones count less
  static constexpr double kOwnFirst = 4;
};

void NgramDrafter::propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) {
  check(std::ssize(text) >= known_, "a text of ", known_, " tokens has ", text.size(), " now");
  learn(text);
  add(text);
  proposed_.clear();
  if (added_ < known_) return;
  path_.assign(text.end() - std::min<int64_t>(kLongest, std::ssize(text)), text.end());
  const double luck = factor();
  while (std::ssize(proposed_) < most && propose_next(text)) {
    const double hit = std::min(0.99, hits_->rate(proposed_.back().match) * luck);
    drafts.push_back({.token = proposed_.back().token, .hit = static_cast<float>(hit)});
  }
}

// A draft is compared with what came in its place, if all before it came.
void NgramDrafter::learn(std::span<const int32_t> text) {
  constexpr double kForgets = 0.97;
  for (size_t i = 0; i < proposed_.size() && known_ + i < text.size(); ++i) {
    const Match& match = proposed_[i].match;
    const bool came = proposed_[i].token == text[known_ + i];
    came_ = kForgets * came_ + came;
    expected_ = kForgets * expected_ + hits_->rate(match);
    hits_->count(match, came);
    if (!came) break;
  }
}

void NgramDrafter::add(std::span<const int32_t> text) {
  constexpr int32_t kAtOnce = 8192;
  known_ = static_cast<int32_t>(text.size());
  for (const int32_t end = std::min(known_, added_ + kAtOnce); added_ < end; ++added_)
    for (NgramTable& table : tables_) table.add(text, added_);
}

// What followed the path the last time; false where its end is new.
bool NgramDrafter::propose_next(std::span<const int32_t> text) {
  const std::span<const int32_t> path(path_);
  for (const NgramTable& table : tables_) {
    if (std::ssize(path) < table.n()) continue;
    const NgramTable::Place place = table.find(text, path.last(table.n()));
    if (place.after == 0) continue;
    int32_t length = table.n();
    while (length < kLongest && length < std::ssize(path) && length < place.after &&
           path[path.size() - 1 - length] == text[place.after - 1 - length])
      ++length;
    proposed_.push_back({.token = text[place.after], .match = {length, place.branches}});
    path_.push_back(text[place.after]);
    return true;
  }
  return false;
}

// Its own luck: by its temperature, and by what it is about. Good luck is not counted on: drafts that seem likelier
// than they are cost more, in large batches, than those that are left out.
double NgramDrafter::factor() const { return std::clamp(came_ / expected_, 0.5, 1.0); }

}  // namespace

MakeDrafter ngram_drafters() {
  return [hits = std::make_shared<MatchHits>()](const Request&) { return std::make_unique<NgramDrafter>(hits); };
}

}  // namespace quire::engine
