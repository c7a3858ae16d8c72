// The mask of one text that a grammar constrains, by xgrammar's matcher.
//
// xgrammar has the masks of most states of its automaton ready and completes them by trying the tokens in doubt. How
// many those are depends on the grammar: that takes some microseconds for grammars of the common kinds and could take
// seconds for hostile ones, which would hold up all requests of the step. So a text has an allowance of processor time,
// and a request that uses it up fails.
//
// Memory   the matcher remembers its states for every byte of the text: some hundred bytes each.
// Errors   CheckError from next() and accept(): the allowance is used up, and then every time; from accept(): the token
// is
//          not allowed.
#pragma once
#include <xgrammar/matcher.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_mask.h"
#include "grammar/compiled.h"

namespace quire::grammar {

struct MaskTime {
  std::chrono::microseconds at_once{200'000};
  std::chrono::microseconds per_token{1'000};  // added to what is left, for each token
};

class Mask : public engine::TokenMask {
 public:
  Mask(std::shared_ptr<const Compiled> compiled, int32_t vocabulary, std::span<const int32_t> end_ids,
       const MaskTime& time = {});

  const uint32_t* next() override;
  void accept(int32_t token) override;

 private:
  void fill();
  void allow_only_end_ids();
  bool has_any() const;
  template <class Work>
  auto within_allowance(const Work& work);

  std::shared_ptr<const Compiled> compiled_;
  std::vector<int32_t> end_ids_;
  const MaskTime time_;
  std::chrono::nanoseconds allowance_;
  int32_t vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint32_t> bits_;  // [ceil(vocabulary / 32)] what may follow
  bool is_filled_ = false;      // bits_ and all_allowed_ are of the text as it is now
  bool all_allowed_ = false;
  bool at_end_ = false;  // nothing but end ids may follow
};

}  // namespace quire::grammar
