// A model's step, recorded or not, asks the system for no memory: neither the allocator nor a mapping.
#include <gtest/gtest.h>

#include "allocation_counter.h"
#include "model/testing.h"

namespace quire::model::testing {
namespace {

using quire::testing::allocations;

class ForwardGraph : public ::testing::TestWithParam<BlockType> {
 protected:
  // Two requests, 30 tokens each, and then one more for both.
  void begin() {
    for (const int32_t request : {0, 1}) requests_.extend(request, random_ids(30, 320, request));
    requests_.lay_out(std::vector<Requests::Chunk>{{1, {11}}, {0, {12}}});
  }

  Exec exec_{{.threads = 2}};
  Model model_{TinyFile({.type = GetParam()}).path(), exec_};
  Requests requests_{model_, exec_, {.kv_type = Dtype::bf16}};
};

INSTANTIATE_TEST_SUITE_P(Types, ForwardGraph, ::testing::Values(BlockType::f32, BlockType::q4_1),
                         [](const auto& type) { return std::string(to_string(type.param)); });

TEST_P(ForwardGraph, AReplayAllocatesNothing) {
  requests_.record_decode();
  begin();
  const int64_t before = allocations();
  requests_.replay_decode();
  EXPECT_EQ(allocations() - before, 0);
  EXPECT_EQ(requests_.logits().size(), 2u);
}

TEST_P(ForwardGraph, AnEagerStepAllocatesNothing) {
  for (const attn::Mode mode : {attn::Mode::decode, attn::Mode::extend}) {
    begin();
    const int64_t before = allocations();
    requests_.run(mode);
    EXPECT_EQ(allocations() - before, 0);
  }
}

}  // namespace
}  // namespace quire::model::testing
