// The mask of one text that a grammar constrains, by xgrammar's matcher.
//
// xgrammar has the masks of most states of its automaton ready and completes them by trying the tokens in doubt. How
// many those are depends on the grammar, so the work ends when the call's allowance of time is used up.
//
// Memory   the matcher remembers its states for every byte of the text: some hundred bytes each.
// Errors   engine::ConstraintRefused from next() and accept(): the allowance is used up, and then every time.
//          CheckError from accept(): the token is not allowed.
#pragma once
#include <xgrammar/matcher.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_mask.h"
#include "grammar/compiled.h"
#include "grammar/time_guard.h"

namespace quire::grammar {

class Mask : public engine::TokenMask {
 public:
  Mask(std::shared_ptr<const Compiled> compiled, int32_t vocabulary, std::span<const int32_t> end_ids,
       std::shared_ptr<TimeAllowance> allowance);

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
  const std::shared_ptr<TimeAllowance> allowance_;
  int32_t vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint32_t> bits_;  // [ceil(vocabulary / 32)] what may follow
  bool is_filled_ = false;      // bits_ and all_allowed_ are of the text as it is now
  bool all_allowed_ = false;
  bool at_end_ = false;  // nothing but end ids may follow
};

}  // namespace quire::grammar
