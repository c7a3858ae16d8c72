#include "ops/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/expect_refused.h"
#include "ops/testing_activations.h"

namespace quire::ops {
namespace {

using namespace testing;

class RmsNorm : public OnEachMachine {
 protected:
  static void expect_the_references_bits(int64_t dim, Forms forms);
};
class AddRows : public OnEachMachine {};
INSTANTIATE_TEST_SUITE_P(Machines, RmsNorm, kMachines, machine_name);
INSTANTIATE_TEST_SUITE_P(Machines, AddRows, kMachines, machine_name);

constexpr float kEps = 1e-5f;

Activations normed(RmsNormFn* norm_fn, const Array<float>& in, const Array<float>& weight, int32_t live_rows,
                   Forms forms, Exec& exec) {
  const auto dim = static_cast<int64_t>(weight.size());
  const auto room = static_cast<int64_t>(in.size()) / dim;
  Activations out(room, dim, forms);
  const Array<int32_t> live = {live_rows};
  norm_fn({.in = {in.data(), room, dim, dim},
           .weight = weight.data(),
           .eps = kEps,
           .out = out.view(),
           .live_rows = live.data()},
          exec);
  exec.wait();
  return out;
}

TEST(RmsNorm, ReferenceIsTheFormula) {
  Exec exec(ExecOptions{.threads = 1});
  for (const int64_t dim : {1, 7, 16, 45, 576, 4096}) {
    const Array<float> in = random_array(static_cast<size_t>(3 * dim), 1, 3);
    const Array<float> weight = random_array(static_cast<size_t>(dim), 2);
    const Activations out = normed(ref::rms_norm, in, weight, 3, {.f32 = true}, exec);
    for (int64_t row = 0; row < 3; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < dim; ++i) squares += double{in[row * dim + i]} * in[row * dim + i];
      const double root = std::sqrt(squares / static_cast<double>(dim) + kEps);
      for (int64_t i = 0; i < dim; ++i) {
        const double expected = in[row * dim + i] / root * weight[i];
        ASSERT_NEAR(out.f32[row * dim + i], expected, 1e-6 * (1 + std::abs(expected))) << dim;
      }
    }
  }
}

void RmsNorm::expect_the_references_bits(int64_t dim, Forms forms) {
  for (const int32_t rows : kRowCounts) {
    SCOPED_TRACE(cat(rows, " rows of ", dim));
    const Array<float> in = random_array(static_cast<size_t>((rows + 2) * dim), 1, 100);
    const Array<float> weight = random_array(static_cast<size_t>(dim), 2);
    const Activations expected = normed(ref::rms_norm, in, weight, rows, forms, *every_exec()[0]);
    with_every_exec([&](Exec& exec) { ASSERT_EQ(normed(rms_norm, in, weight, rows, forms, exec), expected); });
  }
}

TEST_P(RmsNorm, AllMachinesAndTeamsGiveTheReferencesBits) {
  for (const int64_t dim : {1, 15, 17, 45, 100}) expect_the_references_bits(dim, {.f32 = true});
  for (const int64_t dim : {32, 96, 576, 1056})
    for (const Forms forms : kEveryForms) expect_the_references_bits(dim, forms);
}

// More than the threads of a block, and than the shared memory that a kernel has unasked.
TEST_P(RmsNorm, LongRows) {
  for (const int64_t dim : {4096, 5000, 8192, 16416}) {
    const Array<float> in = random_array(static_cast<size_t>(2 * dim), 1, 3), weight = random_array(dim, 2);
    const Forms forms{.f32 = true, .q8 = dim % 32 == 0};
    const Activations expected = normed(ref::rms_norm, in, weight, 2, forms, *every_exec()[0]);
    EXPECT_EQ(normed(rms_norm, in, weight, 2, forms, any_exec()), expected) << dim;
  }
}

// Rows of every binade that a float has, so that squares overflow and vanish too.
TEST_P(RmsNorm, NumbersOfEverySize) {
  Array<float> in(270 * 64);
  const Array<float> mantissas = random_array(in.size(), 3), weight = random_array(64, 2);
  for (int64_t i = 0; i < std::ssize(in); ++i) in[i] = std::ldexp(mantissas[i], static_cast<int>(i / 64) - 145);
  const Activations expected = normed(ref::rms_norm, in, weight, 270, {.f32 = true}, *every_exec()[0]);
  with_every_exec([&](Exec& exec) {
    EXPECT_TRUE(same_numbers(normed(rms_norm, in, weight, 270, {.f32 = true}, exec).f32, expected.f32));
  });
}

TEST_P(RmsNorm, FillsBf16OnAGpuAlone) {
  const Array<float> in = random_array(5 * 580, 1), weight = random_array(580, 2);
  if (!is_gpu())
    return expect_refused([&] { normed(rms_norm, in, weight, 5, {.bf16 = true}, any_exec()); },
                          "which cpu does not fill");
  const Activations expected = normed(ref::rms_norm, in, weight, 4, {.f32 = true}, *every_exec()[0]);
  const Activations out = normed(rms_norm, in, weight, 4, {.bf16 = true}, gpu());
  for (int64_t i = 0; i < 4 * 580; ++i) ASSERT_EQ(out.bf16[i], to_bf16(expected.f32[i]).bits) << i;
  EXPECT_EQ(std::count(out.bf16.begin() + 4 * 580, out.bf16.end(), 0x5a5a), 580);
}

TEST_P(RmsNorm, QuantisesAsQuantiseDoes) {
  with_every_exec([](Exec& exec) {
    const Array<float> in = random_array(5 * 576, 1), weight = random_array(576, 2);
    const Activations fused = normed(rms_norm, in, weight, 5, {.q8 = true}, exec);
    Activations plain = normed(rms_norm, in, weight, 5, {.f32 = true}, exec);
    Activations apart(5, 576, {.q8 = true});
    const Array<int32_t> live = {5};
    quantise({.in = {plain.f32.data(), 5, 576, 576}, .out = apart.view(), .live_rows = live.data()}, exec);
    exec.wait();
    EXPECT_EQ(fused, apart);
  });
}

TEST_P(RmsNorm, ARowDependsOnItselfAlone) {
  Exec& exec = any_exec();
  const Array<float> in = random_array(40 * 96, 1), weight = random_array(96, 2);
  const Activations all = normed(rms_norm, in, weight, 40, {.f32 = true}, exec);
  for (int64_t row = 0; row < 40; ++row) {
    const Array<float> alone(in.begin() + row * 96, in.begin() + (row + 1) * 96);
    const Activations one = normed(rms_norm, alone, weight, 1, {.f32 = true}, exec);
    ASSERT_TRUE(same_bits(one.f32, {all.f32.begin() + row * 96, all.f32.begin() + (row + 1) * 96})) << row;
  }
}

TEST_P(RmsNorm, BadNumbersAndZeros) {
  with_every_exec([](Exec& exec) {
    Array<float> in(3 * 64, 1.0f);
    in[5] = std::nanf("");
    std::fill_n(in.begin() + 64, 64, 0.0f);
    const Activations out = normed(rms_norm, in, Array<float>(64, 1.0f), 3, {.q8 = true}, exec);
    EXPECT_TRUE(std::isnan(out.scale[0]) && std::isnan(out.scale[1])) << "one NaN reaches the whole row";
    EXPECT_EQ(out.scale[2], 0);
    EXPECT_EQ(out.q[2 * 64], 127);
  });
}

TEST_P(RmsNorm, LiveRowsAreReadWhenItRuns) {
  const Array<float> in = random_array(64 * 576, 5), weight = random_array(576, 6);
  Array<int32_t> live = {1};
  Activations out(64, 576, {.f32 = true, .q8 = true});
  Recording recording(any_exec(), [&] {
    rms_norm({{in.data(), 64, 576, 576}, weight.data(), kEps, out.view(), live.data()}, any_exec());
  });
  for (const int32_t now : {0, 3, 64}) {
    live[0] = now;
    recording.replay();
    EXPECT_EQ(out, normed(ref::rms_norm, in, weight, now, {.f32 = true, .q8 = true}, *every_exec()[0])) << now;
  }
}

TEST_P(AddRows, AddsScaledRowsToWhatIsThere) {
  with_every_exec([](Exec& exec) {
    const Array<float> in = random_array(40 * 45, 1), before = random_array(41 * 50, 2);
    Array<float> out = before, expected = before;
    const Array<int32_t> live = {40};
    add_rows({.in = {in.data(), 40, 45, 45}, .scale = 0.22f, .out = {out.data(), 41, 45, 50}, .live_rows = live.data()},
             exec);
    exec.wait();
    for (int64_t row = 0; row < 40; ++row)
      for (int64_t i = 0; i < 45; ++i) {
        const float scaled = 0.22f * in[row * 45 + i];
        expected[row * 50 + i] = before[row * 50 + i] + scaled;
      }
    EXPECT_TRUE(same_bits(out, expected));
  });
}

// Also those that a thread of a GPU does not keep in its registers.
TEST_P(RmsNorm, MayNormRowsInPlace) {
  with_every_exec([](Exec& exec) {
    for (const int64_t dim : {45, 1100, 4097, 8192}) {
      Array<float> rows = random_array(5 * dim, 1);
      const Array<float> weight = random_array(dim, 2);
      const Activations expected = normed(rms_norm, rows, weight, 5, {.f32 = true}, exec);
      const Array<int32_t> live = {5};
      const ActivationRows in_place{.forms = {.f32 = true}, .rows = 5, .dim = dim, .f32 = rows.data()};
      rms_norm({{rows.data(), 5, dim, dim}, weight.data(), kEps, in_place, live.data()}, exec);
      exec.wait();
      EXPECT_TRUE(same_bits(rows, expected.f32)) << dim;
    }
  });
}

TEST(RmsNorm, RefusesAtTheDoor) {
  Exec exec(ExecOptions{.threads = 1});
  const Array<float> in(128), weight(64);
  int32_t live = 2;
  Activations out(2, 64, {.f32 = true});
  const auto refused = [&](RmsNormArgs args, const char* part) {
    expect_refused([&] { rms_norm(args, exec); }, part);
    expect_refused([&] { ref::rms_norm(args, exec); }, part);
  };
  const Rows<const float> rows{in.data(), 2, 64, 64};
  refused({rows, nullptr, kEps, out.view(), &live}, "weight");
  refused({rows, weight.data(), -1, out.view(), &live}, "eps of -1");
  refused({{in.data(), 2, 32, 32}, weight.data(), kEps, out.view(), &live}, "from rows of 32 to rows of 64");
  live = -1;
  refused({rows, weight.data(), kEps, out.view(), &live}, "-1 live rows");
}

}  // namespace
}  // namespace quire::ops
