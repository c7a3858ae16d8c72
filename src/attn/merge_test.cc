#include "attn/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <vector>

#include "attn/testing/case.h"
#include "base/cuda.h"

namespace quire::attn::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One part's rows and their log-sum-exp.
struct Part {
  std::vector<float> storage;  // of the type, 4 bytes an element whatever it is
  std::vector<float> lse;      // [heads, rows]
};

struct Shape3 {
  int64_t rows;
  int32_t heads;
  int32_t dim;
  Dtype type;

  int64_t elements() const { return rows * heads * dim; }
};

template <class Byte, class Float>
BasicHeadRows<Byte> view(Float* storage, const Shape3& shape) {
  return {.data = reinterpret_cast<Byte*>(storage),
          .type = shape.type,
          .rows = shape.rows,
          .heads = shape.heads,
          .dim = shape.dim,
          .row_stride = int64_t{shape.heads} * shape.dim};
}

Part random_part(const Shape3& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  Part part{std::vector<float>(shape.elements()), std::vector<float>(shape.rows * shape.heads)};
  for (int64_t i = 0; i < shape.elements(); ++i) store_element(shape.type, part.storage.data(), i, uniform(random));
  for (float& lse : part.lse) lse = 4 * uniform(random);
  return part;
}

Part empty_part(const Shape3& shape) {
  return {std::vector<float>(shape.elements(), std::nanf("")),
          std::vector<float>(shape.rows * shape.heads, std::nanf(""))};
}

// The arguments of a merge in memory that the GPU reaches; what was one array before is one there, too.
class PinnedMerge {
 public:
  PinnedMerge(const MergeArgs& host, const Shape3& shape)
      : host_(host), bytes_(shape.elements() * sizeof(float)), lse_bytes_(shape.rows * shape.heads * sizeof(float)) {}

  void run(Exec& exec) {
    MergeArgs args = host_;
    args.a.data = pinned(host_.a.data, bytes_);
    args.b.data = pinned(host_.b.data, bytes_);
    args.out.data = pinned(host_.out.data, bytes_);
    args.lse_a = reinterpret_cast<float*>(pinned(host_.lse_a, lse_bytes_));
    args.lse_b = reinterpret_cast<float*>(pinned(host_.lse_b, lse_bytes_));
    args.lse = reinterpret_cast<float*>(pinned(host_.lse, lse_bytes_));
    cuda::merge(args, exec);
    exec.wait();
    std::memcpy(host_.out.data, args.out.data, bytes_);
    std::memcpy(host_.lse, args.lse, lse_bytes_);
  }

 private:
  std::byte* pinned(const void* array, size_t bytes) {
    const auto [found, is_new] = copies_.try_emplace(array, bytes, Place::pinned);
    if (is_new) std::memcpy(found->second.data(), array, bytes);
    return found->second.data();
  }

  MergeArgs host_;
  size_t bytes_, lse_bytes_;
  std::map<const void*, Buffer> copies_;
};

void run_merge(MergeFn* merge_fn, const MergeArgs& args, const Shape3& shape, Exec& exec) {
  if (exec.stream())
    PinnedMerge(args, shape).run(exec);
  else
    merge_fn(args, exec);
}

Part merged(MergeFn* merge_fn, const Shape3& shape, const Part& a, const Part& b, Exec& exec) {
  Part result = empty_part(shape);
  run_merge(merge_fn,
            {.a = view<const std::byte>(a.storage.data(), shape),
             .b = view<const std::byte>(b.storage.data(), shape),
             .lse_a = a.lse.data(),
             .lse_b = b.lse.data(),
             .out = view<std::byte>(result.storage.data(), shape),
             .lse = result.lse.data()},
            shape, exec);
  return result;
}

// Half a step of the output's type, and what f32 arithmetic loses.
float tolerance_of(Dtype type) {
  return (type == Dtype::bf16 ? 0x1p-8f : type == Dtype::f16 ? 0x1p-11f : 0.0f) + 1e-5f;
}

// Straight from the definition, for one element.
double expected_element(const Shape3& shape, const Part& a, const Part& b, int64_t row, int32_t head, int32_t d) {
  const int64_t index = head * shape.rows + row;
  const double weight_a = std::isinf(a.lse[index]) ? 0 : std::exp(double{a.lse[index]});
  const double weight_b = std::isinf(b.lse[index]) ? 0 : std::exp(double{b.lse[index]});
  if (weight_a + weight_b == 0) return 0;
  const int64_t element = (row * shape.heads + head) * shape.dim + d;
  return (weight_a * load_element(shape.type, a.storage.data(), element) +
          weight_b * load_element(shape.type, b.storage.data(), element)) /
         (weight_a + weight_b);
}

double expected_lse(float a, float b) {
  const double sum = (std::isinf(a) ? 0 : std::exp(double{a})) + (std::isinf(b) ? 0 : std::exp(double{b}));
  return std::log(sum);
}

void expect_right(const Shape3& shape, const Part& a, const Part& b, const Part& got) {
  int64_t wrong = 0;
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int32_t head = 0; head < shape.heads; ++head) {
      const int64_t index = head * shape.rows + row;
      const double lse = expected_lse(a.lse[index], b.lse[index]);
      wrong += got.lse[index] != lse && !(std::abs(got.lse[index] - lse) <= 1e-5 * (1 + std::abs(lse)));
      for (int32_t d = 0; d < shape.dim; ++d) {
        const double expected = expected_element(shape, a, b, row, head, d);
        const float element = load_element(shape.type, got.storage.data(), (row * shape.heads + head) * shape.dim + d);
        wrong += !(std::abs(element - expected) <= tolerance_of(shape.type) * (1 + std::abs(expected)));
      }
    }
  EXPECT_EQ(wrong, 0);
}

struct Implementation {
  const char* name;
  MergeFn* merge;
  bool on_gpu() const { return merge == cuda::merge; }
};
void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

class Merge : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().on_gpu()) return;
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_.emplace();
    on_gpu_.emplace(ExecOptions{.threads = 1, .stream = &*stream_});
  }
  Exec& exec() { return on_gpu_ ? *on_gpu_ : team_; }

  Exec team_{{.threads = 2}};

 private:
  std::optional<quire::cuda::Stream> stream_;
  std::optional<Exec> on_gpu_;
};

TEST_P(Merge, SizesOfUpstreamsKit) {
  std::mt19937_64 random(3);
  for (const Dtype type : {Dtype::f32, Dtype::f16, Dtype::bf16})
    for (const int32_t heads : {8, 16, 32})
      for (const int32_t dim : {32, 48, 64, 96, 128, 256}) {
        const int64_t tokens = std::vector<int64_t>{256, 512, 613, 1024, 1536}[random() % 5];
        const Shape3 shape{tokens / (heads / 8) / (dim > 64 ? 4 : 1), heads, dim, type};  // the large ones, sampled
        SCOPED_TRACE(cat(shape.rows, " rows, ", heads, " heads, dim ", dim, " ", to_string(type)));
        Part a = random_part(shape, random());
        const Part b = random_part(shape, random());
        for (float& lse : a.lse)
          if (random() % 10 == 0) lse = random() % 2 ? kInfinity : -kInfinity;
        expect_right(shape, a, b, merged(GetParam().merge, shape, a, b, exec()));
        expect_right(shape, b, a, merged(GetParam().merge, shape, b, a, exec()));
      }
}

TEST_P(Merge, TwoEmptyPartsAreEmpty) {
  const Shape3 shape{5, 2, 64, Dtype::f32};
  for (const float a_lse : {kInfinity, -kInfinity})
    for (const float b_lse : {kInfinity, -kInfinity}) {
      Part a = empty_part(shape), b = empty_part(shape);  // full of NaN, which must not be read
      a.lse.assign(a.lse.size(), a_lse);
      b.lse.assign(b.lse.size(), b_lse);
      const Part result = merged(GetParam().merge, shape, a, b, exec());
      EXPECT_EQ(result.storage, std::vector<float>(shape.elements(), 0.0f));
      EXPECT_EQ(result.lse, std::vector<float>(result.lse.size(), -kInfinity));
    }
}

TEST_P(Merge, AnEmptyPartLeavesTheOtherAsItIs) {
  const Shape3 shape{40, 3, 96, Dtype::bf16};
  const Part a = random_part(shape, 1);
  Part empty = empty_part(shape);
  empty.lse.assign(empty.lse.size(), kInfinity);
  for (const Part& result :
       {merged(GetParam().merge, shape, a, empty, exec()), merged(GetParam().merge, shape, empty, a, exec())}) {
    for (int64_t i = 0; i < shape.elements(); ++i)
      ASSERT_EQ(load_element(shape.type, result.storage.data(), i), load_element(shape.type, a.storage.data(), i));
    EXPECT_EQ(result.lse, a.lse);
  }
}

TEST_P(Merge, MayWriteOverItsInputs) {
  const Shape3 shape{70, 4, 64, Dtype::f16};
  const Part a = random_part(shape, 1), b = random_part(shape, 2);
  for (const bool over_a : {true, false}) {
    Part target = over_a ? a : b;
    const Part& other = over_a ? b : a;
    run_merge(GetParam().merge,
              {.a = view<const std::byte>(over_a ? target.storage.data() : other.storage.data(), shape),
               .b = view<const std::byte>(over_a ? other.storage.data() : target.storage.data(), shape),
               .lse_a = over_a ? target.lse.data() : other.lse.data(),
               .lse_b = over_a ? other.lse.data() : target.lse.data(),
               .out = view<std::byte>(target.storage.data(), shape),
               .lse = target.lse.data()},
              shape, exec());
    expect_right(shape, a, b, target);
  }
}

// Attention over the keys of the pages [first, first + lengths) of each of the case's requests.
Part attend_pages(World& world, const Shape3& shape, const std::vector<int32_t>& first_page,
                  const std::vector<int32_t>& lengths, Exec& exec) {
  Part part = empty_part(shape);
  AttendArgs args = world.args();
  args.keys.first_page = first_page.data();
  args.keys.lengths = lengths.data();
  args.out = view<std::byte>(part.storage.data(), shape);
  args.lse = part.lse.data();
  ref::attend(args, exec);
  return part;
}

TEST_P(Merge, TwoHalvesOfTheKeysGiveAttentionOverAll) {
  const Case c{.lengths = {90, 33, 16, 5}};
  const Shape3 shape{4, c.heads, c.key_dim, Dtype::f32};
  World world(c.world());
  world.lay_out(c.step(), team_);
  write_metadata(world.shape(), world.inputs(), world.arena(), team_);
  const Part front = attend_pages(world, shape, {0, 0, 0, 0}, {48, 16, 16, 0}, team_);
  const Part back = attend_pages(world, shape, {3, 1, 1, 0}, {42, 17, 0, 5}, team_);
  const Part both = merged(GetParam().merge, shape, front, back, exec());
  const Attention whole = expected_of(c);
  for (size_t i = 0; i < whole.out.size(); ++i) ASSERT_NEAR(both.storage[i], whole.out[i], 2e-5f) << i;
  for (size_t i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(both.lse[i], whole.lse[i], 2e-5f) << i;
}

TEST_P(Merge, RefusesUnequalShapesAndNarrowTypes) {
  const Shape3 shape{4, 2, 64, Dtype::f32};
  const Part a = random_part(shape, 1);
  Part out = empty_part(shape);
  const auto expect_refused = [&](const Shape3& other, const char* part) {
    try {
      GetParam().merge({.a = view<const std::byte>(a.storage.data(), shape),
                        .b = view<const std::byte>(a.storage.data(), other),
                        .lse_a = a.lse.data(),
                        .lse_b = a.lse.data(),
                        .out = view<std::byte>(out.storage.data(), shape),
                        .lse = out.lse.data()},
                       exec());
      FAIL() << "expected a refusal with \"" << part << "\"";
    } catch (const CheckError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_TRUE(std::isnan(out.storage[0]));
  };
  expect_refused({3, 2, 64, Dtype::f32}, "f32 [3, 2, 64]");
  expect_refused({4, 1, 64, Dtype::f32}, "f32 [4, 1, 64]");
  expect_refused({4, 2, 32, Dtype::f32}, "f32 [4, 2, 32]");
  expect_refused({4, 2, 64, Dtype::f8e4m3}, "f8e4m3 [4, 2, 64]");
}

TEST(MergePick, CallersGetTheFastOne) {
  Exec exec({.threads = 1});
  const Shape3 shape{9, 2, 64, Dtype::bf16};
  const Part a = random_part(shape, 1), b = random_part(shape, 2);
  EXPECT_EQ(merged(merge, shape, a, b, exec).lse, merged(cpu::merge, shape, a, b, exec).lse);
}

const Implementation kImplementations[] = {{"ref", ref::merge}, {"cpu", cpu::merge}, {"cuda", cuda::merge}};
INSTANTIATE_TEST_SUITE_P(Implementations, Merge, ::testing::ValuesIn(kImplementations),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::attn::testing
