// Whole steps in which each kernel in turn is late (base/slowed_kernels.h) give what they give when kernels run one
// after the other, to the bit. A kernel that does not wait for the one before it, or passes on an end that it has not
// waited for, reads what is no number.
#include "base/slowed_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>

#include "base/cuda.h"
#include "engine/engine.h"
#include "engine/testing_side.h"
#include "model/testing.h"
#include "slowed_kernels_probe.h"

namespace quire::engine {
namespace {

using cuda::SlowedKernels;
using model::testing::random_ids;
using model::testing::TinyFile;
using model::testing::TinyModel;
using testing::Heard;
using testing::Side;

class SlowedKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU";
    stream_ = std::make_unique<cuda::Stream>();
  }
  void TearDown() override { cuda::slowed_kernels = {}; }
  std::unique_ptr<cuda::Stream> stream_;
};

TEST_F(SlowedKernelsTest, AMissingWaitIsSeen) {
  Exec exec({.threads = 1, .stream = stream_.get()});
  read_after_write(true, exec);  // the first time kernels are loaded, which takes longer than any is late
  for (int round = 0; round < 20; ++round) {
    cuda::slowed_kernels = {.late = 0};  // the writer
    EXPECT_EQ(read_after_write(false, exec), kBefore);
    cuda::slowed_kernels = {.late = 0};
    EXPECT_EQ(read_after_write(true, exec), kWritten);
    cuda::slowed_kernels = {};
    EXPECT_EQ(read_after_write(false, exec), kWritten);
  }
}

struct Kind {
  const char* name;
  TinyModel model;
};

std::vector<Kind> kinds() {
  const TinyModel tiny{.layers = 2,
                       .width = 128,
                       .ffn_width = 192,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .context = 512,
                       .type = BlockType::bf16};
  TinyModel large = tiny, quantised = tiny, of_256 = tiny, normed = tiny, after = tiny;
  // Products by rings of bulk copies; with some tens of rows by clusters, which rotate and store heads, too, and gates
  // and ups are a tile for most multiprocessors.
  large.architecture = "qwen2";
  large.width = 2048, large.ffn_width = 6784, large.heads = 24, large.kv_heads = 4;
  quantised.type = BlockType::q4_1;
  of_256.width = of_256.ffn_width = 256, of_256.type = BlockType::q4_k;
  normed.architecture = "qwen3", normed.type = BlockType::q8_0;
  after.architecture = "olmo2";
  return {{"llama", tiny},  {"large", large},          {"q4_1", quantised},
          {"q4_k", of_256}, {"qwen3 of q8_0", normed}, {"olmo2", after}};
}

std::vector<uint32_t> bits_of(const Heard& heard) {
  EXPECT_EQ(heard.error, "");
  std::vector<uint32_t> bits(heard.tokens.begin(), heard.tokens.end());
  for (const auto& list : {heard.prompt_logprobs, heard.logprobs})
    for (const TokenLogprob& each : list) bits.push_back(std::bit_cast<uint32_t>(each.logprob));
  return bits;
}

// Prompts of every padded size, then one token at a time, alone and in batches.
std::vector<std::vector<uint32_t>> heard_from(const std::string& path, int32_t late, cuda::Stream* stream) {
  EngineOptions options;
  options.max_total_tokens = 2048;
  options.max_running_requests = 5;
  options.prefill_chunk = 512;
  options.prefix_cache = false;
  cuda::slowed_kernels = {.late = late};
  Side side(path, options, stream);
  std::vector<std::vector<uint32_t>> heard;
  const auto request = [](int32_t length, uint64_t seed) {
    return Request{.prompt = random_ids(length, 320, seed),
                   .sampling = {.temperature = 0},
                   .max_new_tokens = 4,
                   .top_logprobs = 1,
                   .prompt_logprobs_from = length > 64 ? -1 : 0};
  };
  for (const int32_t length : {1, 9, 60, 100, 130, 400}) heard.push_back(bits_of(side.finish(request(length, length))));
  std::vector<RequestId> together;
  for (uint64_t seed = 0; seed < 5; ++seed) together.push_back(side.submit(request(11, seed)));
  side.drain();
  for (const RequestId id : together) heard.push_back(bits_of(side.heard(id)));
  return heard;
}

TEST_F(SlowedKernelsTest, StepsGiveTheSameWhicheverKernelIsLate) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const TinyFile file(kind.model);
    const auto expected = heard_from(file.path(), SlowedKernels::kNone, stream_.get());
    for (int32_t late = 0; late < SlowedKernels::kEvery; ++late)
      EXPECT_EQ(heard_from(file.path(), late, stream_.get()), expected) << "every fourth kernel from " << late;
  }
}

// For initcheck: a chunk of a prompt, mixed steps, replayed graphs. The rows behind the live ones, which products read
// and nobody looks at, were filled with what is no number.
TEST_F(SlowedKernelsTest, AWholeStepReadsWhatWasWritten) {
  const TinyFile file(kinds()[0].model);
  EngineOptions options;
  options.max_total_tokens = 1024;
  options.max_running_requests = 2;
  Side side(file.path(), options, stream_.get());
  const Request request{.prompt = random_ids(20, 320, 1), .sampling = {.temperature = 0}, .max_new_tokens = 4};
  const RequestId first = side.submit(request);
  side.engine().step();
  const RequestId second = side.submit(request);
  side.drain();
  EXPECT_EQ(side.heard(first).tokens.size(), 4u);
  EXPECT_EQ(side.heard(second).tokens.size(), 4u);
}

}  // namespace
}  // namespace quire::engine
