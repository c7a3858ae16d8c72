// The GPU's kernels where they are easily wrong and seldom tried: prefill whose tiles have keys or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "attn/expect_near.h"
#include "attn/testing_case.h"
#include "base/cuda.h"
#include "watchdog.h"

namespace quire::attn::testing {
namespace {

using quire::testing::Watchdog;

constexpr int32_t kPageSizes[] = {1, 16, 32, 64, 128};
constexpr float kTolerance = 1e-2f;  // probabilities are rounded to 16 bits

class GpuKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_.emplace();
    exec_.emplace(ExecOptions{.threads = 1, .stream = &*stream_});
  }

  // As run_case(), within a time limit.
  Result run(const WorldSpec& spec, const Case& c) {
    World world(spec);
    world.lay_out(c.step(), *exec_);
    world.poison(Poison::guard);
    const Watchdog watchdog(std::chrono::seconds(20), to_string(c));
    write_metadata(world.shape(), world.inputs(), world.arena(), *exec_);
    attend(world.args(), *exec_);
    exec_->wait();
    return world.result();
  }

  std::optional<quire::cuda::Stream> stream_;
  std::optional<Exec> exec_;
};

// --- prefill whose tiles have keys or none: layers over encoder keys, which only some requests have

constexpr int32_t kRequests = 48, kNewTokens = 256, kEncoderKeys = 150;

struct Dims {
  int32_t heads, kv_heads, key_dim, value_dim;
};

Case encoder_case(const Dims& dims, const std::vector<int32_t>& encoder_keys) {
  return {.mode = Mode::extend,
          .kind = LayerKind::encoder,
          .query_type = Dtype::bf16,
          .kv_type = Dtype::bf16,
          .heads = dims.heads,
          .kv_heads = dims.kv_heads,
          .key_dim = dims.key_dim,
          .value_dim = dims.value_dim,
          .lengths = std::vector<int32_t>(kRequests, kNewTokens),
          .extend = std::vector<int32_t>(kRequests, kNewTokens),
          .encoder = encoder_keys,
          .place = Place::pinned};
}

// Blocks begin with the last sequence's tiles.
std::vector<int32_t> keys_of_one(int32_t request) {
  std::vector<int32_t> keys(kRequests, 0);
  keys[request] = kEncoderKeys;
  return keys;
}
std::vector<int32_t> keys_of_every(int32_t nth) {
  std::vector<int32_t> keys(kRequests, 0);
  for (int32_t request = 0; request < kRequests; request += nth) keys[request] = request == 0 ? kEncoderKeys : 9;
  return keys;
}

class PrefillOfEncoderKeys : public GpuKernels {
 protected:
  void expect_end(const Dims& dims, const std::vector<int32_t>& encoder_keys, std::vector<int32_t> page_sizes) {
    Case c = encoder_case(dims, encoder_keys);
    const Attention expected = expected_of(c);
    for (const int32_t page_size : page_sizes) {
      c.page_size = page_size;
      SCOPED_TRACE(to_string(c));
      WorldSpec spec = c.world();
      spec.limits.encoder_context = kEncoderKeys;  // also where nobody has keys
      const Result result = run(spec, c);
      expect_near(result.out, expected.out, kTolerance, "out");
      expect_near(result.lse, expected.lse, kTolerance, "lse");
    }
  }

  void expect_end_with_all_pages(const std::vector<int32_t>& encoder_keys) {
    expect_end({8, 8, 64, 64}, encoder_keys, {std::begin(kPageSizes), std::end(kPageSizes)});
  }
};

TEST_F(PrefillOfEncoderKeys, FirstTiles) { expect_end_with_all_pages(keys_of_one(kRequests - 1)); }
TEST_F(PrefillOfEncoderKeys, LastTiles) { expect_end_with_all_pages(keys_of_one(0)); }
TEST_F(PrefillOfEncoderKeys, TilesInTheMiddle) { expect_end_with_all_pages(keys_of_one(kRequests / 2)); }
TEST_F(PrefillOfEncoderKeys, EverySecondTile) { expect_end_with_all_pages(keys_of_every(2)); }
TEST_F(PrefillOfEncoderKeys, EverySeventhTile) { expect_end_with_all_pages(keys_of_every(7)); }
TEST_F(PrefillOfEncoderKeys, NoTile) { expect_end_with_all_pages(std::vector<int32_t>(kRequests, 0)); }

TEST_F(PrefillOfEncoderKeys, FirstTilesAtEveryDim) {
  for (const Dims& dims : {Dims{6, 6, 96, 96}, Dims{6, 6, 128, 128}, Dims{5, 5, 192, 128}, Dims{5, 5, 256, 256}})
    expect_end(dims, keys_of_one(kRequests - 1), {16});
}

}  // namespace
}  // namespace quire::attn::testing
