#include "ops/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/testing/expect_refused.h"
#include "ops/testing_activations.h"

namespace quire::ops {
namespace {

using namespace testing;

class Quantise : public OnEachMachine {};
INSTANTIATE_TEST_SUITE_P(Machines, Quantise, kMachines, machine_name);

TEST(ActivationBuffer, ArraysAreApartAlignedAndLargeEnough) {
  const ActivationBuffer buffer(5, 96);
  for (const int64_t dim : {32, 64, 96}) {
    const ActivationRows rows = buffer.view(dim, {.f32 = true, .q8x2 = true});
    EXPECT_EQ(rows.rows, 5);
    EXPECT_EQ(rows.dim, dim);
    EXPECT_EQ(rows.q_stride % 64, 0);
    EXPECT_GE(rows.q_stride, dim);
    for (const void* array : {(void*)rows.f32, (void*)rows.q, (void*)rows.scale, (void*)rows.sums})
      EXPECT_EQ(reinterpret_cast<uintptr_t>(array) % 64, 0u);
    std::fill_n(rows.f32, 5 * dim, 1.0f);
    std::fill_n(rows.q, 10 * rows.q_stride, int8_t{2});
    std::fill_n(rows.scale, 10 * dim / 32, 3.0f);
    std::fill_n(rows.sums, 10 * dim / 16, 4);
    EXPECT_EQ(std::count(rows.f32, rows.f32 + 5 * dim, 1.0f), 5 * dim);
    EXPECT_EQ(std::count(rows.q, rows.q + 10 * rows.q_stride, 2), 10 * rows.q_stride);
    EXPECT_EQ(std::count(rows.scale, rows.scale + 10 * dim / 32, 3.0f), 10 * dim / 32);
  }
}

TEST(ActivationBuffer, RefusesWhatItCannotHold) {
  expect_refused([] { ActivationBuffer(0, 32); }, "0 rows of 32");
  expect_refused([] { ActivationBuffer(int64_t{1} << 40, int64_t{1} << 40); }, "rows of");
  const ActivationBuffer buffer(2, 80);
  expect_refused([&] { buffer.view(81, {.f32 = true}); }, "rows of 81");
  expect_refused([&] { buffer.view(80, {.q8 = true}); }, "no whole blocks of 32");
  EXPECT_EQ(buffer.view(80, {.f32 = true}).dim, 80);
}

Activations quantised(QuantiseFn* quantise_fn, const Array<float>& in, int64_t dim, int32_t live_rows, Forms forms,
                      Exec& exec) {
  const auto room = static_cast<int64_t>(in.size()) / dim;
  Activations out(room, dim, forms);
  const Array<int32_t> live = {live_rows};
  quantise_fn({.in = {in.data(), room, dim, dim}, .out = out.view(), .live_rows = live.data()}, exec);
  exec.wait();
  return out;
}

// One block with the reference, which the other tests hold everything else to.
Activations block_of(Array<float> in) {
  Exec exec(ExecOptions{.threads = 1});
  in.resize(32);
  return quantised(ref::quantise, in, 32, 1, {.q8 = true}, exec);
}

TEST(QuantiseBlock, IsWhatTheHeaderSays) {
  const Array<float> in = random_array(32 * 100, 1, 5);
  Exec exec(ExecOptions{.threads = 1});
  const Activations out = quantised(ref::quantise, in, 32, 100, {.q8 = true}, exec);
  for (int block = 0; block < 100; ++block) {
    float largest = 0;
    int32_t sums[2] = {};
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(in[block * 32 + i]));
    ASSERT_EQ(out.scale[block], largest / 127.0f);
    for (int i = 0; i < 32; ++i) {
      const int8_t q = out.q[block * 64 + i];
      sums[i / 16] += q;
      ASSERT_NEAR(in[block * 32 + i], out.scale[block] * q, out.scale[block] * 0.50001f);
    }
    ASSERT_EQ(out.sums[block * 2], sums[0]);
    ASSERT_EQ(out.sums[block * 2 + 1], sums[1]);
  }
}

TEST(QuantiseBlock, RoundsTiesToEven) {
  const Activations out = block_of({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, -127});
  EXPECT_EQ(out.scale[0], 1);
  EXPECT_EQ(std::vector<int8_t>(out.q.begin(), out.q.begin() + 10),
            (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 126, -126, -127}));
}

TEST(QuantiseBlock, ZerosAndWhatIsTooSmall) {
  const float least = 0x1p-119f;
  for (const float x : {0.0f, -0.0f, std::nextafter(least, 0.0f), 1e-45f, -1e-37f}) {
    const Activations out = block_of({x, -x});
    EXPECT_EQ(out.scale[0], 0) << x;
    EXPECT_EQ(std::count(out.q.begin(), out.q.begin() + 32, 0), 32) << x;
  }
  const Activations out = block_of({least, -least, least / 2});
  EXPECT_TRUE(std::isnormal(out.scale[0]));
  EXPECT_EQ(out.q[0], 127);
  EXPECT_EQ(out.q[1], -127);
  EXPECT_EQ(out.q[2], 64);
}

TEST(QuantiseBlock, TheLargestNumbersStayNumbers) {
  const Activations out = block_of({std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 1});
  EXPECT_TRUE(std::isfinite(out.scale[0]));
  EXPECT_EQ(out.q[0], 127);
  EXPECT_EQ(out.q[1], -127);
  EXPECT_EQ(out.q[2], 0);
}

TEST(QuantiseBlock, BadNumbersStayVisible) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    const Activations out = block_of({1, 2, bad, 3});
    EXPECT_TRUE(std::isnan(out.scale[0]));
    EXPECT_EQ(std::count(out.q.begin(), out.q.begin() + 32, 0), 32);
    EXPECT_EQ((std::vector<int32_t>{out.sums[0], out.sums[1]}), std::vector<int32_t>(2, 0));
  }
}

// Rows of every kind of block: usual ones, tiny, huge, ties, zeros and bad numbers.
Array<float> mixed_rows(int64_t rows, int64_t dim) {
  Array<float> in = random_array(static_cast<size_t>(rows * dim), 7);
  std::mt19937_64 random(3);
  const float specials[] = {0.0f, kInfinity, -kInfinity, std::nanf(""), 1e-40f, 3e38f, 0x1p-119f};
  for (int64_t first = 0; first + 32 <= rows * dim; first += 32) {
    const float factor = std::ldexp(1.0f, static_cast<int>(random() % 240) - 120);
    const bool is_special = random() % 4 == 0;
    for (int64_t i = first; i < first + 32; ++i)
      in[i] = random() % 8 == 0 ? static_cast<float>(static_cast<int>(random() % 255) - 127) : in[i] * factor;
    if (is_special) in[first + static_cast<int64_t>(random() % 32)] = specials[random() % 7];
    if (random() % 16 == 0) std::fill_n(in.begin() + first, 32, 0.0f);
  }
  return in;
}

TEST_P(Quantise, AllMachinesAndTeamsGiveTheReferencesBits) {
  for (const int64_t dim : {32, 96, 576, 1056})
    for (const int32_t rows : kRowCounts)
      for (const Forms forms : kEveryForms) {
        SCOPED_TRACE(cat(rows, " rows of ", dim));
        const Array<float> in = mixed_rows(rows + 2, dim);
        const Activations expected = quantised(ref::quantise, in, dim, rows, forms, *every_exec()[0]);
        with_every_exec([&](Exec& exec) { ASSERT_EQ(quantised(quantise, in, dim, rows, forms, exec), expected); });
      }
}

// The first half is the row in 8 bits; the second is what that leaves over, in 8 bits.
TEST(QuantiseBlock, AtTwiceThePrecisionIsQuantisedTwice) {
  Exec& exec = *every_exec()[0];
  const Array<float> in = mixed_rows(3, 96);
  const Activations once = quantised(ref::quantise, in, 96, 3, {.q8 = true}, exec);
  const Activations twice = quantised(ref::quantise, in, 96, 3, {.q8x2 = true}, exec);
  Array<float> rest = in;
  for (size_t i = 0; i < rest.size(); ++i)
    rest[i] -= once.scale[i / 32] * static_cast<float>(once.q[i / 96 * 128 + i % 96]);
  const Activations of_rest = quantised(ref::quantise, rest, 96, 3, {.q8 = true}, exec);
  const auto same = [](const auto& all, size_t at, const auto& part, size_t from, size_t count) {
    return std::memcmp(&all[at], &part[from], count * sizeof(all[0])) == 0;
  };
  for (size_t row = 0; row < 3; ++row)
    for (const size_t half : {0, 1}) {
      const Activations& expected = half ? of_rest : once;
      EXPECT_TRUE(same(twice.q, (2 * row + half) * 128, expected.q, row * 128, 96)) << row << ", " << half;
      EXPECT_TRUE(same(twice.scale, (2 * row + half) * 3, expected.scale, row * 3, 3)) << row << ", " << half;
      EXPECT_TRUE(same(twice.sums, (2 * row + half) * 6, expected.sums, row * 6, 6)) << row << ", " << half;
    }
}

TEST_P(Quantise, AnyWidthInF32) {
  with_every_exec([](Exec& exec) {
    for (const int64_t dim : {1, 45, 2051}) {
      const Array<float> in = random_array(static_cast<size_t>(3 * dim), 1);
      EXPECT_EQ(quantised(quantise, in, dim, 3, {.f32 = true}, exec).f32, in);
    }
  });
}

TEST_P(Quantise, FillsBf16OnAGpuAlone) {
  if (!is_gpu()) {
    const Array<float> in(32);
    return expect_refused([&] { quantised(quantise, in, 32, 1, {.f32 = true, .bf16 = true}, any_exec()); },
                          "into bf16 rows, which cpu does not fill");
  }
  for (const int64_t dim : {1, 45, 96, 576}) {
    const Array<float> in = mixed_rows(5, dim);
    const Activations out = quantised(quantise, in, dim, 4, {.bf16 = true}, gpu());
    const Activations both = quantised(quantise, in, dim, 4, {.f32 = true, .bf16 = true}, gpu());
    EXPECT_TRUE(same_bits(out.bf16, both.bf16));
    for (int64_t i = 0; i < 4 * dim; ++i) {
      const uint16_t expected = to_bf16(in[i]).bits;
      if (std::isnan(in[i]))
        ASSERT_TRUE(std::isnan(to_float(bf16{out.bf16[i]})));
      else
        ASSERT_EQ(out.bf16[i], expected) << in[i];
    }
    EXPECT_EQ(std::count(out.bf16.begin() + 4 * dim, out.bf16.end(), 0x5a5a), dim);
    EXPECT_TRUE(same_bits(out.f32, Activations(5, dim, {}).f32)) << "not asked for";
  }
}

// Rows that lie apart, at odd addresses, are read number by number.
TEST_P(Quantise, RowsOfAnyStride) {
  with_every_exec([](Exec& exec) {
    const Array<float> in = mixed_rows(4, 99);
    Array<float> dense;
    for (int64_t row = 0; row < 3; ++row) dense.insert(dense.end(), &in[1 + row * 97], &in[1 + row * 97] + 96);
    Activations out(3, 96, {.q8x2 = true});
    const Array<int32_t> live = {3};
    quantise({.in = {in.data() + 1, 3, 96, 97}, .out = out.view(), .live_rows = live.data()}, exec);
    exec.wait();
    EXPECT_EQ(out, quantised(ref::quantise, dense, 96, 3, {.q8x2 = true}, *every_exec()[0]));
  });
}

TEST_P(Quantise, LiveRowsAreReadWhenItRuns) {
  const Array<float> in = random_array(64 * 96, 5);
  Array<int32_t> live = {1};
  Activations out(64, 96, {.q8 = true});
  Recording recording(any_exec(), [&] {
    quantise({.in = {in.data(), 64, 96, 96}, .out = out.view(), .live_rows = live.data()}, any_exec());
  });
  EXPECT_EQ(out, Activations(64, 96, {.q8 = true})) << "recording must not run";
  for (const int32_t now : {0, 3, 64}) {
    live[0] = now;
    recording.replay();
    EXPECT_EQ(out, quantised(ref::quantise, in, 96, now, {.q8 = true}, *every_exec()[0])) << now;
  }
}

TEST(Quantise, RefusesAtTheDoor) {
  Exec exec(ExecOptions{.threads = 1});
  const std::vector<float> in(200);
  int32_t live = 2;
  Activations out(2, 96, {.q8 = true}), narrow(2, 64, {.q8 = true}), odd(2, 48, {.q8 = true});
  const auto refused = [&](QuantiseArgs args, const char* part) {
    expect_refused([&] { quantise(args, exec); }, part);
    expect_refused([&] { ref::quantise(args, exec); }, part);
  };
  const Rows<const float> rows{in.data(), 2, 96, 96};
  refused({rows, narrow.view(), &live}, "from rows of 96 to rows of 64");
  refused({{in.data(), 2, 48, 48}, odd.view(), &live}, "no whole blocks");
  refused({{in.data(), 2, 96, 95}, out.view(), &live}, "stride 95");
  refused({rows, out.view(), nullptr}, "live row count");
  live = 3;
  refused({rows, out.view(), &live}, "3 live rows in room for 2");
  live = 2;
  ActivationRows none = out.view(), both = out.view();
  none.forms = {};
  refused({rows, none, &live}, "no form");
  both.forms = {.q8 = true, .q8x2 = true};
  refused({rows, both, &live}, "into q8 and q8x2");
  EXPECT_EQ(out, Activations(2, 96, {.q8 = true}));
}

}  // namespace
}  // namespace quire::ops
