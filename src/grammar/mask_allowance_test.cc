#include "grammar/mask_allowance.h"

#include <gtest/gtest.h>

namespace quire::grammar {
namespace {

using namespace std::chrono_literals;

TEST(MaskAllowance, TokensEarnBackUpToTheBeginning) {
  MaskAllowance allowance({.at_once = 10ms, .per_token = 1ms});
  allowance.earn_for_a_token();
  EXPECT_EQ(allowance.left(), 10ms);
  allowance.spend(4ms);
  allowance.earn_for_a_token();
  EXPECT_EQ(allowance.left(), 7ms);
}

TEST(MaskAllowance, UsedUpItStaysSo) {
  MaskAllowance spent({.at_once = 10ms}), given_up({.at_once = 10ms});
  spent.spend(11ms);
  given_up.use_up();
  for (MaskAllowance* allowance : {&spent, &given_up}) {
    allowance->earn_for_a_token();
    EXPECT_EQ(allowance->left(), 0ms);
  }
}

}  // namespace
}  // namespace quire::grammar
