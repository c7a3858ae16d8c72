// What a draft model says of its drafts' chances, held against what came: models are surer, or less sure, than they are
// right, and at temperature 0 the likeliest token comes more often than it is likely.
//
// A draft is as likely to come as others were of which the model said about the same; a request's own bad luck is a
// factor to that. Tokens that came are compared with what was proposed behind the text before them, verified or not.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"

namespace quire::engine {

class DraftRates {  // of many requests
 public:
  DraftRates();
  double rate(float said) const;
  void count(float said, bool came);  // older ones count less and less: texts change

 private:
  static constexpr int32_t kBins = 20;
  struct Count {
    double hits, trials;
  };
  static int32_t bin_of(float said);
  std::array<Count, kBins> counts_;
};

class DraftRecord {  // of one request
 public:
  explicit DraftRecord(std::shared_ptr<DraftRates> rates) : rates_(std::move(rates)) {}

  // The text has grown since the last proposal, by what came in place of the drafts.
  void learn(std::span<const int32_t> text);
  // What is proposed now, each with what the model says.
  void propose(std::span<const int32_t> text, std::span<const DraftToken> drafts);
  float hit(float said) const;  // how likely a draft of which the model says so comes

 private:
  std::shared_ptr<DraftRates> rates_;
  size_t known_ = 0;  // tokens of the text that it has learned from
  std::vector<DraftToken> proposed_ = {};
  double came_ = kFirst, expected_ = kFirst;
  static constexpr double kFirst = 4;
};

}  // namespace quire::engine
