// The compositions are what blocks.h says, whichever norms and scales a spec has, and who computes a block is printed.
#include "model/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cuda.h"
#include "model/blocks_composed.h"
#include "model/blocks_cuda.h"
#include "model/rope_store.h"
#include "ops/matmul_testing.h"
#include "ops/packed_rows.h"
#include "ops/rms_norm.h"
#include "ops/testing_rows.h"

namespace quire::model {
namespace {

using ops::PackedMatrix;
using ops::WeightView;
using ops::testing::random_floats;
using ops::testing::team;
using ops::testing::Weights;

constexpr int64_t kWidth = 64, kInputs = 96;
constexpr int32_t kRows = 5;
constexpr float kEps = 1e-5f;

LayerSpec some_spec() {
  LayerSpec spec{};
  spec.attention = {.heads = 4, .kv_heads = 2, .key_dim = 16, .value_dim = 16, .scale = 0.25f};
  spec.feed_forward.width = kInputs;
  return spec;
}

TEST(ChooseBlocks, PrintsWhoComputesEachBlock) {
  constexpr const char* kComposed =
      "qkv composed | attention attend | attention_out composed | gate_up composed | down composed | head composed";
  for (const int64_t rows : {1, 16, 512})
    EXPECT_EQ(to_string(choose_blocks(some_spec(), Device::cpu, rows)), kComposed);
}

TEST(ChooseBlocks, ASpecThatNoKernelKnowsIsComposed) {
  LayerSpec odd = some_spec();
  odd.norm_before = false;
  odd.norm_after = true;
  odd.residual_scale = 0.22f;
  odd.attention.qk_norm = QkNorm::whole_row;
  for (const Device device : {Device::cpu, Device::cuda}) {
    const BlockChoice choice = choose_blocks(odd, device, 1);
    EXPECT_STREQ(choice.qkv.name, "composed");
    EXPECT_STREQ(choice.down.name, "composed");
    EXPECT_NE(choice.gate_up.run, nullptr);
  }
}

TEST(ChooseBlocks, AGpuFusesWhatReadsBf16Alone) {
  const auto chosen = [](Device device, ops::Forms forms) {
    return to_string(choose_blocks(some_spec(), device, 1, forms));
  };
  EXPECT_EQ(chosen(Device::cuda, {.bf16 = true}),
            "qkv fused | attention attend | attention_out fused | gate_up fused | down fused | head composed");
  const auto with_room_for_8 = [](int64_t rows, const LayerSpec& spec) {
    return to_string(choose_blocks(spec, Device::cuda, rows, {.bf16 = true}, 8));
  };
  EXPECT_EQ(
      with_room_for_8(8, some_spec()),
      "qkv streamed | attention attend | attention_out streamed | gate_up streamed | down streamed | head composed");
  EXPECT_EQ(with_room_for_8(9, some_spec()), chosen(Device::cuda, {.bf16 = true}));
  LayerSpec normed_after = some_spec();
  normed_after.norm_after = true;
  EXPECT_EQ(with_room_for_8(1, normed_after), chosen(Device::cuda, {.bf16 = true}));
  const std::string composed = chosen(Device::cpu, {.bf16 = true});
  EXPECT_EQ(chosen(Device::cuda, {.bf16 = true, .q8 = true}), composed);
  EXPECT_EQ(chosen(Device::cuda, {}), composed);
}

// Rows that pass a block, and the operations' scratch.
struct World {
  BlockRows rows(bool precise) {
    return {.x = {x.data(), kRows, kWidth, kWidth},
            .live_rows = &live,
            .precise = precise,
            .norm_eps = kEps,
            .activations = &activations,
            .result = result.data()};
  }
  Rows<float> input() { return {in.data(), kRows, kInputs, kInputs}; }

  int32_t live = kRows;
  std::vector<float> x = random_floats(kRows * kWidth, 1), in = random_floats(kRows * kInputs, 2);
  std::vector<float> result = std::vector<float>(kRows * kWidth);
  ops::ActivationBuffer activations{kRows, kInputs};
};

Vector random_vector(int64_t size, uint64_t seed) { return {random_floats(size, seed), team()}; }

PackedMatrix packed(const Weights& weights) {
  return PackedMatrix(std::vector{weights.view()}, PackedMatrix::Join::stack, team());
}

std::vector<double> product(const Weights& weights, const float* in) {
  const std::vector<float> w = weights.values();
  std::vector<double> out(static_cast<size_t>(weights.outputs));
  for (int64_t c = 0; c < weights.outputs; ++c)
    for (int64_t k = 0; k < weights.inputs; ++k) out[c] += double{in[k]} * w[c * weights.inputs + k];
  return out;
}

std::vector<double> normed(std::vector<double> x, const Vector& weight) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (size_t i = 0; i < x.size(); ++i)
    x[i] *= weight.data()[i] / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
  return x;
}

void run_residual(const LayerSpec& spec, const PackedMatrix& weights, const Vector& norm_after, bool precise,
                  World& world) {
  choose_blocks(spec, Device::cpu, kRows)
      .attention_out.run({.spec = &spec,
                          .weights = &weights,
                          .norm_after = &norm_after,
                          .rows = world.rows(precise),
                          .in = world.input()},
                         team());
}

TEST(ResidualBlock, AddsTheScaledNormOfTheProduct) {
  const Weights weights(BlockType::f32, kWidth, kInputs, 3);
  const PackedMatrix matrix = packed(weights);
  const Vector norm = random_vector(kWidth, 4), none;
  for (const bool after : {false, true})
    for (const float scale : {1.0f, 0.22f}) {
      World world;
      const std::vector<float> before = world.x;
      LayerSpec spec = some_spec();
      spec.norm_after = after;
      spec.residual_scale = scale;
      run_residual(spec, matrix, after ? norm : none, false, world);
      for (int64_t row = 0; row < kRows; ++row) {
        std::vector<double> expected = product(weights, world.in.data() + row * kInputs);
        if (after) expected = normed(expected, norm);
        for (int64_t i = 0; i < kWidth; ++i)
          EXPECT_NEAR(world.x[row * kWidth + i], before[row * kWidth + i] + scale * expected[i], 1e-4)
              << row << ", " << i;
      }
    }
}

// What the wanted rows pass past the last layer's attention, to the bit: both halves' products, added, then the sum.
TEST(ResidualBlock, PreciseRowsAreTwoReadingsAddedBeforeTheResidual) {
  const Weights weights(BlockType::q8_0, kWidth, kInputs, 3);
  const PackedMatrix matrix = packed(weights);
  World world;
  const std::vector<float> before = world.x;
  ops::ActivationRows halves = world.activations.view(kInputs, {.q8x2 = true});
  ops::ref::quantise({.in = world.input(), .out = halves, .live_rows = &world.live}, team());
  halves.forms = {.q8 = true};
  halves.rows = 2 * kRows;
  std::vector<float> both(2 * kRows * kWidth);
  const int32_t twice = 2 * kRows;
  ops::ref::matmul({.weights = &matrix, .in = halves, .out = {both.data(), twice, kWidth, kWidth}, .live_rows = &twice},
                   team());
  run_residual(some_spec(), matrix, {}, true, world);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t i = 0; i < kWidth; ++i) {
      const float sum = both[2 * row * kWidth + i] + both[(2 * row + 1) * kWidth + i];
      EXPECT_EQ(world.x[row * kWidth + i], before[row * kWidth + i] + sum) << row << ", " << i;
    }
}

// With a norm after the product, both readings are added before it, not after.
TEST(ResidualBlock, PreciseRowsAreAddedBeforeTheNormOfTheProduct) {
  const Weights weights(BlockType::q8_0, kWidth, kInputs, 3);
  const PackedMatrix matrix = packed(weights);
  const Vector norm = random_vector(kWidth, 4);
  LayerSpec spec = some_spec();
  spec.norm_after = true;
  spec.residual_scale = 0.22f;
  World plain, world;
  const std::vector<float> before = plain.x;
  plain.x.assign(plain.x.size(), 0);
  run_residual(some_spec(), matrix, {}, true, plain);  // the products alone
  run_residual(spec, matrix, norm, true, world);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto first = plain.x.begin() + row * kWidth;
    const std::vector<double> expected = normed({first, first + kWidth}, norm);
    for (int64_t i = 0; i < kWidth; ++i) {
      const int64_t at = row * kWidth + i;
      EXPECT_NEAR(world.x[at], before[at] + spec.residual_scale * expected[i], 1e-5) << row << ", " << i;
    }
  }
}

TEST(HeadBlock, ScalesTheLogitsOfQuantisedWeightsAndNotTheNormedRows) {
  constexpr int64_t kVocabulary = 48;
  constexpr float kScale = 0.3f;
  const Weights weights(BlockType::q8_0, kVocabulary, kWidth, 8);
  const PackedMatrix matrix = packed(weights);
  const Vector norm = random_vector(kWidth, 9);
  struct Outputs {
    std::vector<float> normed = std::vector<float>(kRows * kWidth);
    std::vector<float> logits = std::vector<float>(kRows * kVocabulary, -1);
  };
  const int32_t logits_rows = kRows - 1;
  std::vector<float> rest(kRows * kVocabulary), largest(kRows);
  std::vector<uint8_t> marks(kRows * ops::logit_groups(kVocabulary));
  const std::vector<float> reach(kRows, ops::kUsualReach);
  const ops::LogitsScratch scratch{{rest.data(), kRows, kVocabulary, kVocabulary}, marks.data(), largest.data()};
  const auto run = [&](float scale, bool precise) {
    World world;
    Outputs out;
    choose_blocks(some_spec(), Device::cpu, kRows)
        .head.run({.weights = &matrix,
                   .norm = &norm,
                   .rows = world.rows(precise),
                   .normed = {out.normed.data(), kRows, kWidth, kWidth},
                   .logits = {out.logits.data(), kRows, kVocabulary, kVocabulary},
                   .logits_rows = &logits_rows,
                   .logits_scale = scale,
                   .logit_reach = reach.data(),
                   .scratch = scratch},
                  team());
    return out;
  };
  for (const bool precise : {false, true}) {
    const Outputs plain = run(1, precise);
    Outputs scaled = run(kScale, precise);
    EXPECT_EQ(scaled.normed, plain.normed);
    const ops::ActivationBuffer buffer(kRows, kWidth);
    const ops::ActivationRows in = buffer.view(kWidth, precise ? ops::Forms{.q8x2 = true} : ops::Forms{.q8 = true});
    ops::quantise({.in = {scaled.normed.data(), kRows, kWidth, kWidth}, .out = in, .live_rows = &logits_rows}, team());
    std::vector<float> expected(kRows * kVocabulary);
    ops::logits({.weights = &matrix,
                 .in = in,
                 .out = {expected.data(), kRows, kVocabulary, kVocabulary},
                 .scale = kScale,
                 .reach = reach.data(),
                 .scratch = scratch,
                 .live_rows = &logits_rows},
                team());
    for (int64_t i = 0; i < logits_rows * kVocabulary; ++i) {
      EXPECT_EQ(scaled.logits[i], expected[i]) << precise << ", " << i;
      if (!precise) {
        EXPECT_FLOAT_EQ(scaled.logits[i], plain.logits[i] * kScale) << i;
      }
    }
    for (int64_t i = logits_rows * kVocabulary; i < kRows * kVocabulary; ++i)
      EXPECT_EQ(scaled.logits[i], -1) << "nobody wants the logits of the last row";
  }
}

// A row as quantised weights read it (ops/activations.h).
std::vector<float> as_q8(std::vector<float> x) {
  for (auto block = x.begin(); block != x.end(); block += 32) {
    float largest = 0;
    for (auto value = block; value != block + 32; ++value) largest = std::max(largest, std::abs(*value));
    for (auto value = block; value != block + 32; ++value)
      *value = std::nearbyint(*value * (127 / largest)) * (largest / 127);
  }
  return x;
}

// Where one of the two is dense and the other quantised, rows are read in both forms; also precise ones, as the last
// layer's are.
TEST(GateUpBlock, ReadsTheStreamNormedOrNotInTheFormsOfBothWeights) {
  constexpr BlockType kTypes[][2] = {
      {BlockType::f32, BlockType::f32}, {BlockType::f32, BlockType::q8_0}, {BlockType::q8_0, BlockType::f32}};
  for (const auto& [gate_type, up_type] : kTypes)
    for (const bool precise : {false, true})
      for (const bool before : {false, true}) {
        SCOPED_TRACE(cat("gate ", to_string(gate_type), ", up ", to_string(up_type), precise ? ", precise" : "",
                         before ? ", normed" : ""));
        const Weights gate(gate_type, kInputs, kWidth, 5), up(up_type, kInputs, kWidth, 6);
        LayerWeights weights;
        weights.gate_and_up =
            PackedMatrix(std::vector{gate.view(), up.view()}, PackedMatrix::Join::gate_and_up, team());
        if (before) weights.ffn_norm = random_vector(kWidth, 7);
        World world;
        choose_blocks(some_spec(), Device::cpu, kRows)
            .gate_up.run({.weights = &weights, .rows = world.rows(precise), .out = world.input()}, team());
        for (int64_t row = 0; row < kRows; ++row) {
          std::vector<double> x(world.x.begin() + row * kWidth, world.x.begin() + (row + 1) * kWidth);
          if (before) x = normed(x, weights.ffn_norm);
          const std::vector<float> in(x.begin(), x.end()), in_q8 = as_q8(in);
          const auto read_by = [&](BlockType type) { return (type == BlockType::f32 ? in : in_q8).data(); };
          const std::vector<double> g = product(gate, read_by(gate_type)), u = product(up, read_by(up_type));
          for (int64_t i = 0; i < kInputs; ++i) {
            const double expected = g[i] / (1 + std::exp(-g[i])) * u[i];
            EXPECT_NEAR(world.in[row * kInputs + i], expected, 1e-4 * (1 + std::abs(expected))) << row << ", " << i;
          }
        }
      }
}

// --- on a GPU

// One layer's weights and rows in memory that both sides address; a copy for each way to compute it.
struct GpuLayer {
  static Exec& exec() {
    static quire::cuda::Stream stream;
    static Exec one({.threads = 2, .stream = &stream});
    return one;
  }
  static float* pinned(Buffer& memory, int64_t count, uint64_t seed) {
    memory = Buffer(static_cast<size_t>(count) * sizeof(float), Place::pinned);
    auto* data = reinterpret_cast<float*>(memory.data());
    const std::vector<float> values = random_floats(static_cast<size_t>(count), seed);
    std::copy(values.begin(), values.end(), data);
    return data;
  }
  static PackedMatrix matrix(std::vector<Weights> parts, PackedMatrix::Join join) {
    std::vector<WeightView> views;
    for (const Weights& part : parts) views.push_back(part.view());
    return PackedMatrix(views, join, exec());
  }

  GpuLayer() {
    spec = some_spec();
    const AttentionSpec& heads = spec.attention;
    using Join = PackedMatrix::Join;
    weights.qkv = matrix({Weights(BlockType::f32, heads.qkv_width(), kWidth, 21)}, Join::stack);
    weights.attention_out = matrix({Weights(BlockType::f32, kWidth, heads.out_width(), 22)}, Join::stack);
    weights.gate_and_up =
        matrix({Weights(BlockType::f32, kInputs, kWidth, 23), Weights(BlockType::f32, kInputs, kWidth, 24)},
               Join::gate_and_up);
    weights.down = matrix({Weights(BlockType::f32, kWidth, kInputs, 25)}, Join::stack);
    weights.attention_norm = Vector(random_floats(kWidth, 26), exec());
    weights.ffn_norm = Vector(random_floats(kWidth, 27), exec());
    *live = kRows;
    for (int32_t row = 0; row < kRows; ++row) slots[row] = TokenSlot(kRows - row);
  }
  BlockRows rows() {
    return {.x = {x, kRows, kWidth, kWidth},
            .live_rows = live,
            .precise = false,
            .norm_eps = kEps,
            .activations = &activations,
            .result = result,
            .stream = reinterpret_cast<uint16_t*>(stream_memory.data()),
            .stream_squares = reinterpret_cast<float*>(squares_memory.data())};
  }
  QkvBlock qkv_block() {
    const AttentionSpec& heads = spec.attention;
    return {.spec = &spec,
            .weights = &weights,
            .rows = rows(),
            .rope = {.rotary = 12, .adjacent_pairs = false, .theta = 1e4, .scaling = {}},
            .cos = cos,
            .sin = cos + 1,
            .qkv = {qkv, kRows, heads.qkv_width(), heads.qkv_width()},
            .q = {reinterpret_cast<std::byte*>(q), Dtype::f32, kRows, heads.heads, heads.key_dim, heads.q_width()},
            .kv = store.layer(0),
            .slots = slots};
  }
  // qkv's block, the feed-forward half, and qkv's block of what that leaves.
  void run(ops::Forms forms, int64_t fused_rows = 0) {
    const BlockChoice blocks = choose_blocks(spec, Device::cuda, kRows, forms, fused_rows);
    blocks.qkv.run(qkv_block(), exec());
    const Rows<float> between{hidden, kRows, kInputs, kInputs};
    blocks.gate_up.run({.weights = &weights, .rows = rows(), .out = between}, exec());
    blocks.down.run({.spec = &spec,
                     .weights = &weights.down,
                     .norm_after = &none,
                     .rows = rows(),
                     .in = between,
                     .next_norm = &weights.attention_norm},
                    exec());
    exec().wait();
    first_q.assign(q, q + kRows * 64);
    QkvBlock second = qkv_block();
    second.rows.streamed = blocks.streams;
    blocks.qkv.run(second, exec());
    exec().wait();
  }

  LayerSpec spec;
  LayerWeights weights;
  Vector none;
  Buffer memory[6];
  Buffer live_memory{sizeof(int32_t), Place::pinned}, slot_memory{kRows * sizeof(TokenSlot), Place::pinned};
  float* x = pinned(memory[0], kRows* kWidth, 31);
  float* result = pinned(memory[1], kRows* kWidth, 32);
  float* qkv = pinned(memory[2], kRows * 128, 33);
  float* q = pinned(memory[3], kRows * 64, 34);
  float* hidden = pinned(memory[4], kRows* kInputs, 35);
  float* cos = pinned(memory[5], kRows * 8 + 1, 36);
  int32_t* live = reinterpret_cast<int32_t*>(live_memory.data());
  TokenSlot* slots = reinterpret_cast<TokenSlot*>(slot_memory.data());
  Buffer stream_memory{kRows * kWidth * sizeof(uint16_t), Place::pinned};
  Buffer squares_memory{kRows * kWidth / 16 * sizeof(float), Place::pinned};
  std::vector<float> first_q;
  ops::ActivationBuffer activations{kRows, kInputs, Place::device};
  kv::KvStore store{{.layers = 1,
                     .pages = 2,
                     .page_size = PageSize(16),
                     .type = Dtype::f32,
                     .kv_heads = 2,
                     .key_dim = 16,
                     .value_dim = 16},
                    Place::pinned};
};

TEST(BlocksCuda, FusedBlocksAreTheComposedOnesButForRounding) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  GpuLayer composed;
  composed.run({});
  // A bf16 here or there, in sums of as many terms as there are inputs.
  const auto expect_near = [](const float* got, const float* expected, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(expected[i]));
    for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(got[i], expected[i], largest * 0.01f) << i;
  };
  for (const int64_t fused_rows : {0, kRows}) {
    GpuLayer fused;
    fused.run({.bf16 = true}, fused_rows);
    expect_near(fused.first_q.data(), composed.first_q.data(), kRows * 64);
    expect_near(fused.q, composed.q, kRows * 64);
    const auto keys = [](const GpuLayer& layer) { return reinterpret_cast<const float*>(layer.store.layer(0).keys); };
    const auto values = [](const GpuLayer& layer) {
      return reinterpret_cast<const float*>(layer.store.layer(0).values);
    };
    expect_near(keys(fused) + 32, keys(composed) + 32, kRows * 32);
    expect_near(values(fused) + 32, values(composed) + 32, kRows * 32);
    expect_near(fused.x, composed.x, kRows * kWidth);
  }
}

// To the bit, in every type that queries and the store may have, for both kinds of pairs and heads that turn in part.
TEST(BlocksCuda, RopeStoreIsRopeThenStoreRows) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3};
  for (const Dtype type : kTypes)
    for (const bool adjacent : {false, true})
      for (const int32_t rotary : {0, 12, 16}) {
        SCOPED_TRACE(cat(to_string(type), adjacent ? ", adjacent" : "", ", rotary ", rotary));
        GpuLayer composed, fused;
        const auto run = [&](GpuLayer& layer, void (*block)(const QkvBlock&, Exec&)) {
          layer.store = kv::KvStore({.layers = 1,
                                     .pages = 2,
                                     .page_size = PageSize(16),
                                     .type = type,
                                     .kv_heads = 2,
                                     .key_dim = 16,
                                     .value_dim = 16},
                                    Place::pinned);
          const kv::LayerKv kv = layer.store.layer(0);
          std::fill_n(kv.keys, kv.slots * 32 * size_of(type), std::byte{0});
          std::fill_n(kv.values, kv.slots * 32 * size_of(type), std::byte{0});
          QkvBlock args = layer.qkv_block();
          args.rope.rotary = rotary;
          args.rope.adjacent_pairs = adjacent;
          args.q.type = type == Dtype::f8e4m3 ? Dtype::bf16 : type;
          *layer.live = kRows - 1;
          block(args, GpuLayer::exec());
          GpuLayer::exec().wait();
          return kv;
        };
        const kv::LayerKv expected = run(composed, composed::rotate_and_store), got = run(fused, cuda::rope_store);
        const auto bytes = static_cast<size_t>(expected.slots * 32 * size_of(type));
        EXPECT_EQ(std::memcmp(got.keys, expected.keys, bytes), 0);
        EXPECT_EQ(std::memcmp(got.values, expected.values, bytes), 0);
        EXPECT_EQ(std::memcmp(fused.q, composed.q, kRows * 64 * sizeof(float)), 0);
      }
}

// Heads that a product leaves in their places, to the bit as rope_store leaves them, nothing else touched.
struct HeadsCase {
  int64_t width;
  int32_t heads, kv_heads, key_dim, value_dim, rotary;
  bool adjacent;
  Dtype type;
  int32_t rows = kRows;
  bool fused = true;                                   // on Hopper
  int32_t pages() const { return 3 * rows / 16 + 2; }  // of 16 slots, every third of which is written
};
struct HeadsWorld {
  explicit HeadsWorld(const HeadsCase& of)
      : slot_count(of.pages() * 16),
        spec(some_spec()),
        store({.layers = 1,
               .pages = of.pages(),
               .page_size = PageSize(16),
               .type = of.type,
               .kv_heads = of.kv_heads,
               .key_dim = of.key_dim,
               .value_dim = of.value_dim},
              Place::pinned),
        activations(of.rows, of.width, Place::device) {
    spec.attention = {
        .heads = of.heads, .kv_heads = of.kv_heads, .key_dim = of.key_dim, .value_dim = of.value_dim, .scale = 1};
    const AttentionSpec& heads = spec.attention;
    weights.qkv =
        GpuLayer::matrix({Weights(BlockType::bf16, heads.qkv_width(), of.width, 41)}, PackedMatrix::Join::stack);
    weights.attention_norm = Vector(random_floats(of.width, 42), GpuLayer::exec());
    weights.qkv_bias = Vector(random_floats(heads.qkv_width(), 43), GpuLayer::exec());
    x = GpuLayer::pinned(memory[0], of.rows * of.width, 44);
    qkv = GpuLayer::pinned(memory[1], of.rows * heads.qkv_width(), 45);
    q = GpuLayer::pinned(memory[2], of.rows * heads.q_width(), 46);
    cos = GpuLayer::pinned(memory[3], of.rows * of.key_dim, 47);
    live = reinterpret_cast<int32_t*>(GpuLayer::pinned(memory[4], 1, 48));
    slots = reinterpret_cast<TokenSlot*>(GpuLayer::pinned(memory[5], of.rows, 49));
    *live = of.rows - 1;
    for (int32_t row = 0; row < of.rows; ++row) slots[row] = TokenSlot(3 * (of.rows - row));
    const kv::LayerKv kv = store.layer(0);
    std::fill_n(kv.keys, key_bytes(), std::byte{0xa5});
    std::fill_n(kv.values, value_bytes(), std::byte{0xa5});
    auto* stream = reinterpret_cast<uint16_t*>(GpuLayer::pinned(memory[6], of.rows * of.width, 50));
    for (int64_t i = 0; i < of.rows * of.width; ++i) stream[i] = ops::rounded_to_bf16(x[i]);
    float* squares = GpuLayer::pinned(memory[7], of.rows * of.width / 16, 51);
    for (int64_t i = 0; i < of.rows * of.width / 16; ++i) squares[i] = std::abs(squares[i]);
    block = {.spec = &spec,
             .weights = &weights,
             .rows = {.x = {x, of.rows, of.width, of.width},
                      .live_rows = live,
                      .precise = false,
                      .norm_eps = kEps,
                      .activations = &activations,
                      .result = nullptr,
                      .stream = stream,
                      .stream_squares = squares},
             .rope = {.rotary = of.rotary, .adjacent_pairs = of.adjacent, .theta = 1e4, .scaling = {}},
             .cos = cos,
             .sin = cos + of.rows * of.key_dim / 2,
             .qkv = {qkv, of.rows, heads.qkv_width(), heads.qkv_width()},
             .q = {reinterpret_cast<std::byte*>(q), of.type == Dtype::f8e4m3 ? Dtype::bf16 : of.type, of.rows, of.heads,
                   of.key_dim, heads.q_width()},
             .kv = kv,
             .slots = slots};
  }
  size_t key_bytes() const {
    return static_cast<size_t>(slot_count * spec.attention.k_width() * size_of(store.layout().type));
  }
  size_t value_bytes() const {
    return static_cast<size_t>(slot_count * spec.attention.v_width() * size_of(store.layout().type));
  }

  int64_t slot_count;
  LayerSpec spec;
  LayerWeights weights;
  kv::KvStore store;
  ops::ActivationBuffer activations;
  Buffer memory[8];
  float *x, *qkv, *q, *cos;
  int32_t* live;
  TokenSlot* slots;
  QkvBlock block;
};

TEST(BlocksCuda, AProductLeavesHeadsAsRopeStoreDoes) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  constexpr HeadsCase kCases[] = {
      {64, 3, 1, 64, 64, 64, false, Dtype::bf16},
      {576, 4, 2, 32, 16, 16, false, Dtype::f16},
      {64, 4, 2, 32, 48, 32, true, Dtype::bf16},
      {64, 4, 2, 16, 16, 0, false, Dtype::f32},
      {64, 4, 2, 16, 16, 12, false, Dtype::bf16, kRows, false},
      {64, 4, 2, 16, 16, 16, false, Dtype::f8e4m3, kRows, false},
      {2048, 8, 2, 128, 128, 128, false, Dtype::bf16},  // from here on large enough for the stream
      {2048, 8, 2, 128, 128, 64, false, Dtype::f16},
      {2048, 8, 2, 128, 128, 128, true, Dtype::bf16, kRows, false},
      {640, 56, 8, 64, 64, 64, false, Dtype::bf16},    // three tiles a block
      {64, 3, 1, 64, 64, 64, false, Dtype::bf16, 65},  // by tiles, a row's inputs in one block and in a cluster
      {576, 4, 2, 32, 16, 16, false, Dtype::f16, 40},
      {1536, 4, 2, 32, 16, 16, false, Dtype::bf16, 127},
      // by clusters, in tiles of 32, 64, 96 and 128, with 8 to 64 pairs side by side
      {1280, 24, 4, 64, 64, 64, false, Dtype::bf16, 16},
      {1280, 24, 4, 64, 64, 64, false, Dtype::f16, 100},
      {1024, 24, 4, 80, 80, 80, false, Dtype::bf16, 17},
      {1152, 14, 2, 128, 128, 128, false, Dtype::f16, 128},
      {640, 56, 8, 64, 64, 64, false, Dtype::f32, 100},
      {640, 40, 8, 128, 128, 128, false, Dtype::bf16, 20},
      {640, 40, 8, 128, 128, 128, false, Dtype::bf16, 65},
      // not by them: heads that turn in part, pairs of neighbours, values of another size
      {1024, 24, 4, 128, 128, 64, false, Dtype::bf16, 20, false},
      {1024, 24, 4, 128, 128, 128, true, Dtype::bf16, 20, false},
      {1024, 24, 4, 128, 64, 128, false, Dtype::bf16, 20, false}};
  const auto expect_same_heads = [](const HeadsCase& of, HeadsWorld& expected, HeadsWorld& got, bool streamed) {
    const BlockRows& rows = expected.block.rows;
    ops::MatmulArgs args{.weights = &expected.weights.qkv,
                         .in = {},
                         .out = expected.block.qkv,
                         .bias = expected.weights.qkv_bias.data(),
                         .live_rows = expected.live};
    if (streamed) {
      args.in = {.forms = {.bf16 = true}, .rows = of.rows, .dim = of.width, .f32 = nullptr, .bf16 = rows.stream};
      args.fusions.squares = rows.stream_squares;
      args.fusions.norm_eps = kEps;
    } else {
      args.in = composed::normed_input(expected.weights.qkv, expected.weights.attention_norm, rows, GpuLayer::exec());
    }
    ops::matmul(args, GpuLayer::exec());
    cuda::rope_store(expected.block, GpuLayer::exec());
    got.block.rows.streamed = streamed;
    const auto sums = static_cast<size_t>(of.rows * got.block.qkv.stride);
    const std::vector<float> untouched(got.qkv, got.qkv + sums);
    cuda::qkv(got.block, GpuLayer::exec());
    GpuLayer::exec().wait();
    if (quire::cuda::compute_capability() == 90) {
      EXPECT_EQ(std::memcmp(got.qkv, untouched.data(), sums * sizeof(float)) == 0, of.fused);
    }
    const kv::LayerKv a = got.store.layer(0), b = expected.store.layer(0);
    EXPECT_EQ(std::memcmp(a.keys, b.keys, got.key_bytes()), 0);
    EXPECT_EQ(std::memcmp(a.values, b.values, got.value_bytes()), 0);
    const auto q_bytes = static_cast<size_t>(of.rows * got.spec.attention.q_width()) * sizeof(float);
    EXPECT_EQ(std::memcmp(got.q, expected.q, q_bytes), 0);
  };
  for (const HeadsCase& of : kCases) {
    HeadsWorld expected(of), got(of);
    for (const bool streamed : {false, true}) {
      SCOPED_TRACE(cat(of.width, " wide, heads of ", of.key_dim, ", rotary ", of.rotary,
                       of.adjacent ? ", adjacent" : "", ", ", to_string(of.type), ", ", of.rows, " rows",
                       streamed ? ", streamed" : ""));
      expect_same_heads(of, expected, got, streamed);
    }
  }
}

}  // namespace
}  // namespace quire::model
