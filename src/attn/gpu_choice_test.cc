#include "attn/gpu_choice.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "attn/testing/case.h"
#include "base/testing/expect_refused.h"

namespace quire::attn {

void PrintTo(GpuKernel kernel, std::ostream* out) { *out << to_string(kernel); }

}  // namespace quire::attn

namespace quire::attn::testing {
namespace {

constexpr GpuDevice kH200{.capability = 90, .processors = 132, .shared_bytes = 232448, .reserved_shared = 1024};
constexpr GpuDevice kA100{.capability = 80, .processors = 108, .shared_bytes = 166912, .reserved_shared = 1024};
constexpr GpuDevice kL40{.capability = 89, .processors = 142, .shared_bytes = 101376, .reserved_shared = 1024};

Case case_of(Dtype type, int32_t heads, int32_t kv_heads, int32_t key_dim, int32_t value_dim = 0) {
  return {.query_type = type == Dtype::f8e4m3 ? Dtype::bf16 : type,
          .kv_type = type,
          .heads = heads,
          .kv_heads = kv_heads,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .lengths = {40, 7}};
}
// Too long for clusters.
Case of_long_context(Case c) {
  c.context = 16384;
  return c;
}
Case extend_of(Case c) {
  c.mode = Mode::extend;
  c.extend = {20, 3};
  return c;
}
Case latent_of(Dtype type, int32_t heads) {
  Case c = case_of(type, heads, 1, 576, 512);
  c.latent = true;
  return c;
}

// The call of the case, laid out on the host: nobody looks at what the addresses hold.
template <class Change>
GpuChoice chosen(const Case& c, const GpuDevice& device, const Change& change) {
  Exec exec({.threads = 1});
  World world(c.world());
  world.lay_out(c.step(), exec);
  AttendArgs args = world.args();
  change(args);
  return choose_gpu(args, device);
}
GpuChoice chosen(const Case& c, const GpuDevice& device = kH200) {
  return chosen(c, device, [](AttendArgs&) {});
}
GpuKernel kernel_for(const Case& c, const GpuDevice& device = kH200) { return chosen(c, device).kernel; }

TEST(GpuChoice, FewQueriesOf16And8BitsAreDecodes) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
    for (const int32_t dim : {64, 128})
      for (const int32_t kv_heads : {1, 3, 5, 6, 8})
        EXPECT_EQ(kernel_for(of_long_context(case_of(type, 2 * kv_heads, kv_heads, dim))), GpuKernel::decode)
            << quire::to_string(type) << " " << dim << " " << kv_heads;
  EXPECT_EQ(kernel_for(case_of(Dtype::bf16, 8, 8, 128), kA100), GpuKernel::decode);
}

Problem shapes_of(Dtype kv_type, int32_t dim) {
  return {.query_type = kv_type == Dtype::f8e4m3 ? Dtype::bf16 : kv_type,
          .kv_type = kv_type,
          .heads = 32,
          .kv_heads = 8,
          .key_dim = dim,
          .value_dim = dim};
}

TEST(GpuChoice, OfShapesAloneIsThatOfACallWithThem) {
  GpuProblem problem{.shapes = shapes_of(Dtype::bf16, 128)};
  EXPECT_EQ(to_string(choose_gpu(problem, kH200)), "decode_cluster, 128 blocks, row by row, clusters of 16");
  problem.mode = Mode::extend;
  problem.queries = 512;
  EXPECT_EQ(choose_gpu(problem, kH200).kernel, GpuKernel::prefill);
}

TEST(GpuChoice, WhatTheGeneralKernelTakesOfAModelIsSaid) {
  const auto said = [](Dtype kv_type, int32_t dim, bool is_deterministic = false) {
    return slow_attention(shapes_of(kv_type, dim), is_deterministic, kH200).value_or("");
  };
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
    for (const int32_t dim : {64, 96, 128, 256}) EXPECT_EQ(said(type, dim), "") << dim;
  EXPECT_EQ(
      said(Dtype::bf16, 80),
      "the general kernel, which is slow, attends for all rows: attention of bf16 queries over bf16 keys and "
      "values, 32 heads, 8 kv heads, key dim 80, value dim 80: no kernel on tensor cores is for these types, dims, "
      "strides, this kind of layer or this device");
  EXPECT_NE(said(Dtype::f32, 128), "");
  EXPECT_EQ(said(Dtype::bf16, 128, true), "");
  EXPECT_NE(said(Dtype::bf16, 96, true).find("deterministic: no kernel"), std::string::npos);
}

// Of 16 bits, and where one tile has all of its heads. Longer contexts have larger clusters.
TEST(GpuChoice, OneQueryOfOneSequenceIsAClusters) {
  const auto one = [](Dtype type, int32_t heads, int32_t kv_heads, int32_t dim, int32_t context) {
    Case c = case_of(type, heads, kv_heads, dim);
    c.lengths = {40};
    c.context = context;
    return c;
  };
  const Case c = one(Dtype::bf16, 32, 8, 128, 4096);
  EXPECT_EQ(to_string(chosen(c)), "decode_cluster, 128 blocks, row by row, clusters of 16");
  EXPECT_EQ(to_string(chosen(one(Dtype::f16, 9, 3, 64, 512))), "decode_cluster, 12 blocks, row by row, clusters of 4");
  EXPECT_EQ(chosen(one(Dtype::bf16, 32, 8, 128, 16)).cluster, 4) << "whoever has room has four";
  EXPECT_EQ(chosen(one(Dtype::bf16, 32, 8, 128, 1024)).cluster, 4);
  EXPECT_EQ(chosen(one(Dtype::bf16, 32, 8, 128, 1025)).cluster, 8);
  EXPECT_EQ(chosen(one(Dtype::bf16, 32, 32, 128, 4096)).cluster, 8) << "two blocks a multiprocessor, in two rounds";
  EXPECT_EQ(kernel_for(one(Dtype::bf16, 32, 32, 128, 4097)), GpuKernel::decode) << "more than two rounds";
  EXPECT_EQ(chosen(one(Dtype::bf16, 32, 8, 128, 8192)).cluster, 16);
  EXPECT_EQ(kernel_for(one(Dtype::bf16, 32, 8, 128, 8193)), GpuKernel::decode);
  EXPECT_EQ(kernel_for(one(Dtype::f8e4m3, 32, 8, 128, 4096)), GpuKernel::decode);
  EXPECT_EQ(kernel_for(one(Dtype::bf16, 9, 1, 128, 4096)), GpuKernel::decode);
  EXPECT_EQ(kernel_for(c, kA100), GpuKernel::decode);
  const auto unaligned = [](AttendArgs& args) { args.q.data += 4; };
  EXPECT_EQ(chosen(c, kH200, unaligned).kernel, GpuKernel::decode);
  Case other = c;
  other.deterministic = true;
  EXPECT_EQ(to_string(chosen(other)), "decode_parts, 128 blocks, row by row, clusters of 16");
  other.context = 8193;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode);
  other = c;
  other.mode = Mode::verify_tree;
  other.draft_tokens = 1;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode);
}

// Each tile of eight (query, head) pairs has clusters of its own, as many as there may be.
TEST(GpuChoice, FewQueriesOfFewSequencesAreAClusters) {
  const auto bounded = [](int32_t sequences, int32_t rows, int32_t context) {
    Case c = extend_of(case_of(Dtype::bf16, 9, 3, 64));
    c.extend = {rows, 1};
    c.captured = sequences;
    c.sequence_rows = rows;
    c.context = context;
    return c;
  };
  EXPECT_EQ(to_string(chosen(bounded(2, 2, 1024))), "decode_cluster, 24 blocks, row by row, clusters of 4");
  EXPECT_EQ(to_string(chosen(bounded(2, 7, 4096))),
            "decode_cluster, 144 blocks, row by row, clusters of 8, 3 tiles of rows");
  EXPECT_EQ(to_string(chosen(bounded(8, 7, 1024))),
            "decode_cluster, 144 blocks, row by row, clusters of 2, 3 tiles of rows");
  EXPECT_EQ(kernel_for(bounded(8, 7, 1025)), GpuKernel::decode) << "more than two rounds";
  EXPECT_EQ(kernel_for(bounded(16, 7, 1024)), GpuKernel::decode) << "more than two blocks a multiprocessor";
  Case c = bounded(2, 7, 4096);
  c.sequence_rows = 0;
  EXPECT_NE(kernel_for(c), GpuKernel::decode_cluster) << "there may be many";
  c = bounded(2, 7, 4096);
  c.deterministic = true;
  EXPECT_EQ(kernel_for(c), GpuKernel::decode);
  c = case_of(Dtype::bf16, 32, 8, 128);
  c.mode = Mode::verify;
  c.draft_tokens = 2;
  c.lengths = {40};
  EXPECT_EQ(to_string(chosen(c)), "decode_cluster, 32 blocks, row by row, clusters of 4");
}

// Each has clusters of its own, which are the smaller the more there are.
TEST(GpuChoice, OneQueryOfEachOfFewSequencesIsAClusters) {
  const auto few = [](int32_t sequences, int32_t heads, int32_t kv_heads, int32_t dim, int32_t context) {
    Case c = case_of(Dtype::bf16, heads, kv_heads, dim);
    c.captured = sequences;
    c.context = context;
    return c;
  };
  EXPECT_EQ(to_string(chosen(few(8, 9, 3, 64, 1024))), "decode_cluster, 96 blocks, row by row, clusters of 4");
  EXPECT_EQ(chosen(few(2, 9, 3, 64, 8192)).cluster, 16);
  EXPECT_EQ(chosen(few(8, 9, 3, 64, 4096)).cluster, 8) << "in two rounds";
  EXPECT_EQ(kernel_for(few(8, 9, 3, 64, 4097)), GpuKernel::decode) << "one may be much longer than the others";
  EXPECT_EQ(chosen(few(32, 9, 3, 64, 1024)).blocks, 192);
  EXPECT_EQ(kernel_for(few(32, 9, 3, 64, 1025)), GpuKernel::decode);
  EXPECT_EQ(chosen(few(44, 9, 3, 64, 1024)).blocks, 264) << "two blocks a multiprocessor";
  EXPECT_EQ(kernel_for(few(45, 9, 3, 64, 1024)), GpuKernel::decode_many);
  EXPECT_EQ(chosen(few(2, 32, 8, 128, 8192)).blocks, 256);
  EXPECT_EQ(chosen(few(8, 32, 8, 128, 2048)).blocks, 256);
  EXPECT_EQ(kernel_for(few(8, 32, 8, 128, 2049)), GpuKernel::decode);
  EXPECT_EQ(chosen(few(16, 32, 8, 128, 1024)).blocks, 256);
  EXPECT_EQ(kernel_for(few(17, 32, 8, 128, 1024)), GpuKernel::decode);
  const auto more_rows = [](AttendArgs& args) { args.q.rows = 8; };
  EXPECT_EQ(chosen(few(4, 9, 3, 64, 512), kH200, more_rows).kernel, GpuKernel::decode)
      << "rows that are nobody's, beyond the arena's lengths";
}

// What a step's shape says of its lengths counts, not what the limits allow.
TEST(GpuChoice, ShortSequencesOfALongContext) {
  const auto of_context = [](int32_t context, AttendArgs& args) {
    args.keys.most_keys = context;
    return to_string(choose_gpu(args, kH200));
  };
  const auto args_of = [](int32_t sequences, int32_t heads, int32_t kv_heads, int32_t dim, const auto& use) {
    Case c = case_of(Dtype::bf16, heads, kv_heads, dim);
    c.lengths = {7};
    c.captured = sequences;
    c.context = 131072;
    chosen(c, kH200, use);
  };
  args_of(1, 32, 8, 128, [&](AttendArgs& args) {
    EXPECT_EQ(args.keys.most_keys, 131072);
    EXPECT_EQ(choose_gpu(args, kH200).kernel, GpuKernel::decode);
    EXPECT_EQ(of_context(1024, args), "decode_cluster, 32 blocks, row by row, clusters of 4");
  });
  args_of(64, 9, 3, 64, [&](AttendArgs& args) {
    EXPECT_EQ(choose_gpu(args, kH200).kernel, GpuKernel::decode);
    EXPECT_EQ(of_context(8192, args), "decode_many, 132 blocks, row by row, teams of 8");
  });
}

// Contexts below which a step of so many sequences is another choice's.
TEST(GpuChoice, ContextsThatAreWorthAGraph) {
  using Contexts = std::vector<int32_t>;
  const auto contexts_of = [](int32_t sequences, int32_t dim, int32_t context, const GpuDevice& device = kH200) {
    Case c = dim == 64 ? case_of(Dtype::bf16, 9, 3, 64) : case_of(Dtype::bf16, 32, 8, 128);
    c.lengths = {7};
    c.captured = sequences;
    c.context = context;
    Contexts contexts;
    chosen(c, kH200, [&](AttendArgs& args) { contexts = decode_contexts(args, device); });
    return contexts;
  };
  EXPECT_EQ(contexts_of(1, 128, 131072), (Contexts{1024, 2048, 8192, 131072}));
  EXPECT_EQ(contexts_of(1, 128, 8192), (Contexts{1024, 2048, 8192}));
  EXPECT_EQ(contexts_of(1, 128, 2000), (Contexts{1024, 2000}));
  EXPECT_EQ(contexts_of(1, 128, 1000), (Contexts{1000}));
  EXPECT_EQ(contexts_of(8, 128, 131072), (Contexts{2048, 131072}));
  EXPECT_EQ(contexts_of(64, 128, 131072), (Contexts{2048, 131072}));
  EXPECT_EQ(contexts_of(17, 128, 131072), (Contexts{131072})) << "nothing is different: one graph";
  EXPECT_EQ(contexts_of(8, 64, 8192), (Contexts{1024, 4096, 8192}));
  EXPECT_EQ(contexts_of(32, 64, 8192), (Contexts{1024, 8192}));
  EXPECT_EQ(contexts_of(64, 64, 8192), (Contexts{8192}));
  EXPECT_EQ(contexts_of(64, 64, 131072), (Contexts{8192, 131072}));
  EXPECT_EQ(contexts_of(1, 128, 131072, kA100), (Contexts{131072}));
}

// Heads of 64 in 16 bits, as many sequences as fill the multiprocessors; the more there are, the fewer warps for each.
TEST(GpuChoice, OneQueryOfEachOfManySequencesIsATeams) {
  const auto many = [](int32_t sequences, int32_t heads = 9, int32_t kv_heads = 3) {
    Case c = case_of(Dtype::bf16, heads, kv_heads, 64);
    c.captured = sequences;
    c.context = 8192;
    return c;
  };
  EXPECT_EQ(to_string(chosen(many(64))), "decode_many, 132 blocks, row by row, teams of 8");
  EXPECT_EQ(chosen(many(44)).team, 16);
  EXPECT_EQ(chosen(many(128)).team, 4);
  EXPECT_EQ(chosen(many(256)).team, 2);
  EXPECT_EQ(chosen(many(500)).team, 1);
  for (const GpuDevice& device : {kA100, kL40})
    EXPECT_EQ(kernel_for(many(64), device), GpuKernel::decode) << "its stages have no room";
  EXPECT_EQ(kernel_for(many(43)), GpuKernel::decode) << "fewer pairs than multiprocessors";
  EXPECT_EQ(kernel_for(many(64, 9, 1)), GpuKernel::decode) << "nine rows are more than a tile";
  Case other = many(64);
  other.context = 8193;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode) << "one may be much longer than the others";
  other = many(64);
  other.window = 100;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode);
  other = many(64);
  other.deterministic = true;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode);
  other = many(64);
  other.query_type = other.kv_type = Dtype::f16;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode_many);
  other.kv_type = Dtype::f8e4m3;
  EXPECT_EQ(kernel_for(other), GpuKernel::decode);
}

// Heads of 128 have half as many warps, and stream-K where some blocks would have nothing to do.
TEST(GpuChoice, TeamsOfLongHeads) {
  const auto many = [](int32_t sequences, int32_t context = 2048) {
    Case c = case_of(Dtype::bf16, 32, 8, 128);
    c.captured = sequences;
    c.context = context;
    return c;
  };
  EXPECT_EQ(to_string(chosen(many(64))), "decode_many, 132 blocks, row by row, teams of 2");
  EXPECT_EQ(chosen(many(32)).team, 4);
  EXPECT_EQ(chosen(many(256)).team, 1);
  EXPECT_EQ(kernel_for(many(17)), GpuKernel::decode) << "two pairs for each of 68 blocks";
  EXPECT_EQ(kernel_for(many(40)), GpuKernel::decode) << "three for each of 107";
  EXPECT_EQ(kernel_for(many(72)), GpuKernel::decode_many) << "five for each of 116";
  EXPECT_EQ(kernel_for(many(64, 2049)), GpuKernel::decode) << "one may be much longer than the others";
}

TEST(GpuChoice, ManyQueriesOf16BitsArePrefills) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (const int32_t dim : {64, 96, 128, 256})
      EXPECT_EQ(kernel_for(extend_of(case_of(type, 6, 3, dim))), GpuKernel::prefill) << dim;
    EXPECT_EQ(kernel_for(extend_of(case_of(type, 6, 3, 192, 128))), GpuKernel::prefill);
    EXPECT_EQ(kernel_for(case_of(type, 6, 3, 256)), GpuKernel::prefill) << "also few, where decode has no such dim";
  }
}

TEST(GpuChoice, ManyQueriesOver8BitsArePrefills) {
  for (const Dtype query_type : {Dtype::bf16, Dtype::f16})
    for (const int32_t dim : {64, 96, 128, 256})
      for (const int32_t page_size : {1, 16, 128}) {
        Case c = extend_of(case_of(Dtype::f8e4m3, 6, 3, dim));
        c.query_type = query_type;
        c.page_size = page_size;
        EXPECT_EQ(to_string(chosen(c)), "prefill, 132 blocks, row by row") << dim;
      }
  Case wide = extend_of(case_of(Dtype::f8e4m3, 6, 3, 128));
  wide.query_type = Dtype::f32;
  EXPECT_EQ(kernel_for(wide), GpuKernel::general);
  EXPECT_EQ(to_string(chosen(extend_of(case_of(Dtype::f8e4m3, 6, 3, 192, 128)))), "prefill, 132 blocks, row by row");
  EXPECT_EQ(kernel_for(case_of(Dtype::f8e4m3, 6, 3, 192, 128)), GpuKernel::prefill);
}

TEST(GpuChoice, ManyQueriesThatPrefillDoesNotTakeAreDecodes) {
  for (const Dtype type : {Dtype::bf16, Dtype::f8e4m3})
    EXPECT_EQ(kernel_for(extend_of(case_of(type, 6, 3, 128)), kA100), GpuKernel::decode);
  Case tree = case_of(Dtype::bf16, 32, 8, 128);
  tree.mode = Mode::verify_tree;
  tree.draft_tokens = 64;
  EXPECT_EQ(kernel_for(tree), GpuKernel::decode) << "256 rows";
}

TEST(GpuChoice, AnyQueriesOverLatentKeysAreLatents) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) {
    SCOPED_TRACE(quire::to_string(type));
    EXPECT_EQ(kernel_for(latent_of(type, 16)), GpuKernel::latent);
    EXPECT_EQ(kernel_for(extend_of(latent_of(type, 16))), GpuKernel::latent);
    Case tree = latent_of(type, 16);
    tree.mode = Mode::verify_tree;
    for (const int32_t nodes : {1, 4, 64, 70}) {
      tree.draft_tokens = nodes;
      EXPECT_EQ(kernel_for(tree), GpuKernel::latent) << nodes;
    }
  }
  Case wide = latent_of(Dtype::f8e4m3, 16);
  wide.query_type = Dtype::f32;
  EXPECT_EQ(kernel_for(wide), GpuKernel::general);
  EXPECT_EQ(kernel_for(latent_of(Dtype::bf16, 16), kA100), GpuKernel::general);
  EXPECT_EQ(kernel_for(case_of(Dtype::bf16, 4, 1, 576, 512)), GpuKernel::general) << "values of their own";
}

// What extends of so many new tokens take, where the longest sequence may have so many keys.
std::vector<GpuChoice> choices_of_extends(Case c, int32_t context, const std::vector<int64_t>& new_tokens) {
  c.mode = Mode::extend;
  c.lengths = c.extend = {1};
  c.context = context;
  Exec exec({.threads = 1});
  World world(c.world());
  world.lay_out(c.step(), exec);
  AttendArgs args = world.args();
  std::vector<GpuChoice> choices;
  for (const int64_t tokens : new_tokens) {
    args.q.rows = args.out.rows = tokens;
    choices.push_back(choose_gpu(args, kH200));
  }
  return choices;
}

// From one new token to 512, behind nothing and behind 128K keys: nothing of it is scalar, and where keys may be many
// they are split as the step's lengths say.
TEST(GpuChoice, EveryExtendIsInTensorCores) {
  const std::vector<int64_t> new_tokens = {1, 2, 16, 128, 512};
  for (const int32_t context : {512, 2048, 8192, 131072})
    for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) {
      SCOPED_TRACE(cat(context, " keys, ", quire::to_string(type)));
      for (const auto& [key_dim, value_dim] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}}) {
        const auto choices = choices_of_extends(case_of(type, 32, 8, key_dim, value_dim), context, new_tokens);
        const bool has_decode = key_dim == 64 || key_dim == 128;
        for (size_t i = 0; i < choices.size(); ++i) {
          const bool is_few = has_decode && context > 2048 && new_tokens[i] <= 16;  // 64 rows of a kv head
          EXPECT_EQ(choices[i].kernel, is_few ? GpuKernel::decode : GpuKernel::prefill) << key_dim;
          EXPECT_EQ(choices[i].splits_keys, !is_few && context > 2048) << key_dim;
        }
      }
      for (const int32_t heads : {16, 128}) {
        for (const GpuChoice& choice : choices_of_extends(latent_of(type, heads), context, new_tokens)) {
          EXPECT_EQ(choice.kernel, GpuKernel::latent);
          EXPECT_TRUE(choice.splits_keys);
          EXPECT_EQ(choice.blocks, 132);
        }
      }
    }
}

// Prompts have tiles enough.
TEST(GpuChoice, ManyTilesAreNotSplit) {
  const auto choices = choices_of_extends(case_of(Dtype::bf16, 32, 8, 128), 32768, {2048, 16384});
  EXPECT_TRUE(choices[0].splits_keys);
  EXPECT_FALSE(choices[1].splits_keys);
  Case local = case_of(Dtype::bf16, 4, 2, 64);
  local.kind = LayerKind::local;
  local.chunk = 16;
  local.context = 32768;
  EXPECT_FALSE(chosen(local).splits_keys);
}

// Behind the keys in pages, where decode has no kernel for them; row by row.
TEST(GpuChoice, TreesOfOtherDimsArePrefills) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
    for (const auto& [key_dim, value_dim] : {std::pair{96, 96}, {192, 128}, {256, 256}}) {
      Case tree = case_of(type, 6, 3, key_dim, value_dim);
      tree.page_size = 64;
      tree.mode = Mode::verify_tree;
      tree.draft_tokens = 9;
      EXPECT_EQ(to_string(chosen(tree)), "prefill, 132 blocks, row by row, keys split") << key_dim;
      EXPECT_EQ(kernel_for(tree, kA100), GpuKernel::general);
      tree.mode = Mode::draft_tree;
      tree.topk = 3;
      tree.draft_steps = 4;
      EXPECT_EQ(kernel_for(tree), GpuKernel::prefill) << key_dim;
    }
}

// Trees of any size, cross attention and windows, as far as dims go.
TEST(GpuChoice, TreesAndOtherKeysAreInTensorCores) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
    for (const int32_t dim : {64, 128}) {
      SCOPED_TRACE(cat(quire::to_string(type), " ", dim));
      Case tree = case_of(type, 32, 8, dim);
      tree.mode = Mode::verify_tree;
      for (const int32_t nodes : {8, 16, 17, 64}) {  // to 256 rows of a kv head
        tree.draft_tokens = nodes;
        EXPECT_EQ(kernel_for(tree), GpuKernel::decode) << nodes;
      }
      const GpuKernel of_one_query = type == Dtype::f8e4m3 ? GpuKernel::decode : GpuKernel::decode_cluster;
      Case cross = case_of(type, 32, 8, dim);
      cross.kind = LayerKind::encoder;
      cross.encoder = {1500, 40};
      EXPECT_EQ(kernel_for(cross), of_one_query);
      EXPECT_EQ(kernel_for(extend_of(cross)), GpuKernel::prefill);
      Case windowed = case_of(type, 32, 8, dim);
      windowed.kind = LayerKind::window;
      windowed.window_pool = true;
      windowed.window = 10;
      EXPECT_EQ(kernel_for(windowed), of_one_query);
      EXPECT_EQ(kernel_for(extend_of(windowed)), GpuKernel::prefill);
    }
}

TEST(GpuChoice, WhatNoOtherTakesIsGeneral) {
  EXPECT_EQ(kernel_for(case_of(Dtype::f32, 4, 2, 128)), GpuKernel::general);
  EXPECT_EQ(kernel_for(case_of(Dtype::bf16, 4, 2, 80)), GpuKernel::general);
  EXPECT_EQ(kernel_for(case_of(Dtype::bf16, 130, 2, 128)), GpuKernel::prefill) << "65 rows are too many for a decode";
  Case tree = case_of(Dtype::bf16, 6, 3, 80);
  tree.mode = Mode::verify_tree;
  tree.draft_tokens = 4;
  EXPECT_EQ(kernel_for(tree), GpuKernel::general);
  tree.key_dim = 128;
  EXPECT_EQ(kernel_for(tree), GpuKernel::decode);
  Case local = case_of(Dtype::bf16, 4, 2, 64);
  local.kind = LayerKind::local;
  local.chunk = 16;
  EXPECT_EQ(kernel_for(local), GpuKernel::prefill);
  EXPECT_EQ(kernel_for(local, kA100), GpuKernel::general);
}

// In all modes and for all numbers of queries the same.
TEST(GpuChoice, TheOneReductionHasOneKernel) {
  for (const Dtype type : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) {
    Case c = case_of(type, 32, 8, 128);
    c.deterministic = true;
    Case tree = c;
    tree.mode = Mode::verify_tree;
    tree.draft_tokens = 40;
    for (const Case& same : {c, extend_of(c), tree}) {
      const GpuChoice choice = chosen(same);
      EXPECT_EQ(choice.kernel, GpuKernel::decode) << quire::to_string(type);
      EXPECT_TRUE(choice.is_fixed);
      EXPECT_EQ(choice.team, 1);
    }
  }
  Case f32 = case_of(Dtype::f32, 4, 2, 128), wide = case_of(Dtype::bf16, 4, 2, 256),
       latent = latent_of(Dtype::bf16, 16);
  for (Case* c : {&f32, &wide, &latent}) {
    c->deterministic = true;
    EXPECT_EQ(kernel_for(*c), GpuKernel::general);
    EXPECT_EQ(kernel_for(extend_of(*c)), GpuKernel::general);
  }
}

TEST(GpuChoice, RowsThatBeginAnywhereAreGeneral) {
  const Case decode = case_of(Dtype::bf16, 4, 2, 128);
  const Case narrow = extend_of(case_of(Dtype::f8e4m3, 4, 2, 128));
  for (const Case& c : {decode, extend_of(decode), narrow, latent_of(Dtype::bf16, 16), latent_of(Dtype::f8e4m3, 16)})
    EXPECT_EQ(chosen(c, kH200, [](AttendArgs& args) { args.kv.keys += 2; }).kernel, GpuKernel::general);
  for (const Case& c : {narrow, latent_of(Dtype::f8e4m3, 16)})
    EXPECT_EQ(chosen(c, kH200, [](AttendArgs& args) { args.kv.key_stride += 8; }).kernel, GpuKernel::general);
}

TEST(GpuChoice, SaysHowItIsLaunched) {
  Case c = of_long_context(case_of(Dtype::bf16, 32, 8, 128));
  EXPECT_EQ(to_string(chosen(c)), "decode, 128 blocks, row by row, 8 rows a warp, teams of 1, 3 stages");
  c.deterministic = true;
  EXPECT_EQ(to_string(chosen(c)), "decode, 128 blocks, row by row, 8 rows a warp, teams of 1, 3 stages, fixed parts");
  c.deterministic = false;
  c.kv_type = Dtype::f8e4m3;
  c.heads = 64 * 8;
  EXPECT_EQ(to_string(chosen(c)), "decode, 128 blocks, row by row, 16 rows a warp, teams of 4, 6 stages");
  c = extend_of(case_of(Dtype::bf16, 4, 2, 256));
  for (const auto& [page_size, loads] : {std::pair{1, "row by row"}, {16, "row by row"}, {32, "boxes of 32 slots"}}) {
    c.page_size = page_size;
    EXPECT_EQ(to_string(chosen(c)), cat("prefill, 132 blocks, ", loads));
  }
  c.page_size = 128;
  EXPECT_EQ(to_string(chosen(c)), "prefill, 132 blocks, boxes of 64 slots");
  c.key_dim = 128;
  EXPECT_EQ(to_string(chosen(c)), "prefill, 132 blocks, boxes of 128 slots");
  c = latent_of(Dtype::bf16, 128);
  for (const auto& [page_size, loads] : {std::pair{1, "row by row"}, {32, "row by row"}, {64, "boxes of 64 slots"}}) {
    c.page_size = page_size;
    EXPECT_EQ(to_string(chosen(c)), cat("latent, 132 blocks, ", loads, ", keys split, 2 blocks of rows, in pairs"));
  }
  for (const auto& [type, mode] : {std::pair{Dtype::f8e4m3, Mode::decode}, {Dtype::bf16, Mode::draft_tree}}) {
    Case by_rows = c;
    by_rows.kv_type = type;
    by_rows.mode = mode;
    by_rows.draft_steps = 4;
    EXPECT_EQ(to_string(chosen(by_rows)), "latent, 132 blocks, row by row, keys split, 2 blocks of rows, in pairs");
  }
  c.heads = 16;
  EXPECT_EQ(to_string(chosen(c)), "latent, 132 blocks, boxes of 64 slots, keys split, 1 blocks of rows");
  EXPECT_EQ(to_string(chosen(extend_of(c))),
            "latent, 132 blocks, boxes of 64 slots, keys split, tiles dealt, 2 blocks of rows, in pairs");
  c.mode = Mode::verify;
  c.draft_tokens = 65;
  EXPECT_EQ(to_string(chosen(c)),
            "latent, 132 blocks, boxes of 64 slots, keys split, tiles dealt, 2 blocks of rows, in pairs");
  c = extend_of(latent_of(Dtype::bf16, 16));
  c.kind = LayerKind::local;
  c.chunk = 16;
  EXPECT_EQ(to_string(chosen(c)), "latent, 132 blocks, row by row, tiles dealt, 2 blocks of rows, in pairs");
  EXPECT_EQ(to_string(chosen(case_of(Dtype::f32, 4, 2, 16))), "general");
}

// Lines of all sequences lie beside the stages.
TEST(GpuChoice, ManySequencesLeaveRoomForFewerStages) {
  const auto with_batch = [](int32_t batch) {
    Case c = case_of(Dtype::bf16, 8, 8, 64);
    c.captured = batch;
    c.window = 100;  // else the many are teams'
    return chosen(c);
  };
  EXPECT_EQ(with_batch(1000).stages, 6);
  EXPECT_EQ(with_batch(2000).stages, 2);
  EXPECT_EQ(with_batch(8000).kernel, GpuKernel::prefill);
}

// Its code has the address of its shared memory built in.
TEST(GpuChoice, PrefillAndLatentAreNotForADeviceWhoseSharedMemoryBeginsElsewhere) {
  GpuDevice other = kH200;
  for (const int32_t reserved : {0, 2048}) {
    other.reserved_shared = reserved;
    EXPECT_EQ(kernel_for(extend_of(case_of(Dtype::bf16, 4, 2, 128)), other), GpuKernel::decode);
    EXPECT_EQ(kernel_for(latent_of(Dtype::bf16, 16), other), GpuKernel::general);
  }
}

TEST(GpuChoice, RefusesWhatDoesNotFitIntoSharedMemory) {
  EXPECT_EQ(kernel_for(latent_of(Dtype::bf16, 16), kA100), GpuKernel::general);
  expect_refused(
      [&] { chosen(latent_of(Dtype::bf16, 16), kL40); },
      "no kernel for attention of bf16 queries over bf16 keys and values, 16 heads, 1 kv heads, key dim 576, "
      "value dim 512 on a GPU of compute capability 8.9 with 142 multiprocessors, 101376 bytes of shared "
      "memory a block and 1024 reserved: the general one needs 113088 bytes of shared memory");
  expect_refused([&] { chosen(case_of(Dtype::bf16, 4, 1, 576, 512), kA100); }, "the general one needs 178624 bytes");
  for (const GpuDevice& device : {kA100, kL40, kH200})
    EXPECT_EQ(kernel_for(case_of(Dtype::f32, 4, 2, 256), device), GpuKernel::general);
}

TEST(GpuChoice, LaunchesAreCountedByKernel) {
  const int64_t prefills = launches_of(GpuKernel::prefill), decodes = launches_of(GpuKernel::decode);
  count_launch(GpuKernel::prefill);
  EXPECT_EQ(launches_of(GpuKernel::prefill), prefills + 1);
  EXPECT_EQ(launches_of(GpuKernel::decode), decodes);
}

}  // namespace
}  // namespace quire::attn::testing
