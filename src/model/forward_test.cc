// A row's logits depend on its own text alone, bit for bit. What they are is compared with Hugging Face's numbers by
// tests/end_to_end/test_model.py.
#include "model/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/testing/expect_refused.h"
#include "model/testing.h"

namespace quire::model {
namespace {

using testing::Requests;
using testing::TinyFile;
using testing::TinyModel;
using Logits = Requests::Logits;

constexpr int32_t kTokens = 90;

void append(Logits& all, const Logits& more) { all.insert(all.end(), more.begin(), more.end()); }

// The whole text in chunks of the given sizes, the last as often as it takes.
Logits in_chunks(Requests& requests, int32_t id, std::span<const int32_t> ids, const std::vector<int32_t>& sizes) {
  Logits all;
  for (size_t begin = 0, i = 0; begin < ids.size(); ++i) {
    const size_t size = std::min<size_t>(sizes[std::min(i, sizes.size() - 1)], ids.size() - begin);
    append(all, requests.extend(id, ids.subspan(begin, size)));
    begin += size;
  }
  return all;
}

void expect_numbers(const Logits& logits, size_t rows) {
  ASSERT_EQ(logits.size(), rows);
  for (const std::vector<float>& row : logits)
    for (const float value : row) ASSERT_TRUE(std::isfinite(value));
  EXPECT_NE(logits.front(), logits.back());
}

struct Case {
  const char* name;
  TinyModel tiny;
  Dtype kv_type = Dtype::f32;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"llama_f32", {}},
    {"llama_f16_tied", {.type = BlockType::f16, .tied = true}},
    {"llama_bf16_in_bf16", {.head_dim = 32, .type = BlockType::bf16}, Dtype::bf16},
    {"llama_q4_1_in_bf16", {.head_dim = 32, .type = BlockType::q4_1}, Dtype::bf16},
    {"llama_q8_0_in_f16", {.type = BlockType::q8_0}, Dtype::f16},
    {"llama_q4_k",
     {.layers = 2, .width = 256, .ffn_width = 256, .heads = 8, .kv_heads = 2, .head_dim = 32, .type = BlockType::q4_k}},
    {"llama_q6_k_in_fp8",
     {.layers = 2, .width = 256, .ffn_width = 256, .heads = 8, .kv_heads = 2, .head_dim = 32, .type = BlockType::q6_k},
     Dtype::f8e4m3},
    {"windowed", {.window = 20}},
    {"qwen2", {.architecture = "qwen2"}},
    {"qwen3", {.architecture = "qwen3", .head_dim = 32}},
    {"smollm3", {.architecture = "smollm3", .layers = 5}},
    {"olmo2", {.architecture = "olmo2"}},
    {"olmo2_q8_0_in_bf16", {.architecture = "olmo2", .type = BlockType::q8_0}, Dtype::bf16},
    {"granite", {.architecture = "granite", .tied = true}},
};

class ForwardTest : public ::testing::TestWithParam<Case> {
 protected:
  ForwardTest() : model_(TinyFile(GetParam().tiny).path(), exec_) {}

  Requests requests(Exec& exec, int32_t page_size = 16) {
    return {model_, exec, {.page_size = page_size, .kv_type = GetParam().kv_type}};
  }
  Logits whole(std::span<const int32_t> ids) { return requests(exec_).extend(0, ids); }

  Exec exec_{{.threads = 2}};
  Model model_;
  std::vector<int32_t> ids_ = testing::random_ids(kTokens, 320, 5);
};

INSTANTIATE_TEST_SUITE_P(Models, ForwardTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ForwardTest, ChunksDoNotShow) {
  const Logits expected = whole(ids_);
  expect_numbers(expected, kTokens);
  const std::vector<std::vector<int32_t>> chunkings = {{1}, {7}, {64}, {30, 1, 1, 40}};
  for (const std::vector<int32_t>& sizes : chunkings) {
    Requests fresh = requests(exec_);
    EXPECT_TRUE(in_chunks(fresh, 0, ids_, sizes) == expected) << "chunks of " << sizes.front();
  }
}

TEST_P(ForwardTest, DecodingIsExtendingByOne) {
  const Logits expected = whole(ids_);
  Requests eager = requests(exec_), recorded = requests(exec_);
  const auto prompt = std::span(ids_).first(40);
  Logits from_eager = eager.extend(0, prompt), from_recorded = recorded.extend(0, prompt);
  for (int32_t i = 40; i < kTokens; ++i) {
    const Requests::Chunk one{0, {ids_[i]}};
    append(from_eager, eager.decode({&one, 1}));
    append(from_recorded, recorded.decode_recorded({&one, 1}));
  }
  EXPECT_TRUE(from_eager == expected);
  EXPECT_TRUE(from_recorded == expected);
}

TEST_P(ForwardTest, NeighboursDoNotShow) {
  const std::vector<int32_t> other = testing::random_ids(60, 320, 6);
  const Logits expected = whole(ids_), expected_other = whole(other);
  Requests both = requests(exec_);
  Logits first, second;
  const auto step = [&](const Logits& rows, int32_t other_rows) {  // the other request stands first
    second.insert(second.end(), rows.begin(), rows.begin() + other_rows);
    first.insert(first.end(), rows.begin() + other_rows, rows.end());
  };
  const std::vector<Requests::Chunk> prompts = {{7, {other.begin(), other.begin() + 33}},
                                                {3, {ids_.begin(), ids_.begin() + 50}}};
  step(both.extend(prompts), 33);
  for (int32_t i = 0; i < 20; ++i) {
    const std::vector<Requests::Chunk> tokens = {{7, {other[33 + i]}}, {3, {ids_[50 + i]}}};
    step(i % 2 ? both.decode_recorded(tokens) : both.decode(tokens), 1);
  }
  EXPECT_TRUE(std::equal(first.begin(), first.end(), expected.begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), expected_other.begin()));
}

TEST_P(ForwardTest, ThreadsAndPagesDoNotShow) {
  const Logits expected = whole(ids_);
  for (const int threads : {1, 3})
    for (const int32_t page_size : {1, 64}) {
      Exec exec({.threads = threads});
      EXPECT_TRUE(requests(exec, page_size).extend(0, ids_) == expected)
          << threads << " threads, pages of " << page_size;
    }
}

// Instruction sets round differently, so they agree up to a tolerance.
TEST_P(ForwardTest, InstructionSetsAgree) {
  const Logits expected = whole(ids_);
  for (const Isa isa : available_isas()) {
    Exec exec({.threads = 2, .isa = isa});
    const Model packed_for_it(TinyFile(GetParam().tiny).path(), exec);
    const Logits got = Requests(packed_for_it, exec, {.kv_type = GetParam().kv_type}).extend(0, ids_);
    double worst = 0;
    for (size_t row = 0; row < expected.size(); ++row)
      for (size_t i = 0; i < expected[row].size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(expected[row][i]) - got[row][i]));
    RecordProperty(cat("worst_", to_string(isa)), std::to_string(worst));
    EXPECT_LT(worst, 0.1) << to_string(isa);
  }
}

TEST(Forward, AWindowHidesWhatCameBefore) {
  Exec exec({.threads = 1});
  TinyModel tiny{.layers = 1, .window = 20};
  const Model windowed(TinyFile(tiny).path(), exec);
  tiny.window = 0;
  const Model open(TinyFile(tiny).path(), exec);
  const std::vector<int32_t> ids = testing::random_ids(40, 320, 1);
  std::vector<int32_t> other = ids;
  other[5] = (other[5] + 1) % 320;
  const auto last = [&](const Model& model, std::span<const int32_t> text) {
    return Requests(model, exec, {}).extend(0, text).back();
  };
  EXPECT_TRUE(last(windowed, ids) == last(windowed, other)) << "one layer sees 20 tokens, the changed one is 35 back";
  EXPECT_FALSE(last(open, ids) == last(open, other));
}

TEST(Forward, RefusesWhatIsNotTheModels) {
  Exec exec({.threads = 1});
  const Model model(TinyFile({}).path(), exec);
  kv::PagePool pool(8, PageSize(16));
  kv::RequestTable table(pool, 2, 64);
  attn::Limits limits = attention_limits(model.config(), {.batch = 8, .context = 64, .page_size = PageSize(16)});
  expect_refused([&] { Forward(model, limits, Dtype::f32); }, "a step of up to 0 rows");
  limits.query_rows = limits.wanted_rows = 4;
  const Forward forward(model, limits, Dtype::f32);
  const attn::MetadataArena arena(limits);
  const attn::StepInputBuffers inputs(limits);
  inputs.live() = inputs.query_rows() = inputs.wanted_count() = inputs.logits_count() = 0;
  kv::KvLayout layout{.layers = 3,
                      .pages = 8,
                      .page_size = PageSize(16),
                      .type = Dtype::f32,
                      .kv_heads = 2,
                      .key_dim = 16,
                      .value_dim = 16};
  const kv::KvStore store(layout);
  const auto run = [&](attn::Mode mode, int32_t rows, const kv::KvStore& with) {
    forward.run({.mode = mode, .captured = 4, .query_rows = rows, .table = table.view()}, inputs.inputs(), arena, with,
                exec);
  };
  EXPECT_NO_THROW(run(attn::Mode::decode, 4, store));
  expect_refused([&] { run(attn::Mode::decode, 5, store); }, "a step of 5 rows, up to 4");
  expect_refused([&] { run(attn::Mode::verify, 1, store); }, "verify");
  expect_refused([&] { run(attn::Mode::extend, 5, store); }, "a step of 5 rows, up to 4");
  inputs.query_rows() = 2;
  expect_refused([&] { run(attn::Mode::extend, 1, store); }, "embed of 2 live rows in room for 1");
  inputs.query_rows() = 0;
  inputs.wanted_count() = 5;
  expect_refused([&] { run(attn::Mode::extend, 1, store); }, "gather_rows of 5 live rows in room for 1");
  inputs.wanted_count() = 0;
  layout.type = Dtype::bf16;
  const kv::KvStore narrow(layout);
  expect_refused([&] { run(attn::Mode::decode, 4, narrow); }, "the store is not made for keys and values in f32");
}

}  // namespace
}  // namespace quire::model
