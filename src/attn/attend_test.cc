// Every implementation of attention, every mode and variant, against the dense reference; and the one reduction: the
// same row has the same bits however it is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/gpu_choice.h"
#include "attn/testing/case.h"
#include "attn/testing/expect_near.h"
#include "attn/testing/report_kernels.h"
#include "base/cuda.h"

namespace quire::attn::testing {
namespace {

struct Implementation {
  const char* name;
  AttendFn* attend;
  Isa isa;
  Place place = Place::host;
  Dtype query_type = Dtype::f32, kv_type = Dtype::f32;  // these stand in for f32 where a case has nothing else
  bool on_gpu() const { return place != Place::host; }
};
void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

const Implementation kImplementations[] = {
    {"ref", ref::attend, Isa::plain},
    {"plain", cpu::attend, Isa::plain},
    {"avx2", cpu::attend, Isa::avx2},
    {"avx512", cpu::attend, Isa::avx512},
    {"avx512bf16", cpu::attend, Isa::avx512bf16},
    {"amx", cpu::attend, Isa::amx},
    {"cuda", cuda::attend, Isa::plain, Place::pinned},
};

// A GPU has kernels of their own for these, so they go through all modes and variants, too.
const Implementation kNarrowOnGpu[] = {
    {"cuda_bf16", cuda::attend, Isa::plain, Place::pinned, Dtype::bf16, Dtype::bf16},
    {"cuda_f16", cuda::attend, Isa::plain, Place::pinned, Dtype::f16, Dtype::f16},
    {"cuda_fp8", cuda::attend, Isa::plain, Place::pinned, Dtype::bf16, Dtype::f8e4m3},
};

// What the GPU multiplies in its tensor cores.
bool is_narrow(const Case& c) {
  return c.query_type != Dtype::f32 && (c.kv_type == c.query_type || c.kv_type == Dtype::f8e4m3);
}

// Inputs are rounded beforehand, so only arithmetic and the output's rounding remain; with products of narrow types
// also the rounding of probabilities.
float tolerance_of(const Case& c, const Implementation& implementation) {
  const bool is_bf16 = c.query_type == Dtype::bf16 && c.kv_type == Dtype::bf16;
  const bool rounds_probabilities =
      implementation.on_gpu() ? is_narrow(c) : implementation.isa >= Isa::avx512bf16 && is_bf16;
  // Rounding takes up to 2^-8 of a probability, so 2^-8 of the sum of |probability x value|, which is up to 4.5 here; a
  // GPU's are relative to maxima of before, so also the largest are rounded. Its general kernel adds one product after
  // the other.
  const float rounded = implementation.on_gpu() ? 2e-2f : 1e-2f;
  const float arithmetic = rounds_probabilities ? rounded : implementation.on_gpu() ? 5e-5f : 2e-5f;
  const float rounding = c.out_type == Dtype::bf16 ? 0x1p-8f : c.out_type == Dtype::f16 ? 0x1p-11f : 0.0f;
  return arithmetic + rounding;
}

class Attend : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (GetParam().on_gpu()) {
      if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
      stream_.emplace();
    }
    const std::vector<Isa> available = available_isas();
    if (std::find(available.begin(), available.end(), GetParam().isa) == available.end())
      GTEST_SKIP() << "this machine has no " << GetParam().name;
  }

  bool is_ref() const { return GetParam().attend == ref::attend; }

  Exec& exec(int32_t threads) {
    std::unique_ptr<Exec>& made = execs_[threads];
    const ExecOptions options{.threads = threads, .isa = GetParam().isa, .stream = stream_ ? &*stream_ : nullptr};
    if (!made) made = std::make_unique<Exec>(options);
    return *made;
  }

  // The case where the implementation can reach it, and of its types.
  Case placed(Case c) const {
    c.place = GetParam().place;
    if (c.query_type == Dtype::f32 && c.kv_type == Dtype::f32) {
      c.query_type = GetParam().query_type;
      c.kv_type = GetParam().kv_type;
    }
    return c;
  }
  Result run(const Case& c) { return run_case(placed(c), GetParam().attend, exec(c.threads)); }

  void expect_right(const Case& given) {
    const Case c = placed(given);
    SCOPED_TRACE(to_string(c));
    const Result result = run(c);
    const Attention expected = expected_of(c);
    const float tolerance = tolerance_of(c, GetParam());
    expect_near(result.out, expected.out, tolerance, "out");
    expect_near(result.lse, expected.lse, tolerance, "lse");
  }

  void expect_right_in_both_forms(Case c) {
    for (const Form form : {Form::in_place, Form::materialised}) {
      c.form = form;
      expect_right(c);
    }
  }

 private:
  std::optional<quire::cuda::Stream> stream_;
  std::map<int32_t, std::unique_ptr<Exec>> execs_;
};

// The same base in each of the modes, with lengths around the page size. The captured batch is one larger than the
// live.
std::vector<Case> every_mode(const Case& base) {
  const int32_t ps = base.page_size;
  Case common = base;
  if (common.lengths.empty()) common.lengths = {std::max(3, ps - 1), std::max(4, ps + 1), 2 * ps + 7};
  common.captured = static_cast<int32_t>(common.lengths.size()) + 1;
  std::vector<Case> cases;
  const auto add = [&](Mode mode) -> Case& {
    cases.push_back(common);
    cases.back().mode = mode;
    return cases.back();
  };
  add(Mode::decode);
  Case& extend = add(Mode::extend);
  for (const int32_t length : extend.lengths) extend.extend.push_back((length + 1) / 2);
  Case& draft = add(Mode::draft);
  draft.draft_steps = 4;
  draft.draft_step = 2;
  Case& draft_tree = add(Mode::draft_tree);
  draft_tree.topk = 3;
  draft_tree.draft_steps = 4;
  draft_tree.draft_step = 2;
  add(Mode::verify).draft_tokens = 5;
  add(Mode::verify_tree).draft_tokens = 7;
  Case& draft_extend = add(Mode::draft_extend);
  draft_extend.extend.assign(draft_extend.lengths.size(), 3);
  return cases;
}

TEST_P(Attend, ExtendCasesOfUpstreamsKit) {
  const Case base{.mode = Mode::extend, .captured = 4};
  const auto expect = [&](int32_t page_size, std::vector<int32_t> prefixes, std::vector<int32_t> fresh,
                          int32_t kv_heads) {
    Case c = base;
    c.page_size = page_size;
    c.kv_heads = kv_heads;
    c.extend = fresh;
    for (size_t b = 0; b < fresh.size(); ++b) c.lengths.push_back(prefixes[b] + fresh[b]);
    for (const Layout layout : {Layout::contiguous, Layout::shuffled, Layout::interleaved}) {
      c.layout = layout;
      expect_right_in_both_forms(c);
    }
  };
  expect(1, {2, 4}, {3, 1}, 2);
  expect(16, {0}, {16}, 2);
  expect(16, {0, 0, 0}, {15, 16, 17}, 2);
  expect(16, {16}, {2}, 2);
  expect(16, {8}, {8}, 2);
  expect(16, {15}, {2}, 2);
  expect(16, {0, 8, 16}, {15, 8, 1}, 2);
  expect(32, {31}, {2}, 2);
  expect(16, {5, 20}, {7, 3}, 1);
}

TEST_P(Attend, DecodeCasesOfUpstreamsKit) {
  for (const Layout layout : {Layout::contiguous, Layout::shuffled, Layout::interleaved}) {
    expect_right_in_both_forms({.lengths = {15, 16, 17}, .layout = layout});
    expect_right_in_both_forms({.lengths = {8}, .layout = layout});
    expect_right_in_both_forms({.kv_heads = 1, .lengths = {15, 16, 17}, .captured = 4, .layout = layout});
  }
}

TEST_P(Attend, NobodyIsLive) {
  for (Case c : every_mode({.lengths = {20}})) {
    c.lengths.clear();
    c.extend.clear();
    c.captured = 2;
    c.context = 40;
    expect_right_in_both_forms(c);
  }
}

TEST_P(Attend, EveryModeAtEveryPageSize) {
  for (const int32_t page_size : {1, 16, 32, 64, 128})
    for (const Case& c : every_mode({.page_size = page_size})) expect_right_in_both_forms(c);
}

TEST_P(Attend, EveryModeWithGroupedAndSingleKvHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {4, 1}, {6, 2}, {9, 3}, {1, 1}})
    for (const Case& c : every_mode({.heads = heads, .kv_heads = kv_heads})) expect_right(c);
}

TEST_P(Attend, EveryHeadDim) {
  for (const auto& [key_dim, value_dim] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}})
    for (const Dtype type : {Dtype::f32, Dtype::bf16})
      for (Case c : every_mode({.query_type = type, .kv_type = type, .key_dim = key_dim, .value_dim = value_dim})) {
        c.lengths = {70, 17};
        if (!c.extend.empty()) c.extend = {9, 17};
        expect_right(c);
      }
}

TEST_P(Attend, LatentKeysHoldTheirValues) {
  for (const Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const Case& c : every_mode({.query_type = type,
                         .kv_type = type,
                         .heads = 5,
                         .kv_heads = 1,
                         .key_dim = 576,
                         .value_dim = 512,
                         .latent = true}))
      expect_right(c);
}

Case latent_case(int32_t heads, int32_t page_size, std::vector<int32_t> lengths) {
  return {.page_size = page_size,
          .query_type = Dtype::bf16,
          .kv_type = Dtype::bf16,
          .heads = heads,
          .kv_heads = 1,
          .key_dim = 576,
          .value_dim = 512,
          .latent = true,
          .lengths = std::move(lengths)};
}

// Blocks of 64 (query row, head) pairs, whole and not, over keys that are split unevenly, evenly, or not at all.
TEST_P(Attend, LatentKeysOfManyHeads) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  for (const int32_t page_size : {1, 16, 32, 64, 128})
    for (const Dtype type : {Dtype::bf16, Dtype::f16}) {
      Case few = latent_case(16, page_size, {1, 63, 64, 65, 700, 2500}),
           many = latent_case(128, page_size, {129, 1, 700});
      few.query_type = few.kv_type = type;
      many.query_type = many.kv_type = many.out_type = type;
      few.captured = 8;
      expect_right_in_both_forms(few);
      expect_right(many);
      expect_right(latent_case(16, page_size, {1500}));
      expect_right(latent_case(100, page_size, {333, 350, 330}));
    }
}

TEST_P(Attend, LatentKeysOfChains) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t heads : {16, 30, 128}) {
      Case c = latent_case(heads, page_size, {62, 0, 400, 127});
      c.mode = Mode::verify;
      c.draft_tokens = 3;
      c.captured = 5;
      expect_right(c);
    }
}

// Many queries, whose tiles are dealt out: prompts without a prefix and behind one, single rows between them, last
// blocks of rows that are not whole or have none beside them.
Case latent_extend_case(int32_t heads, int32_t page_size) {
  Case c = latent_case(heads, page_size, {65, 7, 1, 200, 129});
  c.mode = Mode::extend;
  c.extend = {65, 1, 1, 37, 2};
  return c;
}

TEST_P(Attend, LatentKeysOfExtends) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  const int64_t before = launches_of(GpuKernel::latent);
  int64_t calls = 0;
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t heads : {5, 16, 64, 128}) {
      Case c = latent_extend_case(heads, page_size);
      c.captured = 7;
      if (heads >= 64) c.query_type = c.kv_type = c.out_type = Dtype::f16;
      expect_right(c);
      ++calls;
    }
  EXPECT_EQ(launches_of(GpuKernel::latent) - before, calls);
}

TEST_P(Attend, LatentKeysOfExtendsInEveryVariant) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  for (const int32_t page_size : {1, 16, 128}) {
    Case c = latent_extend_case(48, page_size);
    c.softcap = 5;
    c.sinks = true;
    expect_right(c);
    for (const int32_t window : {0, 63, 100}) {
      c.window = window;
      expect_right_in_both_forms(c);
    }
    c.kind = LayerKind::window;
    c.window_pool = true;
    expect_right(c);
  }
}

// Few queries of each sequence after long prefixes, so that the tiles of a sequence are split over its keys; whole ones
// between them, and sequences of one tile.
TEST_P(Attend, LatentKeysOfExtendsAreSplit) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  for (const int32_t page_size : {1, 64})
    for (const int32_t heads : {5, 16, 128}) {
      Case c = latent_case(heads, page_size, {1200, 3, 1500, 700, 33});
      c.query_type = c.kv_type = Dtype::f16;
      c.mode = Mode::extend;
      c.extend = {20, 3, 1, 7, 33};
      if (heads == 128) c.extend = {3, 1, 1, 2, 4};
      c.captured = 6;
      if (heads == 16) c.out_type = Dtype::f16;
      expect_right(c);
      if (page_size == 1) continue;
      c.window = 1100;
      c.sinks = true;
      expect_right(c);
    }
  Case shared = latent_case(20, 64, {1216, 3});  // the last query's heads are of two tiles, with a unit between them
  shared.query_type = shared.kv_type = Dtype::f16;
  shared.mode = Mode::extend;
  shared.extend = {7, 3};
  expect_right(shared);
  Case cross = latent_case(16, 16, {20, 3});
  cross.query_type = cross.kv_type = Dtype::f16;
  cross.mode = Mode::extend;
  cross.extend = {20, 3};
  cross.kind = LayerKind::encoder;
  cross.encoder = {1200, 40};
  expect_right(cross);
}

TEST_P(Attend, LatentKeysInEveryVariant) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any number of heads";
  for (const int32_t page_size : {1, 16, 128})
    for (const int32_t draft_tokens : {0, 3}) {
      Case c = latent_case(48, page_size, {3, 64, 65, 700, 193});
      c.mode = draft_tokens ? Mode::verify : Mode::decode;
      c.draft_tokens = draft_tokens;
      c.softcap = 5;
      c.sinks = true;
      expect_right(c);
      for (const int32_t window : {0, 63, 100, 500}) {
        c.window = window;
        expect_right(c);
      }
      c.kind = LayerKind::window;
      c.window_pool = true;
      expect_right(c);
    }
}

TEST_P(Attend, EveryTypeOfQueriesKeysAndOutputs) {
  for (const Dtype query_type : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const Dtype kv_type : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
      for (const Dtype out_type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
        Case c{.query_type = query_type, .kv_type = kv_type, .out_type = out_type, .lengths = {40, 130}};
        expect_right(c);
        c.mode = Mode::extend;
        c.extend = {40, 9};
        expect_right(c);
      }
}

TEST_P(Attend, Fp8ScalesApplyToKeysAndValues) {
  for (const Case& c : every_mode({.query_type = Dtype::bf16,
                       .kv_type = Dtype::f8e4m3,
                       .out_type = Dtype::bf16,
                       .key_scale = 0.03f,
                       .value_scale = 0.7f}))
    expect_right_in_both_forms(c);
  expect_right({.query_type = Dtype::f32,
                .kv_type = Dtype::f8e4m3,
                .heads = 3,
                .kv_heads = 1,
                .key_dim = 576,
                .value_dim = 512,
                .latent = true,
                .lengths = {33, 100},
                .key_scale = 0.25f,
                .value_scale = 0.25f});
}

TEST_P(Attend, PrefillAndDecodeRowsShareABatch) {
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t threads : {1, 2})
      expect_right_in_both_forms({.mode = Mode::extend,
                                  .page_size = page_size,
                                  .lengths = {33, 1, 90, 200, 5},
                                  .extend = {1, 1, 70, 1, 5},
                                  .captured = 7,
                                  .threads = threads});
}

TEST_P(Attend, DraftsAtEveryStep) {
  for (const int32_t page_size : {1, 16})
    for (const int32_t steps : {2, 5})
      for (int32_t step = 0; step + 1 < steps; ++step) {
        Case c{.mode = Mode::draft,
               .page_size = page_size,
               .lengths = {14, 15, 16, 0},
               .captured = 5,
               .draft_steps = steps,
               .draft_step = step};
        expect_right_in_both_forms(c);
        c.mode = Mode::draft_tree;
        c.topk = 4;
        expect_right_in_both_forms(c);
      }
}

TEST_P(Attend, DraftTreesFollowTheirParents) {
  std::mt19937_64 random(5);
  for (const Form form : {Form::in_place, Form::materialised})
    for (int32_t draft_step = 0; draft_step < 4; ++draft_step) {
      const Case c = placed({.mode = Mode::draft_tree,
                             .form = form,
                             .lengths = {14, 33, 0},
                             .captured = 4,
                             .topk = 4,
                             .draft_steps = 5,
                             .draft_step = draft_step});
      SCOPED_TRACE(to_string(c));
      Step step = c.step();
      for (Sequence& sequence : step.sequences)
        for (int32_t t = 0; t < draft_step; ++t) {
          std::vector<int32_t>& parents = sequence.draft_parents.emplace_back();
          for (int32_t branch = 0; branch < c.topk; ++branch)
            parents.push_back(static_cast<int32_t>(random() % c.topk));
        }
      World world(c.world());
      world.lay_out(step, exec(1));
      world.poison(Poison::guard);
      write_metadata(world.shape(), world.inputs(), world.arena(), exec(1));
      for (int32_t t = 0; t < draft_step; ++t)
        follow_parents(world.shape(), world.inputs(), world.arena(), t, world.draft_parents(t), exec(1));
      GetParam().attend(world.args(), exec(1));
      exec(1).wait();
      expect_near(world.result().out, world.expected().out, tolerance_of(placed(c), GetParam()), "out");
    }
}

TEST_P(Attend, VerifiesChains) {
  for (const int32_t page_size : {1, 16})
    for (const int32_t nodes : {1, 3, 16})
      expect_right_in_both_forms({.mode = Mode::verify,
                                  .page_size = page_size,
                                  .lengths = {4, 7, 0, 62},
                                  .captured = 6,
                                  .draft_tokens = nodes});
}

// On a GPU the bound of a sequence's rows tells few queries from many: those of a chain, of any length.
TEST_P(Attend, ExtendsOfFewRowsEach) {
  for (const int32_t page_size : {1, 16})
    for (const int32_t rows : {2, 5, 16}) {
      Case c{.mode = Mode::extend,
             .page_size = page_size,
             .lengths = {40, 17, 620, 16, 300},
             .extend = {rows, 1, rows - 1, rows, 2},
             .captured = 7,
             .sequence_rows = rows};
      expect_right_in_both_forms(c);
      c.window = 9;
      expect_right(c);
    }
}

TEST_P(Attend, VerifiesRandomTrees) {
  for (uint64_t seed = 1; seed <= 12; ++seed)
    expect_right_in_both_forms({.mode = Mode::verify_tree,
                                .page_size = seed % 2 ? 16 : 1,
                                .lengths = {4, 0, 62, 64, 65},
                                .captured = 6,
                                .draft_tokens = static_cast<int32_t>(1 + seed * 2),
                                .seed = seed});
}

TEST_P(Attend, VerifiesAtTheEndOfTheContext) {
  for (const Mode mode : {Mode::verify, Mode::verify_tree})
    for (const int32_t page_size : {1, 16, 128})
      expect_right_in_both_forms(
          {.mode = mode, .page_size = page_size, .lengths = {128, 127}, .draft_tokens = 8, .context = 128});
}

TEST_P(Attend, LocalChunksAtTheirEdges) {
  // The worked example of the metadata: 10 queries at the end of 17 keys cross three chunks of 4.
  expect_right_in_both_forms({.mode = Mode::extend,
                              .kind = LayerKind::local,
                              .page_size = 1,
                              .lengths = {6, 17, 9},
                              .extend = {4, 10, 5},
                              .captured = 4,
                              .chunk = 4});
  for (const auto& [page_size, chunk] : {std::pair{16, 16}, {16, 32}, {32, 64}, {64, 128}}) {
    Case c{.kind = LayerKind::local, .page_size = page_size, .captured = 8, .chunk = chunk};
    c.lengths = {1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1, 3 * chunk - 5};
    expect_right_in_both_forms(c);
    c.mode = Mode::extend;
    c.extend = {1, chunk - 1, 3, 2, chunk + 1, 2 * chunk + 1, 3};
    expect_right_in_both_forms(c);
  }
}

TEST_P(Attend, AChunkLongerThanAllRequestsIsNotRoundedDown) {
  expect_right_in_both_forms({.kind = LayerKind::local, .lengths = {100, 37}, .chunk = 8192});
}

TEST_P(Attend, WindowsInEveryMode) {
  for (const bool window_pool : {false, true})
    for (const int32_t window : {0, 4, 20})
      for (const int32_t page_size : {1, 16}) {
        const Case base{.kind = window_pool ? LayerKind::window : LayerKind::full,
                        .page_size = page_size,
                        .lengths = {3, 4, 5, 40},
                        .window = window,
                        .window_pool = window_pool};
        for (Case c : every_mode(base)) {
          if (window_pool && c.mode == Mode::draft_tree) continue;
          if (c.mode == Mode::draft_extend) c.extend = {3, 3, 3, 3};
          expect_right_in_both_forms(c);
        }
      }
}

TEST_P(Attend, FullLayersBesideAWindowPool) {
  for (const Case& c : every_mode({.lengths = {3, 40}, .window = 4, .window_pool = true}))
    expect_right_in_both_forms(c);
}

TEST_P(Attend, EncoderKeysHaveTheirOwnLengths) {
  for (const LayerKind kind : {LayerKind::encoder, LayerKind::full})
    for (const int32_t page_size : {1, 16, 64}) {
      Case c{.kind = kind, .page_size = page_size, .lengths = {5, 30, 17, 1}, .captured = 5, .encoder = {33, 1, 0, 16}};
      expect_right_in_both_forms(c);
      c.mode = Mode::extend;
      c.extend = {5, 7, 1, 1};
      expect_right_in_both_forms(c);
    }
}

TEST_P(Attend, SinksAndSoftcapInEveryMode) {
  for (const bool sinks : {false, true})
    for (const float softcap : {0.0f, 2.0f, 30.0f})
      for (const Case& c : every_mode({.softcap = softcap, .sinks = sinks})) expect_right_in_both_forms(c);
}

TEST_P(Attend, BothFormsGiveTheSameBits) {
  const Case base{.lengths = {600, 15, 130}, .window = 100, .window_pool = true, .threads = 2};
  std::vector<Case> cases = every_mode(base);
  for (Case c : every_mode(base)) {
    c.kind = LayerKind::window;
    if (c.mode != Mode::draft_tree) cases.push_back(c);
  }
  cases.push_back({.kind = LayerKind::encoder, .lengths = {5, 30}, .encoder = {33, 700}, .threads = 2});
  for (Case c : cases) {
    SCOPED_TRACE(to_string(c));
    c.form = Form::in_place;
    const Result in_place = run(c);
    c.form = Form::materialised;
    EXPECT_EQ(in_place.out_bytes, run(c).out_bytes);
  }
}

TEST_P(Attend, LongSequencesOnAnyNumberOfThreads) {
  for (const int32_t threads : {1, 2, 3})
    for (Case c : every_mode({.lengths = {1300, 40, 700}, .threads = threads})) {
      if (!c.extend.empty()) c.extend = {6, 40, 2};
      expect_right(c);
      c.window = 600;
      expect_right(c);
    }
}

// Rows that fill tiles, with a prefix and without, at every page size and head dim.
TEST_P(Attend, LongExtends) {
  Case base{.mode = Mode::extend, .heads = 2, .kv_heads = 1, .lengths = {130, 1, 70}, .extend = {130, 1, 40}};
  if (GetParam().on_gpu()) {  // whose tiles are larger
    base.heads = 6;
    base.kv_heads = 2;
    base.lengths = {300, 1, 129, 1100};
    base.extend = {300, 1, 100, 257};
  }
  for (const int32_t page_size : {1, 16, 32, 64, 128}) {
    Case c = base;
    c.page_size = page_size;
    expect_right_in_both_forms(c);
    c.window = 70;
    expect_right(c);
  }
  for (const auto& [key_dim, value_dim] : {std::pair{96, 96}, {128, 128}, {192, 128}, {256, 256}})
    for (const int32_t page_size : {1, 16, 64}) {
      Case c = base;
      c.page_size = page_size;
      c.key_dim = key_dim;
      c.value_dim = value_dim;
      c.out_type = GetParam().query_type;
      expect_right(c);
    }
}

// On a GPU prefill takes extends, and all of dims that decode has no code for; it splits the keys of the long ones.
TEST_P(Attend, FewQueriesAfterLongPrefixesOfEveryDim) {
  if (!GetParam().on_gpu()) GTEST_SKIP() << "the CPU's loops are the same for any dim";
  for (const auto& [key_dim, value_dim] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
    for (const int32_t page_size : {1, 64}) {
      Case c{.page_size = page_size,
             .key_dim = key_dim,
             .value_dim = value_dim,
             .lengths = {2300, 3, 1100, 40},
             .captured = 5};
      c.out_type = GetParam().query_type;
      expect_right(c);
      c.sinks = true;
      c.window = 2100;
      expect_right(c);
      c.mode = Mode::verify;
      c.draft_tokens = 3;
      expect_right(c);
      c.mode = Mode::extend;
      c.extend = {20, 3, 70, 1};
      expect_right(c);
      c.window = -1;
      c.softcap = 5;
      expect_right(c);
    }
}

TEST_P(Attend, LongEncoderKeysAndChunksOnAnyNumberOfThreads) {
  for (const int32_t threads : {1, 3}) {
    expect_right({.kind = LayerKind::encoder, .lengths = {5, 3}, .encoder = {1300, 60}, .threads = threads});
    expect_right_in_both_forms({.mode = Mode::extend,
                                .kind = LayerKind::local,
                                .lengths = {1500},
                                .extend = {2},
                                .chunk = 832,
                                .threads = threads});
  }
}

// Narrow types, which a GPU splits over its blocks, at 16, 32 and 64 (query row, head) pairs of a kv head and less than
// those. CPUs have no such limits; one of them shows that the cases themselves are right.
class NarrowTypes : public Attend {
 protected:
  static constexpr int32_t kHeads = 8, kKvHeads = 2;

  static std::vector<Case> every_type_and_dim(Case base) {
    std::vector<Case> cases;
    for (const Dtype query_type : {Dtype::bf16, Dtype::f16})
      for (const Dtype kv_type : {query_type, Dtype::f8e4m3})
        for (const int32_t dim : {64, 128}) {
          base.query_type = query_type;
          base.kv_type = kv_type;
          base.key_dim = dim;
          cases.push_back(base);
        }
    return cases;
  }

  static Case with_rows(Mode mode, int32_t rows) {
    Case c{.mode = mode, .heads = kHeads, .kv_heads = kKvHeads, .lengths = {330, 0, 40}, .captured = 4};
    if (mode == Mode::draft_tree) {
      c.topk = rows;
      c.draft_steps = 4;
      c.draft_step = 2;
    } else {
      c.draft_tokens = rows;
    }
    return c;
  }
};

TEST_P(NarrowTypes, DecodeLongSequences) {
  for (Case c : every_type_and_dim({.heads = kHeads, .kv_heads = kKvHeads, .lengths = {900, 1, 65, 300}})) {
    for (const int32_t page_size : {1, 16}) {
      c.page_size = page_size;
      expect_right_in_both_forms(c);
    }
    c.window = 400;
    c.softcap = 3;
    c.sinks = true;
    expect_right(c);
  }
}

TEST_P(NarrowTypes, DecodeManyShortSequences) {
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < 300; ++b) lengths.push_back(1 + b * 37 % 130);
  for (const Dtype kv_type : {Dtype::bf16, Dtype::f8e4m3})
    for (const int32_t captured : {301, 3000})  // of which a GPU's block keeps a table
      expect_right({.query_type = Dtype::bf16, .kv_type = kv_type, .lengths = lengths, .captured = captured});
}

TEST_P(NarrowTypes, VerifyAndDraftTreesOfManyRows) {
  for (const Mode mode : {Mode::verify, Mode::verify_tree, Mode::draft_tree})
    for (const int32_t rows : {4, 5, 8, 13, 16})
      for (const Case& c : every_type_and_dim(with_rows(mode, rows))) expect_right(c);
}

TEST_P(NarrowTypes, TreesInWindowsWithSoftcapAndSinks) {
  for (const Mode mode : {Mode::verify, Mode::verify_tree, Mode::draft_tree})
    for (const int32_t window : {0, 2, 20, 200})
      for (Case c : every_type_and_dim(with_rows(mode, 8))) {
        c.window = window;
        c.softcap = window == 20 ? 2.0f : 0.0f;
        c.sinks = window > 2;
        expect_right(c);
      }
}

// Pages that left the window are gone, and with them what the table said of them.
TEST_P(NarrowTypes, WindowsInTheirPool) {
  for (const Mode mode : {Mode::decode, Mode::verify, Mode::verify_tree})
    for (const int32_t window : {0, 3, 21, 200})
      for (Case c : every_type_and_dim(with_rows(mode, 8))) {
        c.kind = LayerKind::window;
        c.window = window;
        c.window_pool = true;
        if (mode == Mode::decode) c.draft_tokens = 0;
        if (mode == Mode::decode) c.lengths = {330, 1, 40};
        expect_right_in_both_forms(c);
      }
}

// Multiplied as f16, which ends at 65504, where their keys have 8 bits.
TEST_P(NarrowTypes, QueriesPastTheRangeOfF16) {
  constexpr float kFactor = 0x1p40f;
  for (const Case& c : every_type_and_dim({.heads = kHeads, .kv_heads = kKvHeads, .lengths = {130, 7}})) {
    if (c.query_type != Dtype::bf16) continue;
    SCOPED_TRACE(to_string(c));
    World world(placed(c).world());
    world.lay_out(c.step(), exec(1));
    world.poison(Poison::guard);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec(1));
    AttendArgs args = world.args();
    auto* const queries = reinterpret_cast<bf16*>(const_cast<std::byte*>(args.q.data));
    for (int64_t i = 0; i < args.q.rows * args.q.row_stride; ++i) queries[i] = to_bf16(to_float(queries[i]) * kFactor);
    args.scale /= kFactor;
    GetParam().attend(args, exec(1));
    exec(1).wait();
    expect_near(world.result().out, world.expected().out, tolerance_of(c, GetParam()), "out");
  }
}

TEST_P(Attend, PoisonChangesNothing) {
  for (const Case& c : every_mode({.lengths = {600, 15, 130}, .threads = 2})) {
    SCOPED_TRACE(to_string(c));
    World world(placed(c).world());
    world.lay_out(c.step(), exec(2));
    write_metadata(world.shape(), world.inputs(), world.arena(), exec(2));
    GetParam().attend(world.args(), exec(2));
    exec(2).wait();
    EXPECT_EQ(world.result().out_bytes, run(c).out_bytes);  // which poisons
  }
}

// A few requests live through steps of all kinds at the same addresses: they grow, are verified, shrink and end.
class Life {
 public:
  explicit Life(uint64_t seed) : random_(seed) {}

  Step next() {
    constexpr Mode kModes[] = {Mode::decode,     Mode::extend, Mode::draft,
                               Mode::draft_tree, Mode::verify, Mode::verify_tree};
    Step step{.mode = kModes[random_() % std::size(kModes)],
              .form = random_() % 2 ? Form::in_place : Form::materialised,
              .captured = kRequests,
              .draft_step = static_cast<int32_t>(random_() % (kDraftSteps - 1))};
    std::vector<int32_t> ids = {0, 1, 2, 3};
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(random_() % (kRequests + 1));
    for (const int32_t id : ids) step.sequences.push_back(take_part(step.mode, id));
    return step;
  }

  // Ends requests that are full and, now and then, others.
  std::vector<int32_t> ended() {
    std::vector<int32_t> ids;
    for (const auto& [id, length] : committed_)
      if (length > kContext - 16 || random_() % 16 == 0) ids.push_back(id);
    for (const int32_t id : ids) committed_.erase(id);
    return ids;
  }

  static constexpr int32_t kRequests = 4, kContext = 150, kDraftSteps = 4, kNodes = 6;

 private:
  Sequence take_part(Mode mode, int32_t id) {
    int32_t& committed = committed_[id];
    Sequence sequence{.request = id, .length = committed};
    if (mode == Mode::decode) sequence.length = committed += 1;
    if (mode == Mode::extend) {
      sequence.extend = static_cast<int32_t>(1 + random_() % 12);
      sequence.length = committed += sequence.extend;
    }
    if (mode == Mode::verify_tree) sequence.parents = random_parents(kNodes, random_);
    if (mode == Mode::verify || mode == Mode::verify_tree)
      committed += static_cast<int32_t>(random_() % 3);  // accepted
    return sequence;
  }

  std::mt19937_64 random_;
  std::map<int32_t, int32_t> committed_;
};

TEST_P(Attend, StepsFollowEachOtherInOneWorld) {
  const Case c = placed({.lengths = std::vector<int32_t>(Life::kRequests, Life::kContext),
                         .topk = 3,
                         .draft_steps = Life::kDraftSteps,
                         .draft_tokens = Life::kNodes,
                         .window = 20,
                         .window_pool = true});
  WorldSpec spec = c.world();
  spec.query_rows = 12 * Life::kRequests;
  World world(spec);
  Life life(11);
  for (int32_t i = 0; i < 120; ++i) {
    Step step = life.next();
    for (const LayerKind kind : {LayerKind::full, LayerKind::window}) {
      if (kind == LayerKind::window && step.mode == Mode::draft_tree) continue;
      SCOPED_TRACE(cat("step ", i, ", ", attn::to_string(step.mode), " ", attn::to_string(kind)));
      step.kind = kind;
      step.window = kind == LayerKind::window ? spec.window_pool : -1;
      world.lay_out(step, exec(1));
      world.poison(Poison::guard);
      write_metadata(world.shape(), world.inputs(), world.arena(), exec(1));
      GetParam().attend(world.args(), exec(1));
      exec(1).wait();
      const Attention expected = world.expected();
      expect_near(world.result().out, expected.out, tolerance_of(c, GetParam()), "out");
      expect_near(world.result().lse, expected.lse, tolerance_of(c, GetParam()), "lse");
    }
    for (const int32_t id : life.ended()) world.close(id);
  }
}

// The one reduction. The same request is computed in one piece, and then its rows again in every other way.

struct Kinds {
  Dtype query;
  Dtype kv;
  int32_t heads = 4, kv_heads = 2, dim = 64;
  int32_t window = -1;
};

class OneReduction : public Attend {
 protected:
  static constexpr int32_t kTokens = 1100;

  Case base(Kinds kinds) const {
    return {.query_type = kinds.query,
            .kv_type = kinds.kv,
            .out_type = kinds.query,
            .heads = kinds.heads,
            .kv_heads = kinds.kv_heads,
            .key_dim = kinds.dim,
            .window = kinds.window,
            .deterministic = true};
  }

  void compute_whole(Kinds kinds) {
    Case c = base(kinds);
    c.mode = Mode::extend;
    c.lengths = {kTokens};
    c.extend = {kTokens};
    whole_ = run(c);
  }

  // Row `row` of the case's result is the token at `position` of request 0.
  struct Row {
    int64_t row;
    int32_t position;
  };
  void expect_same(const Case& c, const std::vector<Row>& rows) {
    SCOPED_TRACE(to_string(c));
    const Result result = run(c);
    for (const auto& [row, position] : rows)
      EXPECT_TRUE(row_bits(result, row) == row_bits(whole_, position)) << "at position " << position;
  }

  static std::vector<Row> consecutive(int64_t first_row, int32_t first_position, int32_t count) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < count; ++i) rows.push_back({first_row + i, first_position + i});
    return rows;
  }

  void expect_same_in_chunks(Kinds kinds) {
    for (const auto& [prefix, fresh] : {std::pair{0, 70}, {60, 9}, {490, 40}, {1020, 80}, {1099, 1}})
      for (const int32_t threads : {1, 3}) {
        Case c = base(kinds);
        c.mode = Mode::extend;
        c.page_size = threads == 1 ? 1 : 64;
        c.lengths = {50, prefix + fresh, 9};
        c.extend = {50, fresh, 1};
        c.requests = {3, 0, 7};
        c.threads = threads;
        expect_same(c, consecutive(50, prefix, fresh));
        c.mode = Mode::draft_extend;
        c.form = Form::materialised;
        expect_same(c, consecutive(50, prefix, fresh));
      }
  }

  void expect_same_in_decode(Kinds kinds) {
    for (const int32_t length : {1, 63, 64, 65, 511, 512, 513, 1024, 1025, 1100})
      for (const auto& [page_size, threads] : {std::pair{1, 1}, {16, 2}, {128, 3}}) {
        Case c = base(kinds);
        c.page_size = page_size;
        c.threads = threads;
        c.lengths = {length};
        expect_same(c, {{0, length - 1}});
        c.lengths = {800, length};
        c.requests = {5, 0};
        c.captured = 4;
        expect_same(c, {{1, length - 1}});
      }
  }

  void expect_same_in_drafts(Kinds kinds) {
    for (const int32_t committed : {0, 62, 510, 1022}) {
      Case c = base(kinds);
      c.mode = Mode::draft;
      c.lengths = {33, committed};
      c.requests = {4, 0};
      c.draft_steps = 4;
      c.draft_step = 2;
      c.threads = 2;
      expect_same(c, {{1, committed + 2}});
      c.mode = Mode::draft_tree;
      c.topk = 3;
      expect_same(c, {{3, committed + 2}});  // branch 0 of the second request
    }
  }

  void expect_same_in_verification(Kinds kinds) {
    const std::vector<int32_t> chain = {-1, 0, 1, 2, 3, 4, 5, 6};
    const std::vector<int32_t> branching = {-1, 0, 0, 1, 2, 3, 1, 5};  // main line: nodes 0, 1, 3, 5, 7
    for (const int32_t committed : {0, 60, 508, 1017})
      for (const int32_t threads : {1, 3}) {
        Case c = base(kinds);
        c.mode = Mode::verify;
        c.page_size = threads == 1 ? 16 : 32;
        c.lengths = {committed, 77};
        c.captured = 3;
        c.draft_tokens = 8;
        c.threads = threads;
        expect_same(c, consecutive(0, committed, 8));
        c.mode = Mode::verify_tree;
        c.trees = {chain, branching};
        expect_same(c, consecutive(0, committed, 8));
        c.trees = {branching, chain};
        expect_same(c,
                    {{0, committed}, {1, committed + 1}, {3, committed + 2}, {5, committed + 3}, {7, committed + 4}});
      }
  }

  void expect_one_reduction(Kinds kinds) {
    if (is_ref() && kinds.kv != Dtype::bf16) GTEST_SKIP() << "one type is enough for loops that do not know it";
    compute_whole(kinds);
    expect_same_in_chunks(kinds);
    expect_same_in_decode(kinds);
    expect_same_in_drafts(kinds);
    expect_same_in_verification(kinds);
  }

 private:
  Result whole_;
};

TEST_P(OneReduction, F32) { expect_one_reduction({Dtype::f32, Dtype::f32}); }
TEST_P(OneReduction, Bf16) { expect_one_reduction({Dtype::bf16, Dtype::bf16}); }
TEST_P(OneReduction, F16) { expect_one_reduction({Dtype::f16, Dtype::f16}); }
TEST_P(OneReduction, Fp8) { expect_one_reduction({Dtype::bf16, Dtype::f8e4m3}); }

// What a GPU cuts in other ways.
class OneReductionOfTiles : public OneReduction {};
TEST_P(OneReductionOfTiles, InAWindow) {
  expect_one_reduction({.query = Dtype::bf16, .kv = Dtype::bf16, .window = 300});
}
TEST_P(OneReductionOfTiles, OfEightHeadsAKvHead) {
  expect_one_reduction({.query = Dtype::bf16, .kv = Dtype::bf16, .heads = 8, .kv_heads = 1, .dim = 128});
}

// What is refused, is refused before any work and by name.

class BadInput : public Attend {
 protected:
  template <class Change>
  void expect_refused(const Change& change, const std::string& part) {
    const Case c{.lengths = {20, 30}};
    World world(placed(c).world());
    world.lay_out(c.step(), exec(1));
    world.poison(Poison::guard);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec(1));
    const std::vector<std::byte> before = world.result().out_bytes;
    AttendArgs args = world.args();
    change(args);
    try {
      GetParam().attend(args, exec(1));
      exec(1).wait();
      FAIL() << "expected a refusal with \"" << part << "\"";
    } catch (const CheckError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(world.result().out_bytes, before);
  }
};

TEST_P(BadInput, UnsupportedHeadDims) {
  expect_refused([](AttendArgs& a) { a.kv.key_dim = a.q.dim = 72; }, "key dim 72");
  expect_refused([](AttendArgs& a) { a.kv.value_dim = a.out.dim = 512; }, "value dim 512");
}

TEST_P(BadInput, UnsupportedTypes) {
  expect_refused([](AttendArgs& a) { a.q.type = Dtype::f8e4m3; }, "f8e4m3");
  expect_refused([](AttendArgs& a) { a.out.type = Dtype::f8e4m3; }, "f8e4m3");
}

TEST_P(BadInput, ShapesThatDoNotFit) {
  expect_refused([](AttendArgs& a) { a.q.dim = 32; }, "q f32 [2, 4, 32]");
  expect_refused([](AttendArgs& a) { a.out.dim = 32; }, "out f32 [2, 4, 32]");
  expect_refused([](AttendArgs& a) { a.out.rows = 1; }, "out f32 [1, 4, 64]");
  expect_refused([](AttendArgs& a) { a.kv.kv_heads = 3; }, "3 kv heads");
  expect_refused([](AttendArgs& a) { a.q.row_stride = 64; }, "rows overlap");
  expect_refused([](AttendArgs& a) { a.keys.page_size = PageSize(32); }, "page size");
  expect_refused([](AttendArgs& a) { a.q.heads = a.out.heads = 8; }, "[2, 8, 64]");
  expect_refused([](AttendArgs& a) { a.q.rows = a.out.rows = 1; }, "a step of this shape has up to 2 query rows");
  if (GetParam().on_gpu()) return;  // where the host does not see the step that was written
  expect_refused([](AttendArgs& a) { a.keys.query_rows = a.q.rows = a.out.rows = 1; }, "the step has 2 query rows");
}

TEST_P(BadInput, NumbersThatMakeNoSense) {
  expect_refused([](AttendArgs& a) { a.scale = std::nanf(""); }, "scale is not finite");
  expect_refused([](AttendArgs& a) { a.softcap = -1; }, "softcap");
  expect_refused([](AttendArgs& a) { a.window = -2; }, "window -2");
  expect_refused([](AttendArgs& a) { a.kv.key_scale = 0; }, "scale of keys");
}

const auto kAll = ::testing::ValuesIn(kImplementations);
std::string name_of(const ::testing::TestParamInfo<Implementation>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Implementations, Attend, kAll, name_of);
INSTANTIATE_TEST_SUITE_P(Narrow, Attend, ::testing::ValuesIn(kNarrowOnGpu), name_of);
const auto kGpuAndPlain = ::testing::Values(kImplementations[std::size(kImplementations) - 1], kImplementations[1]);
INSTANTIATE_TEST_SUITE_P(Implementations, NarrowTypes, kGpuAndPlain, name_of);
INSTANTIATE_TEST_SUITE_P(Implementations, OneReduction, kAll, name_of);
INSTANTIATE_TEST_SUITE_P(Implementations, OneReductionOfTiles,
                         ::testing::Values(kImplementations[std::size(kImplementations) - 1]), name_of);
INSTANTIATE_TEST_SUITE_P(Implementations, BadInput, kAll, name_of);

}  // namespace
}  // namespace quire::attn::testing
