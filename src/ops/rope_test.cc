#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/expect_refused.h"
#include "ops/testing_machines.h"

namespace quire::ops {
namespace {

using namespace testing;
using Kind = RopeScaling::Kind;

class RopeAngles : public OnEachMachine {};
class RotateRows : public OnEachMachine {};
INSTANTIATE_TEST_SUITE_P(Machines, RopeAngles, kMachines, machine_name);
INSTANTIATE_TEST_SUITE_P(Machines, RotateRows, kMachines, machine_name);

struct Expected {
  int32_t pair;
  double frequency;
};

void expect_frequencies(const RopeTable& table, int32_t rotary, const std::vector<Expected>& expected) {
  ASSERT_EQ(std::ssize(table.inverse_frequency), rotary / 2);
  for (const auto& [pair, frequency] : expected)
    EXPECT_NEAR(table.inverse_frequency[pair], frequency, 4e-7 * frequency) << "pair " << pair;
}

// The numbers are those of Hugging Face's transformers 5.22 (ROPE_INIT_FUNCTIONS) for the same parameters, in f32.
TEST(RopeTable, Plain) {
  const RopeTable table = rope_table(64, 10000, {});
  expect_frequencies(table, 64, {{0, 1}, {8, 0.1}, {16, 0.01}, {24, 0.001}, {31, 1.333521432e-4}});
  EXPECT_EQ(table.magnitude, 1);
}

TEST(RopeTable, Linear) {
  const RopeTable table = rope_table(64, 10000, {.kind = Kind::linear, .factor = 4});
  expect_frequencies(table, 64, {{0, 0.25}, {1, 0.18747355}, {12, 0.00790569466}, {31, 3.33380376e-05}});
  EXPECT_EQ(table.magnitude, 1);
}

TEST(RopeTable, Llama3) {
  RopeScaling scaling{.kind = Kind::llama3, .factor = 8, .original_context = 8192};
  expect_frequencies(rope_table(128, 500000, scaling), 128,
                     {{0, 1},
                      {1, 0.814617217},
                      {16, 0.0376060307},
                      {24, 0.00729266508},
                      {32, 0.000524846022},
                      {40, 3.42810235e-05},
                      {63, 3.06892588e-07}});
  scaling.factor = 32;
  expect_frequencies(
      rope_table(64, 500000, scaling), 64,
      {{1, 0.663601279}, {12, 0.00729266508}, {16, 0.000429556705}, {20, 8.57025589e-06}, {31, 9.41830649e-08}});
}

TEST(RopeTable, Yarn) {
  const RopeTable usual = rope_table(128, 1e6, {.kind = Kind::yarn, .factor = 4, .original_context = 32768});
  expect_frequencies(usual, 128,
                     {{0, 1},
                      {1, 0.805842221},
                      {16, 0.0316227786},
                      {24, 0.00537532149},
                      {32, 0.000602941145},
                      {40, 4.44569851e-05},
                      {63, 3.10234441e-07}});
  EXPECT_FLOAT_EQ(usual.magnitude, 1.138629436111989f);
  const RopeTable other = rope_table(64, 10000,
                                     {.kind = Kind::yarn,
                                      .factor = 16,
                                      .original_context = 4096,
                                      .beta_fast = 24,
                                      .beta_slow = 2,
                                      .attention_factor = 1.25});
  expect_frequencies(
      other, 64,
      {{1, 0.749894202}, {8, 0.1}, {12, 0.0286581423}, {16, 0.0053125}, {20, 0.000494105974}, {24, 6.25e-5}});
  EXPECT_EQ(other.magnitude, 1.25f);
}

TEST(RopeTable, FactorsDivide) {
  const std::vector<float> factors = {1, 2, 4, 8};
  const RopeTable table = rope_table(8, 16, {}, factors.data());
  expect_frequencies(table, 8, {{0, 1}, {1, 0.25}, {2, 0.0625}, {3, 0.015625}});
}

TEST(RopeTable, RefusesWhatMakesNoSense) {
  expect_refused([] { rope_table(7, 10000, {}); }, "7 dims");
  expect_refused([] { rope_table(0, 10000, {}); }, "0 dims");
  expect_refused([] { rope_table(8, 0, {}); }, "theta of 0");
  expect_refused([] { rope_table(8, std::nan(""), {}); }, "theta of nan");
  expect_refused([] { rope_table(8, 1e4, {.kind = Kind::linear, .factor = 0}); }, "factor of 0");
  expect_refused([] { rope_table(8, 1e4, {.kind = Kind::llama3, .factor = 8}); }, "original context of 0");
  expect_refused([] { rope_table(8, 1e4, {.kind = Kind::llama3, .original_context = 9, .low_frequency_factor = 4}); },
                 "frequency factors 4");
  expect_refused([] { rope_table(8, 1e4, {.kind = Kind::yarn, .original_context = 9, .beta_fast = 0.5}); },
                 "beta fast 0.5");
  expect_refused([] { rope_table(8, 1, {.kind = Kind::yarn, .original_context = 9}); }, "theta above 1");
  const std::vector<float> factors = {1, 0, 1, 1};
  expect_refused([&] { rope_table(8, 1e4, {}, factors.data()); }, "factor 1 is 0");
}

TEST_P(RopeAngles, AreExactAtFarPositions) {
  const RopeTable table = rope_table(64, 500000, {});
  const Array<float> frequencies = shared(table.inverse_frequency);
  with_every_exec([&](Exec& exec) {
    for (const int32_t rows : kRowCounts) {
      Array<int32_t> positions(rows + 1);
      const Array<int32_t> live = {rows};
      for (int32_t row = 0; row <= rows; ++row) positions[row] = row * 7919 % 1'000'003;
      Array<float> cos((rows + 1) * 32, 9.0f), sin((rows + 1) * 32, 9.0f);
      rope_angles({.positions = positions.data(),
                   .inverse_frequency = frequencies.data(),
                   .magnitude = 1.5f,
                   .half = 32,
                   .cos = cos.data(),
                   .sin = sin.data(),
                   .live_rows = live.data()},
                  exec);
      exec.wait();
      for (int32_t row = 0; row < rows; ++row)
        for (int32_t i = 0; i < 32; ++i) {
          const long double angle = static_cast<long double>(positions[row]) * table.inverse_frequency[i];
          ASSERT_NEAR(cos[row * 32 + i], 1.5L * cosl(angle), 1e-7);
          ASSERT_NEAR(sin[row * 32 + i], 1.5L * sinl(angle), 1e-7);
        }
      EXPECT_EQ(cos.back(), 9.0f);
    }
  });
}

// The rounded results may be neighbours where the GPU's last bit of a double differs, and no more.
TEST_P(RopeAngles, AreTheCpusOnAGpuUpToOneStepOfAFloat) {
  if (!is_gpu()) GTEST_SKIP() << "the CPU's are the meaning";
  constexpr int32_t kRows = 4099, kHalf = 48;
  const Array<float> frequencies = shared(rope_table(2 * kHalf, 10000, {}).inverse_frequency);
  Array<int32_t> positions(kRows);
  for (int32_t row = 0; row < kRows; ++row) positions[row] = row < 4000 ? row : 1 << 30 >> (row - 4000);
  const Array<int32_t> live = {kRows};
  const auto angles = [&](RopeAnglesFn* angles_fn, Exec& exec) {
    Array<float> both(2 * kRows * kHalf);
    angles_fn(
        {positions.data(), frequencies.data(), 1.25f, kHalf, both.data(), both.data() + kRows * kHalf, live.data()},
        exec);
    exec.wait();
    return both;
  };
  const Array<float> cpu = angles(cpu::rope_angles, *every_exec()[0]), gpus = angles(rope_angles, gpu());
  int64_t different = 0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    ASSERT_TRUE(gpus[i] == cpu[i] || gpus[i] == std::nextafter(cpu[i], gpus[i])) << cpu[i] << " and " << gpus[i];
    different += gpus[i] != cpu[i];
  }
  EXPECT_LT(different, std::ssize(cpu) / 10000);
}

struct Shape {
  int32_t heads, kv_heads, dim, half;
  bool adjacent, norms;
  Dtype type;
  bool whole_row = false;
};

// A step's rows and what comes of them.
struct Step {
  Step(const Shape& s, int32_t room)
      : shape(s),
        rows(room),
        width((s.heads + 2 * s.kv_heads) * s.dim),
        qkv(random_array(static_cast<size_t>(rows * width), 1)),
        cos(random_array(static_cast<size_t>(rows) * s.half + 1, 2)),
        sin(random_array(static_cast<size_t>(rows) * s.half + 1, 3)),
        q_norm(random_array(static_cast<size_t>(s.dim * s.heads), 4)),
        k_norm(random_array(static_cast<size_t>(s.dim * s.kv_heads), 5)),
        q(static_cast<size_t>(rows * s.heads * s.dim * size_of(s.type)), std::byte{0x5a}) {}

  RopeArgs args(const int32_t* live) {
    return {.qkv = {qkv.data(), rows, width, width},
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .dim = shape.dim,
            .half = shape.half,
            .adjacent_pairs = shape.adjacent,
            .cos = cos.data(),
            .sin = sin.data(),
            .q_norm = shape.norms ? q_norm.data() : nullptr,
            .k_norm = shape.norms ? k_norm.data() : nullptr,
            .norm_whole_row = shape.whole_row,
            .norm_eps = 1e-6f,
            .q = {q.data(), shape.type, rows, shape.heads, shape.dim, int64_t{shape.heads} * shape.dim},
            .live_rows = live};
  }

  // Of head `head` among all of a row, keys behind queries.
  const float* at(int64_t row, int32_t head) const { return qkv.data() + row * width + head * shape.dim; }

  Shape shape;
  int32_t rows;
  int64_t width;
  Array<float> qkv, cos, sin, q_norm, k_norm;
  Array<std::byte> q;
};

// One head straight from the definition, in double.
std::vector<double> expected_head(const Step& step, int64_t row, int32_t head) {
  const Shape& s = step.shape;
  std::vector<double> x(step.at(row, head), step.at(row, head) + s.dim);
  if (s.norms) {
    const bool is_query = head < s.heads;
    const int32_t first = s.whole_row ? (is_query ? 0 : s.heads) : head;  // head of those that are normed together
    const int32_t dims = s.whole_row ? (is_query ? s.heads : s.kv_heads) * s.dim : s.dim;
    double squares = 0;
    for (int32_t i = 0; i < dims; ++i) squares += double{step.at(row, first)[i]} * step.at(row, first)[i];
    const float* weight = (is_query ? step.q_norm : step.k_norm).data() + (head - first) * s.dim;
    for (int32_t i = 0; i < s.dim; ++i) x[i] = x[i] / std::sqrt(squares / dims + 1e-6) * weight[i];
  }
  for (int32_t i = 0; i < s.half; ++i) {
    double& first = x[s.adjacent ? 2 * i : i];
    double& second = x[s.adjacent ? 2 * i + 1 : i + s.half];
    const double cos = step.cos[row * s.half + i], sin = step.sin[row * s.half + i], a = first, b = second;
    first = a * cos - b * sin;
    second = b * cos + a * sin;
  }
  return x;
}

double step_of(Dtype type) { return type == Dtype::bf16 ? 0x1p-8 : type == Dtype::f16 ? 0x1p-11 : 1e-6; }

const Shape kShapes[] = {
    {9, 3, 64, 32, true, false, Dtype::f32},       {9, 3, 64, 32, false, false, Dtype::bf16},
    {4, 2, 128, 64, false, true, Dtype::f16},      {3, 1, 80, 16, false, false, Dtype::f32},
    {3, 1, 20, 5, true, true, Dtype::bf16},        {3, 3, 22, 11, false, true, Dtype::f16},
    {2, 2, 32, 0, false, false, Dtype::bf16},      {2, 2, 33, 0, true, true, Dtype::f32},
    {5, 1, 64, 32, true, true, Dtype::f16},        {4, 2, 64, 32, false, true, Dtype::bf16, true},
    {3, 1, 22, 11, false, true, Dtype::f32, true},
};

TEST(Rope, ReferenceIsTheDefinition) {
  Exec exec(ExecOptions{.threads = 1});
  for (const Shape& shape : kShapes) {
    const Step before(shape, 4);
    Step after(shape, 4);
    const int32_t live = 3;
    ref::rope(after.args(&live), exec);
    for (int32_t row = 0; row < live; ++row)
      for (int32_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        const std::vector<double> expected = expected_head(before, row, head);
        for (int32_t i = 0; i < shape.dim; ++i) {
          const bool is_query = head < shape.heads;
          const float got = is_query
                                ? load_element(shape.type, after.q.data(), (row * shape.heads + head) * shape.dim + i)
                                : after.at(row, head)[i];
          const double tolerance = (is_query ? step_of(shape.type) : 1e-6) * (1 + std::abs(expected[i]));
          ASSERT_NEAR(got, expected[i], tolerance * 2) << "head " << head << " of dim " << shape.dim;
        }
      }
  }
}

TEST_P(RotateRows, ValuesAndRowsBehindTheLiveOnesStay) {
  const Shape shape = kShapes[0];
  const Step before(shape, 64);
  Step after(shape, 64);
  const int32_t live = 40;
  const Array<int32_t> live_rows = {live};
  rope(after.args(live_rows.data()), any_exec());
  any_exec().wait();
  const int64_t first_value = (shape.heads + shape.kv_heads) * shape.dim;
  for (int64_t row = 0; row < 64; ++row)
    for (int64_t i = row < live ? first_value : 0; i < before.width; ++i)
      ASSERT_EQ(after.qkv[row * before.width + i], before.qkv[row * before.width + i]) << row << " " << i;
  const auto untouched = after.q.begin() + live * shape.heads * shape.dim * size_of(shape.type);
  EXPECT_TRUE(std::all_of(untouched, after.q.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
}

TEST_P(RotateRows, AllMachinesAndTeamsGiveTheReferencesBits) {
  for (const Shape& shape : kShapes)
    for (const int32_t live : kRowCounts) {
      const Array<int32_t> live_rows = {live};
      SCOPED_TRACE(cat(live, " rows, dim ", shape.dim, " ", to_string(shape.type)));
      Step expected(shape, live + 1);
      ref::rope(expected.args(&live), *every_exec()[0]);
      with_every_exec([&](Exec& exec) {
        Step fast(shape, live + 1);
        rope(fast.args(live_rows.data()), exec);
        exec.wait();
        ASSERT_TRUE(same_bits(fast.q, expected.q));
        for (int64_t row = 0; row <= live; ++row)
          ASSERT_EQ(std::memcmp(fast.at(row, shape.heads), expected.at(row, shape.heads),
                                static_cast<size_t>(2 * shape.kv_heads * shape.dim) * sizeof(float)),
                    0)
              << "row " << row;
      });
    }
}

// Rows that lie apart, and queries that do, so that nothing is read or written in fours.
TEST_P(RotateRows, AnyStride) {
  with_every_exec([](Exec& exec) {
    for (const Shape& shape : kShapes) {
      Step step(shape, 3), expected(shape, 3);
      const Array<int32_t> live = {2};
      ref::rope(expected.args(live.data()), *every_exec()[0]);
      RopeArgs args = step.args(live.data());
      const int64_t heads = int64_t{shape.heads} * shape.dim, size = size_of(shape.type);
      Array<float> apart(static_cast<size_t>(3 * (step.width + 1)));
      for (int64_t row = 0; row < 2; ++row)
        std::copy_n(&step.qkv[row * step.width], step.width, &apart[row * (step.width + 1) + 1]);
      Array<std::byte> queries(static_cast<size_t>((2 * heads + 2) * size));
      args.qkv = {apart.data() + 1, 2, step.width, step.width + 1};
      args.q = {queries.data() + size, shape.type, 2, shape.heads, shape.dim, heads + 1};
      rope(args, exec);
      exec.wait();
      const auto key_bytes = static_cast<size_t>(shape.kv_heads * shape.dim) * sizeof(float);
      for (int64_t row = 0; row < 2; ++row) {
        EXPECT_EQ(std::memcmp(args.q.at(row, 0), &expected.q[row * heads * size], static_cast<size_t>(heads * size)),
                  0);
        EXPECT_EQ(std::memcmp(args.qkv.row(row) + heads, expected.at(row, shape.heads), key_bytes), 0);
      }
    }
  });
}

TEST_P(RotateRows, LiveRowsAreReadWhenItRuns) {
  Step step(kShapes[1], 64);
  const Array<float> fresh = step.qkv;
  Array<int32_t> live = {1};
  Recording recording(any_exec(), [&] { rope(step.args(live.data()), any_exec()); });
  EXPECT_EQ(step.qkv, fresh) << "recording must not run";
  for (const int32_t now : {0, 5, 64}) {
    live[0] = now;
    step.qkv = fresh;
    recording.replay();
    Step reference(kShapes[1], 64);
    ref::rope(reference.args(&now), *every_exec()[0]);
    EXPECT_EQ(step.q, reference.q) << now;
    const auto keys_and_values = static_cast<size_t>(6 * 64) * sizeof(float);
    for (int64_t row = 0; row < 64; ++row)
      EXPECT_EQ(std::memcmp(step.at(row, 9), reference.at(row, 9), keys_and_values), 0) << now;
  }
}

TEST(Rope, RefusesAtTheDoor) {
  Exec exec(ExecOptions{.threads = 1});
  Step step({4, 2, 64, 32, false, false, Dtype::f32}, 3);
  int32_t live = 3;
  const auto refused = [&](auto change, const char* part) {
    RopeArgs args = step.args(&live);
    change(args);
    expect_refused([&] { rope(args, exec); }, part);
    expect_refused([&] { ref::rope(args, exec); }, part);
  };
  refused([](RopeArgs& args) { args.half = 33; }, "33 pairs of heads of 64");
  refused([](RopeArgs& args) { args.kv_heads = 3; }, "rows of 512");
  refused([](RopeArgs& args) { args.kv_heads = 0; }, "0 kv heads");
  refused([](RopeArgs& args) { args.q.heads = 5; }, "queries of 5 heads");
  refused([](RopeArgs& args) { args.q.type = Dtype::f8e4m3; }, "f8e4m3");
  refused([](RopeArgs& args) { args.cos = nullptr; }, "cosines");
  refused([](RopeArgs& args) { args.qkv.stride = 100; }, "stride 100");
  refused([](RopeArgs& args) { args.norm_eps = -1; }, "eps of -1");
  live = 4;
  refused([](RopeArgs&) {}, "4 live rows in room for 3");
}

}  // namespace
}  // namespace quire::ops
