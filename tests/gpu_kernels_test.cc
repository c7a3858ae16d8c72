// The GPU's kernels where they are easily wrong and seldom tried: graphs that are captured once and replayed over other
// batches; prefill, of latent keys too, whose blocks take many tiles, of several groups of heads; prefill whose tiles
// have keys or none. Of
// each it is known which kernel must take it, and seen that it did.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attn/testing/case.h"
#include "attn/testing/expect_near.h"
#include "attn/testing/report_kernels.h"
#include "base/cuda.h"
#include "base/graph.h"
#include "gpu_problems.h"
#include "watchdog.h"

namespace quire::attn::testing {
namespace {

using quire::testing::Watchdog;

constexpr int32_t kPageSizes[] = {1, 16, 32, 64, 128};

class GpuKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_.emplace();
    exec_.emplace(ExecOptions{.threads = 1, .stream = &*stream_});
  }

  // As run_case(), within a time limit.
  Result run(const WorldSpec& spec, const Case& c, GpuKernel expected) {
    World world(spec);
    world.lay_out(c.step(), *exec_);
    world.poison(Poison::guard);
    const Launches launches;
    const Watchdog watchdog(kGpuTimeLimit, to_string(c));
    write_metadata(world.shape(), world.inputs(), world.arena(), *exec_);
    attend(world.args(), *exec_);
    exec_->wait();
    launches.expect_only(expected, 1);
    return world.result();
  }

  std::optional<quire::cuda::Stream> stream_;
  std::optional<Exec> exec_;
};

// --- one graph, many steps

constexpr int32_t kBatch = 8, kNodes = 5, kRows = 60;  // query rows of every extend

struct Replayed {
  GpuProblem problem;
  Mode mode;
  int32_t page_size;
};
std::string to_string(const Replayed& replayed) {
  return cat("replays of ", replayed.problem.name, " ", attn::to_string(replayed.mode), ", pages of ",
             replayed.page_size);
}

bool is_verify(Mode mode) { return mode == Mode::verify || mode == Mode::verify_tree; }
bool is_extend(Mode mode) { return mode == Mode::extend || mode == Mode::draft_extend; }

// Steps of other requests, lengths and numbers of them, all padded to the same batch and query rows.
class Steps {
 public:
  explicit Steps(const Replayed& replayed)
      : case_(replayed.problem.applied_to({.mode = replayed.mode,
                                           .page_size = replayed.page_size,
                                           .lengths = std::vector<int32_t>(kBatch, kLongest),
                                           .captured = kBatch,
                                           .draft_tokens = is_verify(replayed.mode) ? kNodes : 0})) {
    if (replayed.mode == Mode::draft) case_.draft_steps = 4;
    if (is_extend(replayed.mode)) case_.extend.assign(kBatch, kRows / kBatch);
  }

  WorldSpec world() const {
    WorldSpec spec = case_.world();
    spec.query_rows = std::max(spec.query_rows, kRows);
    return spec;
  }

  Step next(int32_t live) {
    Case c = case_;
    c.lengths.clear();
    c.extend.clear();
    c.requests.resize(kBatch);
    std::iota(c.requests.begin(), c.requests.end(), 0);
    std::shuffle(c.requests.begin(), c.requests.end(), random_);
    c.requests.resize(live);
    c.seed = random_();                      // of trees
    int32_t rows = kRows - (kBatch - live);  // padding has one each
    for (int32_t b = 0; b < live; ++b) {
      const int32_t most = rows - (live - 1 - b), extend = b + 1 == live ? most : 1 + below(most);
      rows -= extend;
      const int32_t least = is_extend(c.mode) ? extend : 1;
      c.lengths.push_back(least + below((c.requests[b] == 0 ? kLongest : 150) - least));
      if (is_extend(c.mode)) c.extend.push_back(extend);
    }
    return c.step();
  }

 private:
  static constexpr int32_t kLongest = 900;
  int32_t below(int32_t bound) { return static_cast<int32_t>(random_() % bound); }

  Case case_;
  std::mt19937 random_{11};
};

class Replays : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {
 protected:
  // Two layers: the second may read the metadata while the first one ends.
  Graph captured(World& world, const Step& step, const Sizes& sizes) {
    world.lay_out(step, *exec_);
    AttendArgs second_layer = world.args();
    second_layer.keys_are_settled = true;
    const Launches launches;
    Graph graph;
    exec_->begin_capture(graph);
    write_metadata(world.shape(), world.inputs(), world.arena(), *exec_);
    attend(world.args(), *exec_);
    attend(second_layer, *exec_);
    exec_->end_capture();
    launches.expect_only(expected_kernel(sizes, step), 2);
    return graph;
  }

  void expect_right(const Replayed& replayed) {
    SCOPED_TRACE(to_string(replayed));
    Steps steps(replayed);
    const WorldSpec spec = steps.world();
    World world(spec);
    const Graph graph = captured(world, steps.next(kBatch), spec.sizes);
    for (const int32_t live : {8, 3, 1, 5, 8, 2, 7}) {
      SCOPED_TRACE(cat("live ", live));
      world.lay_out(steps.next(live), *exec_);
      world.poison(Poison::guard);
      const Watchdog watchdog(kGpuTimeLimit, to_string(replayed));
      graph.replay(*exec_);
      exec_->wait();
      const Result result = world.result();
      expect_dense(result, world.expected(), kGpuTolerance);
      graph.replay(*exec_);
      exec_->wait();
      EXPECT_TRUE(world.result().out_bytes == result.out_bytes) << "two replays differ";
    }
  }
};

// In every mode but drafts of trees; page sizes take turns.
TEST_P(Replays, OfOtherBatchesAreRight) {
  size_t turn = GetParam().heads;
  for (const Mode mode : {Mode::decode, Mode::extend, Mode::draft, Mode::verify, Mode::verify_tree, Mode::draft_extend})
    expect_right({GetParam(), mode, kPageSizes[turn++ % std::size(kPageSizes)]});
}

INSTANTIATE_TEST_SUITE_P(Problems, Replays, ::testing::ValuesIn(kGpuProblems),
                         [](const auto& test) { return test.param.name; });

// --- decode with more rows than a tile has

class DecodeOfManyRows : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {
 protected:
  void expect_right(const Case& c, GpuKernel kernel = GpuKernel::decode) {
    SCOPED_TRACE(to_string(c));
    expect_dense(run(c.world(), c, kernel), expected_of(c), kGpuTolerance);
  }
};

// As many as one tile has room for; prefill, which splits long prefixes too, has more.
TEST_P(DecodeOfManyRows, FewNewTokensAfterALongPrefix) {
  for (const int32_t window : {-1, 700}) {
    Case c = GetParam().applied_to({.mode = Mode::extend,
                                    .page_size = window < 0 ? 16 : 1,
                                    .lengths = {3000, 130, 40, 9},
                                    .extend = {5, 1, 1, 2},
                                    .window = window,
                                    .context = 4096});
    expect_right(c);
    c.extend = {70, 130, 1, 9};
    expect_right(c, GpuKernel::prefill);
  }
}

TEST_P(DecodeOfManyRows, LargeTrees) {
  for (const int32_t window : {-1, 90})
    expect_right(GetParam().applied_to(
        {.mode = Mode::verify_tree, .lengths = {700, 0, 129}, .draft_tokens = 70, .window = window}));
}

constexpr GpuProblem kDecodeProblems[] = {
    {"bf16_64", Dtype::bf16, Dtype::bf16, 6, 3, 64, 64},     {"f16_128", Dtype::f16, Dtype::f16, 7, 1, 128, 128},
    {"bf16_128", Dtype::bf16, Dtype::bf16, 16, 4, 128, 128}, {"fp8_64", Dtype::bf16, Dtype::f8e4m3, 12, 4, 64, 64},
    {"fp8_128", Dtype::f16, Dtype::f8e4m3, 5, 1, 128, 128},
};
INSTANTIATE_TEST_SUITE_P(Problems, DecodeOfManyRows, ::testing::ValuesIn(kDecodeProblems),
                         [](const auto& test) { return test.param.name; });

// --- trees where decode has no kernel: prefill's and latent keys

class Trees : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {
 protected:
  GpuKernel kernel() const { return GetParam().is_latent ? GpuKernel::latent : GpuKernel::prefill; }

  void expect_right(Case c, const std::vector<int32_t>& page_sizes = {16}) {
    c = GetParam().applied_to(c);
    const Attention expected = expected_of(c);
    for (const int32_t page_size : page_sizes) {
      c.page_size = page_size;
      SCOPED_TRACE(to_string(c));
      expect_dense(run(c.world(), c, kernel()), expected, kGpuTolerance);
    }
  }
};

// Prefixes that end at, before and behind a tile of keys, and none; nodes whose rows are one tile or several.
TEST_P(Trees, OfAnySize) {
  const std::vector<int32_t> sizes = GetParam().heads > 20 ? std::vector{1, 5} : std::vector{1, 5, 33, 70};
  for (const int32_t nodes : sizes)
    expect_right({.mode = Mode::verify_tree,
                  .lengths = {200, 0, 129, 64, 63, 1},
                  .captured = nodes % 2 ? 8 : 0,
                  .draft_tokens = nodes},
                 {1, 16, 64});
}

// Paths, whose branches are as long as they may be and so many places; stars, whose branches are two tokens; both.
TEST_P(Trees, OfAnyShape) {
  const int32_t nodes = GetParam().heads > 20 ? 9 : 40;
  std::vector<int32_t> path(nodes), star(nodes, 0);
  std::iota(path.begin(), path.end(), -1);
  star[0] = -1;
  const auto expect = [&](std::vector<int32_t> lengths, std::vector<std::vector<int32_t>> trees) {
    expect_right({.mode = Mode::verify_tree, .lengths = lengths, .trees = trees, .draft_tokens = nodes});
  };
  expect({127, 64}, {path, path});
  expect({130, 0}, {star, star});
  expect({50, 200, 0}, {path, star, path});
}

// A window that ends in the prefix, at its end, or in the branch.
TEST_P(Trees, EveryVariant) {
  const Case tree{.mode = Mode::verify_tree, .lengths = {200, 0, 129}, .draft_tokens = 9};
  for (const int32_t window : {0, 1, 3, 63, 90, 500}) {
    Case c = tree;
    c.window = window;
    expect_right(c, {window % 2 ? 16 : 1});
  }
  Case pool = tree;
  pool.kind = LayerKind::window;
  pool.window = 70;
  pool.window_pool = true;
  expect_right(pool);
  Case capped = tree, sinks = tree, materialised = tree;
  capped.softcap = 5;
  expect_right(capped);
  sinks.sinks = true;
  sinks.out_type = Dtype::bf16;
  expect_right(sinks);
  materialised.form = Form::materialised;
  expect_right(materialised);
}

// Keys that are shared out among the blocks, the branches behind them.
TEST_P(Trees, BehindALongPrefix) {
  for (const int32_t length : {3000, 4095, 4096, 4097})
    expect_right({.mode = Mode::verify_tree, .lengths = {length, 17}, .draft_tokens = 2, .context = 8192});
}

// Drafts of trees: a row for each of the branches, at every step.
TEST_P(Trees, Drafts) {
  for (const int32_t step : {0, 1, 2})
    expect_right({.mode = Mode::draft_tree,
                  .lengths = {130, 64, 3},
                  .captured = 4,
                  .topk = 3,
                  .draft_steps = 4,
                  .draft_step = step});
}

constexpr GpuProblem kTreeProblems[] = {
    {"bf16_96", Dtype::bf16, Dtype::bf16, 6, 3, 96, 96},
    {"fp8_96", Dtype::f16, Dtype::f8e4m3, 4, 4, 96, 96},
    {"f16_192", Dtype::f16, Dtype::f16, 4, 1, 192, 128},
    {"fp8_192", Dtype::bf16, Dtype::f8e4m3, 6, 2, 192, 128},
    {"bf16_256", Dtype::bf16, Dtype::bf16, 8, 2, 256, 256},
    {"fp8_256", Dtype::bf16, Dtype::f8e4m3, 3, 3, 256, 256},
    {"bf16_latent_16", Dtype::bf16, Dtype::bf16, 16, 1, 576, 512, true},
    {"f16_latent_100", Dtype::f16, Dtype::f16, 100, 1, 576, 512, true},
    {"bf16_latent_128", Dtype::bf16, Dtype::bf16, 128, 1, 576, 512, true},
    {"fp8_latent_5", Dtype::bf16, Dtype::f8e4m3, 5, 1, 576, 512, true},
    {"fp8_latent_64", Dtype::f16, Dtype::f8e4m3, 64, 1, 576, 512, true},
};
INSTANTIATE_TEST_SUITE_P(Problems, Trees, ::testing::ValuesIn(kTreeProblems),
                         [](const auto& test) { return test.param.name; });

// --- keys that are widened on their way, where they are as wide as never

class WideKeysOf8Bits : public Trees {};

// Lengths around a tile of keys and around two, split and not.
TEST_P(WideKeysOf8Bits, AnyNumberOfKeys) {
  const std::vector<int32_t> page_sizes(std::begin(kPageSizes), std::end(kPageSizes));
  expect_right({.lengths = {1, 63, 64, 65, 127, 128, 129, 700}, .captured = 10}, page_sizes);
  expect_right({.lengths = {1500}}, page_sizes);
  expect_right({.mode = Mode::verify, .lengths = {62, 0, 400, 127}, .draft_tokens = 3}, page_sizes);
  expect_right({.mode = Mode::extend, .lengths = {20, 7, 1, 200, 129}, .extend = {20, 1, 1, 9, 2}, .captured = 7},
               page_sizes);
  expect_right({.mode = Mode::extend, .lengths = {1200, 3, 1500}, .extend = {5, 3, 1}, .context = 4096});
}

TEST_P(WideKeysOf8Bits, EveryVariant) {
  for (const int32_t window : {0, 63, 100, 500})
    expect_right({.lengths = {3, 64, 65, 700, 193}, .window = window}, {window % 2 ? 1 : 16});
  expect_right({.lengths = {3, 700}, .softcap = 5});
  expect_right({.mode = Mode::extend, .lengths = {30, 300}, .extend = {30, 9}, .softcap = 5, .sinks = true});
  expect_right({.out_type = Dtype::bf16, .lengths = {3, 700}, .sinks = true});
  const float value_scale = GetParam().is_latent ? 0.03f : 0.7f;  // latent values are keys
  expect_right({.out_type = Dtype::f16, .lengths = {3, 700}, .key_scale = 0.03f, .value_scale = value_scale});
  expect_right({.form = Form::materialised, .lengths = {3, 700}});
}

// Queries that are far apart in size, in the same tile and in others; scores that outgrow those before.
TEST_P(WideKeysOf8Bits, ScoresOfAnySize) {
  for (const float scale : {0x1p-12f, 10.0f, 300.0f}) {
    expect_right({.lengths = {900, 517}, .score_scale = scale});
    expect_right({.mode = Mode::extend, .lengths = {300, 517}, .extend = {20, 3}, .score_scale = scale});
  }
}

constexpr GpuProblem kWideProblems[] = {
    {"bf16_192", Dtype::bf16, Dtype::f8e4m3, 6, 2, 192, 128},
    {"f16_192", Dtype::f16, Dtype::f8e4m3, 5, 5, 192, 128},
    {"bf16_latent_16", Dtype::bf16, Dtype::f8e4m3, 16, 1, 576, 512, true},
    {"f16_latent_100", Dtype::f16, Dtype::f8e4m3, 100, 1, 576, 512, true},
    {"bf16_latent_128", Dtype::bf16, Dtype::f8e4m3, 128, 1, 576, 512, true},
};
INSTANTIATE_TEST_SUITE_P(Problems, WideKeysOf8Bits, ::testing::ValuesIn(kWideProblems),
                         [](const auto& test) { return test.param.name; });

// --- decode by clusters of blocks

class DecodeByClusters : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {
 protected:
  // By both of its kernels; the deterministic one is for one sequence.
  void expect_right(Case c) {
    c = GetParam().applied_to(c);
    const Attention expected = expected_of(c);
    const bool is_one = std::max<size_t>(c.captured, c.lengths.size()) == 1;
    for (const GpuKernel kernel : {GpuKernel::decode_cluster, is_one ? GpuKernel::decode_parts : GpuKernel::decode}) {
      c.deterministic = kernel != GpuKernel::decode_cluster;
      SCOPED_TRACE(to_string(c));
      expect_dense(run(c.world(), c, kernel), expected, kGpuTolerance);
    }
  }
  void expect_right_of(int32_t length, int32_t context) {
    expect_right({.page_size = kPageSizes[length % std::size(kPageSizes)], .lengths = {length}, .context = context});
  }
};

// Fewer keys than blocks, blocks without keys and with a part of a tile, several rounds; in small clusters and in large
// ones, which depend on the longest context.
TEST_P(DecodeByClusters, AnyNumberOfKeys) {
  for (const int32_t length : {1, 16, 17, 255, 257}) expect_right_of(length, 300);
  for (const int32_t length : {2, 40, 600, 1000}) expect_right_of(length, 1000);
  for (const int32_t length : {1, 17, 700, 4095, 4097, 8192}) expect_right_of(length, 8192);
}

// Of very different lengths, the longest context in one round of each block, in two, and in the largest clusters that
// have room; rows past the live ones are padding.
TEST_P(DecodeByClusters, SeveralSequences) {
  for (const int32_t page_size : {1, 16})
    for (const int32_t context : {500, 2048}) {
      expect_right({.page_size = page_size, .lengths = {1, context}, .context = context});
      expect_right({.page_size = page_size, .lengths = {context, 17, 300}, .captured = 4, .context = context});
      expect_right({.page_size = page_size,
                    .lengths = {16, context - 1, 2, 257, 1, 40, context, 130},
                    .captured = 8,
                    .context = context});
      expect_right({.page_size = page_size, .lengths = {33}, .captured = 8, .context = context});
    }
  const int32_t most = 132 / GetParam().kv_heads;  // in clusters of two
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < most - 1; ++b) lengths.push_back(1 + b * 131 % 1000);
  expect_right({.lengths = lengths, .captured = most, .context = 1024});
}

TEST_P(DecodeByClusters, EveryVariantOfSeveralSequences) {
  const std::vector<int32_t> lengths = {700, 3, 450, 1, 90};
  for (const int32_t window : {0, 5, 100, 600})
    expect_right({.lengths = lengths, .captured = 6, .window = window, .context = 1000});
  expect_right({.lengths = lengths, .softcap = 5, .context = 1000});
  expect_right({.lengths = lengths, .captured = 8, .sinks = true, .context = 1000});
  expect_right({.out_type = Dtype::bf16, .lengths = lengths, .captured = 7, .context = 1000});
  expect_right({.kind = LayerKind::encoder, .lengths = lengths, .encoder = {0, 70, 600, 1, 0}, .context = 1000});
}

TEST_P(DecodeByClusters, EveryVariant) {
  for (const int32_t window : {0, 5, 100, 1500})
    expect_right({.page_size = 16, .lengths = {1700}, .window = window, .context = 4096});
  expect_right({.lengths = {900}, .softcap = 5, .context = 4096});
  expect_right({.lengths = {900}, .sinks = true, .context = 4096});
  expect_right({.out_type = Dtype::bf16, .lengths = {333}, .context = 600});
}

constexpr GpuProblem kClusterProblems[] = {
    {"bf16_64", Dtype::bf16, Dtype::bf16, 9, 3, 64, 64},
    {"f16_64", Dtype::f16, Dtype::f16, 8, 1, 64, 64},
    {"bf16_128", Dtype::bf16, Dtype::bf16, 32, 8, 128, 128},
    {"f16_128", Dtype::f16, Dtype::f16, 5, 5, 128, 128},
};
INSTANTIATE_TEST_SUITE_P(Problems, DecodeByClusters, ::testing::ValuesIn(kClusterProblems),
                         [](const auto& test) { return test.param.name; });

// --- decode of many sequences

class DecodeOfManySequences : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {
 protected:
  // Sequences of all kinds of lengths, padding behind them: so many (sequence, kv head) pairs.
  void expect_right(int32_t pairs, Case c) {
    c = GetParam().applied_to(c);
    c.captured = pairs / c.kv_heads;
    for (int32_t b = 0; b < c.captured - 1; ++b) c.lengths.push_back(1 + b * 37 % 130);
    c.lengths.back() = 700;
    SCOPED_TRACE(to_string(c));
    expect_dense(run(c.world(), c, GpuKernel::decode_many), expected_of(c), kGpuTolerance);
  }
};

// Of 16, 8, 4, 2 and 1 warps; the most pairs are several of a team's.
TEST_P(DecodeOfManySequences, InTeamsOfEverySize) {
  for (const int32_t pairs : {132, 264, 396, 600, 1200, 2200})
    expect_right(pairs, {.page_size = kPageSizes[pairs / 12 % std::size(kPageSizes)], .context = 1100});
}

TEST_P(DecodeOfManySequences, EveryVariant) {
  for (const int32_t pairs : {264, 396, 1200}) {
    expect_right(pairs, {.softcap = 5, .context = 1100});
    expect_right(pairs, {.sinks = true, .context = 1100});
    expect_right(pairs, {.out_type = Dtype::bf16, .sinks = true, .context = 1100});
  }
}

constexpr GpuProblem kManyProblems[] = {
    {"bf16_9_3", Dtype::bf16, Dtype::bf16, 9, 3, 64, 64},
    {"f16_32_4", Dtype::f16, Dtype::f16, 32, 4, 64, 64},
    {"bf16_16_4_128", Dtype::bf16, Dtype::bf16, 16, 4, 128, 128},
    {"f16_8_1_128", Dtype::f16, Dtype::f16, 8, 1, 128, 128},
};
INSTANTIATE_TEST_SUITE_P(Problems, DecodeOfManySequences, ::testing::ValuesIn(kManyProblems),
                         [](const auto& test) { return test.param.name; });

// --- what the kernel before writes while this one begins

// The kernel before makes a key, or a value, of this step: it attends to keys of its own, slowly, and its result is put
// where the last token's belongs.
class KeysOfTheStep : public GpuKernels {
 protected:
  void expect_waited_for(const GpuProblem& problem, const Case& of, GpuKernel kernel) {
    const Case c = problem.applied_to(of);
    SCOPED_TRACE(to_string(c));
    World world(c.world()), before(problem.applied_to({.lengths = {3000}}).world());
    lay_out(world, c);
    lay_out(before, problem.applied_to({.lengths = {3000}}));
    const kv::LayerKv kv = world.args().kv;
    const int64_t slot = world.table().slot(world.row(0), c.lengths[0] - 1).value;
    for (std::byte* const row : {kv.keys + slot * kv.key_stride * 2, kv.values + slot * kv.value_stride * 2}) {
      AttendArgs writer = before.args(), reader = world.args();
      writer.out.data = row;
      writer.out.type = kv.type;
      const Launches launches;
      attend(writer, *exec_);
      exec_->wait();
      attend(reader, *exec_);
      exec_->wait();
      const std::vector<std::byte> expected = world.result().out_bytes;
      std::fill_n(row, int64_t{kv.kv_heads} * kv.key_dim * 2, std::byte{0xff});  // NaN
      reader.keys_are_settled = true;
      const Watchdog watchdog(kGpuTimeLimit, to_string(c));
      attend(writer, *exec_);
      attend(reader, *exec_);
      exec_->wait();
      EXPECT_TRUE(world.result().out_bytes == expected);
      EXPECT_GE(launches.of(kernel), 2);
    }
  }

 private:
  void lay_out(World& world, const Case& c) {
    world.lay_out(c.step(), *exec_);
    write_metadata(world.shape(), world.inputs(), world.arena(), *exec_);
    exec_->wait();
  }
};

TEST_F(KeysOfTheStep, AreWaitedFor) {
  for (const GpuProblem& problem : {GpuProblem{"bf16_128", Dtype::bf16, Dtype::bf16, 4, 4, 128, 128},
                                    {"f16_64", Dtype::f16, Dtype::f16, 3, 3, 64, 64}})
    for (const int32_t length : {1, 17, 2063, 2079}) {
      expect_waited_for(problem, {.lengths = {length}, .context = 4096}, GpuKernel::decode_cluster);
      expect_waited_for(problem, {.lengths = {length, 5, 2000}, .context = 4096}, GpuKernel::decode_cluster);
      expect_waited_for(problem, {.lengths = {length}, .context = 4096, .deterministic = true},
                        GpuKernel::decode_parts);
      expect_waited_for(problem, {.lengths = {length}, .context = 9000, .deterministic = true}, GpuKernel::decode);
      expect_waited_for(problem, {.lengths = std::vector<int32_t>(20, length), .context = 16384}, GpuKernel::decode);
      if (problem.key_dim == 64 || length < 100)
        for (const int32_t sequences : length < 100 ? std::vector{66, 128, 400} : std::vector{66, 128})
          expect_waited_for(
              problem,
              {.lengths = std::vector<int32_t>(sequences, length), .context = problem.key_dim == 64 ? 4096 : 2048},
              GpuKernel::decode_many);
    }
}

// By clusters, where it is in the first warp, in a block's second round, or alone in its block; and in windows.
TEST_F(KeysOfTheStep, AreWaitedForByClustersWhereverTheyLie) {
  const GpuProblem problem{"bf16_128", Dtype::bf16, Dtype::bf16, 4, 4, 128, 128};
  for (const int32_t length : {2, 20, 33, 2049, 4600, 8192})
    for (const int32_t window : {-1, 0, 40, 5000}) {
      Case c{.lengths = {length}, .window = window, .context = 8192};
      expect_waited_for(problem, c, GpuKernel::decode_cluster);
      c.deterministic = true;
      expect_waited_for(problem, c, GpuKernel::decode_parts);
    }
}

// --- the one reduction over many keys, where parts are longer and blocks share them in other ways

class OneReductionOfManyKeys : public GpuKernels, public ::testing::WithParamInterface<GpuProblem> {};

TEST_P(OneReductionOfManyKeys, SameBitsAloneInABatchAndInAChunk) {
  constexpr int32_t kLast = 9001;
  Case c = GetParam().applied_to({.lengths = {kLast}, .deterministic = true});
  const std::string alone = row_bits(run(c.world(), c, GpuKernel::decode), 0);
  c.lengths = {700, kLast, 3000, 5, 8000, 5000};
  c.requests = {3, 0, 4, 5, 6, 7};
  c.page_size = 1;
  EXPECT_TRUE(row_bits(run(c.world(), c, GpuKernel::decode), 1) == alone) << "in a batch";
  c.mode = Mode::extend;
  c.page_size = 64;
  c.lengths = {300, kLast + 7};
  c.requests = {3, 0};
  c.extend = {300, 40};
  EXPECT_TRUE(row_bits(run(c.world(), c, GpuKernel::decode), 300 + 40 - 8) == alone) << "in a chunk";
  const Case tree = GetParam().applied_to({.mode = Mode::verify_tree,
                                           .lengths = {kLast - 6, 20},
                                           .trees = {{-1, 0, 1, 2, 3, 4, 0, 5}, {-1, 0, 1, 2, 3, 4, 5, 6}},
                                           .draft_tokens = 8,
                                           .deterministic = true});
  EXPECT_TRUE(row_bits(run(tree.world(), tree, GpuKernel::decode), 5) == alone) << "in a tree";
}

// Of one sequence and no long context another kernel takes the parts: its blocks have none, one of kLeastPart keys,
// several of them, or a longer one.
TEST_P(OneReductionOfManyKeys, SameBitsByClustersOfBlocks) {
  const bool is_narrow = GetParam().kv_type == Dtype::f8e4m3;
  for (const int32_t length : {1, 130, 257, 3000, 4096, 4097, 5555, 8192})
    for (const int32_t window : {-1, 700}) {
      Case c = GetParam().applied_to({.lengths = {length}, .window = window, .context = 9000, .deterministic = true});
      SCOPED_TRACE(to_string(c));
      const std::string bits = row_bits(run(c.world(), c, GpuKernel::decode), 0);
      c.context = 8192;
      const Result by_clusters = run(c.world(), c, is_narrow ? GpuKernel::decode : GpuKernel::decode_parts);
      EXPECT_TRUE(row_bits(by_clusters, 0) == bits);
    }
}

INSTANTIATE_TEST_SUITE_P(Problems, OneReductionOfManyKeys, ::testing::ValuesIn(kDecodeProblems),
                         [](const auto& test) { return test.param.name; });

// --- prefill's blocks take many tiles

class PrefillOfManyTiles : public GpuKernels {
 protected:
  // Each request is a tile of its own for each kv head.
  static Case case_of(const GpuProblem& problem, int32_t requests, int32_t page_size) {
    std::mt19937 random(problem.key_dim + page_size);
    const auto below = [&](uint32_t bound) { return static_cast<int32_t>(random() % bound); };
    Case c{.mode = Mode::extend, .page_size = page_size};
    for (int32_t b = 0; b < requests; ++b) {
      c.extend.push_back(1 + below(8));
      c.lengths.push_back(c.extend.back() + below(b % 16 == 0 ? 400 : 60));
    }
    return c;
  }

  void expect_right(const GpuProblem& problem, const Case& of) {
    const Case c = problem.applied_to(of);
    SCOPED_TRACE(cat(problem.name, ", ", problem.heads, "/", problem.kv_heads, " heads of ", problem.key_dim, ", ",
                     to_string(c)));
    const GpuKernel kernel = problem.is_latent ? GpuKernel::latent : GpuKernel::prefill;
    expect_dense(run(c.world(), c, kernel), expected_of(c), kGpuTolerance);
  }

  void expect_right_with(const GpuProblem& problem, int32_t requests, int32_t page_size) {
    expect_right(problem, case_of(problem, requests, page_size));
  }

  static int32_t requests_for(int32_t tiles_each, int32_t kv_heads) {
    return tiles_each * cuda::device().processors / kv_heads + 1;
  }
};

// More than the ring of tiles has places, at every dim, with one group of kv heads and with two, and rows that come
// one by one and in boxes.
TEST_F(PrefillOfManyTiles, EveryBlockUsesItsRingAgain) {
  for (GpuProblem problem : kGpuProblems) {
    if (problem.is_latent) continue;
    problem.kv_heads = std::max(problem.kv_heads, 3);
    problem.heads = problem.kv_heads;
    for (const int32_t page_size : {16, 64}) expect_right_with(problem, requests_for(6, problem.kv_heads), page_size);
  }
}

TEST_F(PrefillOfManyTiles, ASecondAndAThirdTile) {
  for (const int32_t page_size : kPageSizes)
    for (const int32_t tiles : {2, 3})
      for (const Dtype kv_type : {Dtype::bf16, Dtype::f8e4m3})
        expect_right_with({"128", Dtype::bf16, kv_type, 10, 5, 128, 128}, requests_for(tiles, 5), page_size);
}

// Blocks of rows, alone and in twos and threes, for each pair of thread blocks in several rounds.
TEST_F(PrefillOfManyTiles, OfLatentKeys) {
  for (const int32_t page_size : {1, 16, 64})
    expect_right_with({"bf16_latent", Dtype::bf16, Dtype::bf16, 20, 1, 576, 512, true}, 150, page_size);
}

// Beginnings of more sequences than a block keeps nearby.
TEST_F(PrefillOfManyTiles, OfManySequences) {
  expect_right_with({"f16_64", Dtype::f16, Dtype::f16, 6, 6, 64, 64}, 530, 16);
}

// A consumer's rows are fetched at once where the group divides them.
TEST_F(PrefillOfManyTiles, OfGroupsOfAnySize) {
  struct Keys {
    Dtype type;
    int32_t page_size, dim;
  };
  for (const int32_t group : {1, 3, 4, 7, 64, 71})
    for (const auto& [type, page_size, dim] : {Keys{Dtype::bf16, 16, 64},
                                               {Dtype::bf16, 64, 64},
                                               {Dtype::bf16, 16, 128},
                                               {Dtype::bf16, 64, 128},
                                               {Dtype::f8e4m3, 16, 64},
                                               {Dtype::f8e4m3, 1, 96},
                                               {Dtype::f8e4m3, 64, 128}})
      expect_right({"bf16", Dtype::bf16, type, 2 * group, 2, dim, dim}, {.mode = Mode::extend,
                                                                         .page_size = page_size,
                                                                         .out_type = Dtype::bf16,
                                                                         .lengths = {300, 129, 40},
                                                                         .extend = {70, 129, 9}});
}

// Scores of earlier keys, which come later, are greater by far more than probabilities have room for.
TEST_F(PrefillOfManyTiles, ScoresThatOutgrowThoseBefore) {
  for (const auto& [type, kv_type] : {std::pair{Dtype::bf16, Dtype::bf16},
                                      {Dtype::f16, Dtype::f16},
                                      {Dtype::bf16, Dtype::f8e4m3},
                                      {Dtype::f16, Dtype::f8e4m3}})
    for (const int32_t dim : {64, 96, 128, 256})
      for (const int32_t page_size : {16, 64}) {
        const GpuProblem problem{"narrow", type, kv_type, 8, 2, dim, dim};
        Case c{.mode = Mode::extend, .page_size = page_size, .lengths = {900, 517, 640}, .extend = {70, 3, 200}};
        for (const float scale : {10.0f, 300.0f}) {
          c.score_scale = scale;
          expect_right(problem, c);
        }
      }
}

// --- prefill whose tiles have keys or none: layers over encoder keys, which only some requests have

constexpr int32_t kRequests = 48, kNewTokens = 256, kEncoderKeys = 150;

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
  void expect_end(const GpuProblem& problem, const std::vector<int32_t>& encoder_keys,
                  const std::vector<int32_t>& page_sizes) {
    Case c = problem.applied_to({.mode = Mode::extend,
                                 .kind = LayerKind::encoder,
                                 .lengths = std::vector<int32_t>(kRequests, kNewTokens),
                                 .extend = std::vector<int32_t>(kRequests, kNewTokens),
                                 .encoder = encoder_keys});
    const Attention expected = expected_of(c);
    for (const int32_t page_size : page_sizes) {
      c.page_size = page_size;
      SCOPED_TRACE(to_string(c));
      WorldSpec spec = c.world();
      spec.limits.encoder_context = kEncoderKeys;  // also where nobody has keys
      expect_dense(run(spec, c, GpuKernel::prefill), expected, kGpuTolerance);
    }
  }

  void expect_end_with_all_pages(const std::vector<int32_t>& encoder_keys) {
    expect_end({"bf16_64", Dtype::bf16, Dtype::bf16, 8, 8, 64, 64}, encoder_keys,
               {std::begin(kPageSizes), std::end(kPageSizes)});
  }
};

TEST_F(PrefillOfEncoderKeys, FirstTiles) { expect_end_with_all_pages(keys_of_one(kRequests - 1)); }
TEST_F(PrefillOfEncoderKeys, LastTiles) { expect_end_with_all_pages(keys_of_one(0)); }
TEST_F(PrefillOfEncoderKeys, TilesInTheMiddle) { expect_end_with_all_pages(keys_of_one(kRequests / 2)); }
TEST_F(PrefillOfEncoderKeys, EverySecondTile) { expect_end_with_all_pages(keys_of_every(2)); }
TEST_F(PrefillOfEncoderKeys, EverySeventhTile) { expect_end_with_all_pages(keys_of_every(7)); }
TEST_F(PrefillOfEncoderKeys, NoTile) { expect_end_with_all_pages(std::vector<int32_t>(kRequests, 0)); }

TEST_F(PrefillOfEncoderKeys, EverySecondTileOf8Bits) {
  expect_end({"fp8_64", Dtype::bf16, Dtype::f8e4m3, 8, 8, 64, 64}, keys_of_every(2), {1, 64});
}

TEST_F(PrefillOfEncoderKeys, FirstTilesAtEveryDim) {
  for (const GpuProblem& problem : {GpuProblem{"f16_96", Dtype::f16, Dtype::f16, 6, 6, 96, 96},
                                    {"bf16_128", Dtype::bf16, Dtype::bf16, 6, 6, 128, 128},
                                    {"fp8_128", Dtype::bf16, Dtype::f8e4m3, 6, 6, 128, 128},
                                    {"f16_192", Dtype::f16, Dtype::f16, 5, 5, 192, 128},
                                    {"bf16_256", Dtype::bf16, Dtype::bf16, 5, 5, 256, 256}})
    expect_end(problem, keys_of_one(kRequests - 1), {16});
}

}  // namespace
}  // namespace quire::attn::testing
