// What trees of drafts need on a GPU, against the same in plain words. All that a kernel may write is compared, and
// what lies beside it, which must be as it was.
#include "model/draft_branches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/cuda.h"
#include "model/draft_rows.h"

namespace quire::model {
namespace {

constexpr int32_t kUntouched = 0x5a5a5a5a;  // no number of these tests; as a float it is large and finite
constexpr float kInfinite = std::numeric_limits<float>::infinity(),
                kNotANumber = std::numeric_limits<float>::quiet_NaN();

class BranchesGpu {
 public:
  BranchesGpu() : exec_({.threads = 1, .stream = &stream_}) {}
  Exec& exec() { return exec_; }
  void copy(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes > 0) stream_.copy(to, from, bytes);
    exec_.wait();
  }

 private:
  quire::cuda::Stream stream_;
  Exec exec_;
};

// An array that the GPU reads and writes, in its own memory or in pinned memory.
template <class T>
class GpuArray {
 public:
  GpuArray(BranchesGpu& gpu, const std::vector<T>& values, Place place = Place::device)
      : gpu_(gpu), count_(values.size()), memory_(std::max<size_t>(count_, 1) * sizeof(T), place) {
    gpu_.copy(memory_.data(), reinterpret_cast<const std::byte*>(values.data()), count_ * sizeof(T));
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    gpu_.copy(reinterpret_cast<std::byte*>(values.data()), memory_.data(), count_ * sizeof(T));
    return values;
  }

 private:
  BranchesGpu& gpu_;
  size_t count_;
  Buffer memory_;
};

// Rows on the host that lie further apart than they are long; what lies between them belongs to nobody.
struct HostRows {
  int64_t dim, stride;
  std::vector<float> values;

  int64_t rows() const { return std::ssize(values) / stride; }
  const float* row(int64_t index) const { return values.data() + index * stride; }
  void put(int64_t index, const float* from) { std::copy_n(from, dim, values.begin() + index * stride); }
};

class GpuRows {
 public:
  GpuRows(BranchesGpu& gpu, const HostRows& rows) : like_(rows), memory_(gpu, rows.values) {}
  operator Rows<float>() const { return {memory_.data(), like_.rows(), like_.dim, like_.stride}; }
  operator Rows<const float>() const { return {memory_.data(), like_.rows(), like_.dim, like_.stride}; }
  std::vector<float> values() const { return memory_.values(); }

 private:
  HostRows like_;
  GpuArray<float> memory_;
};

class BranchesRandom {
 public:
  explicit BranchesRandom(uint32_t seed) : engine_(seed) {}
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(engine_); }
  float normal() { return std::normal_distribution<float>()(engine_); }
  HostRows rows(int64_t count, int64_t dim, int64_t stride) {
    HostRows made{.dim = dim, .stride = stride, .values = std::vector<float>(static_cast<size_t>(count * stride))};
    for (float& value : made.values) value = normal();
    return made;
  }
  std::vector<std::byte> bytes(int64_t count) {
    std::vector<uint32_t> words(static_cast<size_t>(count) / sizeof(uint32_t) + 1);
    for (uint32_t& word : words) word = static_cast<uint32_t>(engine_());
    const std::byte* const begin = reinterpret_cast<const std::byte*>(words.data());
    return std::vector<std::byte>(begin, begin + count);
  }
  // All of [first, first + count), in any order.
  std::vector<int32_t> shuffled(int32_t first, int32_t count) {
    std::vector<int32_t> made(static_cast<size_t>(count));
    std::iota(made.begin(), made.end(), first);
    std::ranges::shuffle(made, engine_);
    return made;
  }

 private:
  std::mt19937 engine_;
};

std::vector<PickedDraft> unsaid(int64_t count) {
  const auto word = static_cast<uint32_t>(kUntouched);
  return std::vector<PickedDraft>(static_cast<size_t>(count),
                                  {kUntouched, word, std::bit_cast<float>(kUntouched), word});
}

std::vector<int32_t> untouched(int64_t count) { return std::vector<int32_t>(static_cast<size_t>(count), kUntouched); }

std::vector<float> untouched_floats(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::bit_cast<float>(kUntouched));
}

void expect_said(const std::vector<PickedDraft>& got, const std::vector<PickedDraft>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token) << "draft " << i;
    EXPECT_EQ(got[i].token_number, expected[i].token_number) << "draft " << i;
    EXPECT_EQ(got[i].hit, expected[i].hit) << "draft " << i;
    EXPECT_EQ(got[i].hit_number, expected[i].hit_number) << "draft " << i;
  }
}

// --- the path that was walked

constexpr int32_t kPathShares = 7, kPathTokens = 200;  // that each has room for

struct KeptStore {
  const char* name;
  Dtype type;
  int32_t layers, kv_heads, key_dim, value_dim;
  bool latent = false;
};

constexpr KeptStore kKeptStores[] = {
    {"bf16, a thread has one piece", Dtype::bf16, 3, 2, 64, 64},
    {"bf16, a thread has several", Dtype::bf16, 2, 8, 192, 128},
    {"bf16, keys of 6 bytes and values of 10", Dtype::bf16, 3, 1, 3, 5},
    {"bf16, keys of 24 bytes and values of 8", Dtype::bf16, 2, 1, 12, 4},
    {"f8, keys of 48 bytes and values of 15", Dtype::f8e4m3, 3, 3, 16, 5},
    {"f8, keys of 141 bytes and values of 16", Dtype::f8e4m3, 2, 1, 141, 16},
    {"f8, one layer", Dtype::f8e4m3, 1, 2, 128, 64},
    {"latent bf16", Dtype::bf16, 2, 1, 576, 512, true},
    {"latent f8, keys of 7 bytes", Dtype::f8e4m3, 3, 1, 7, 4, true},
};

// Shares of which the last do not live: what they say is as good, and must not be done.
struct PathCase {
  PathCase(PageSize of, uint32_t seed) : page_size(of), random(seed), width(of.pages_for(kPathTokens)) {
    const int32_t table_rows = kPathShares + 1;
    pages = random.shuffled(1, table_rows * width);
    const std::vector<int32_t> request_rows = random.shuffled(0, table_rows);
    rows.assign(request_rows.begin(), request_rows.begin() + kPathShares);
    path_rows = untouched(kPathShares * (1 + kMostTreeDrafts));
    for (int32_t b = 0; b < kPathShares; ++b) add_path(b);
    live = random.below(kPathShares);
  }

  int32_t node(int32_t b, int32_t i) const { return path_rows[b * (1 + kMostTreeDrafts) + i]; }
  int32_t slot(int32_t b, int32_t node) const {
    const int32_t position = paths[b].position + node, tokens = page_size.tokens();
    return pages[rows[b] * width + position / tokens] * tokens + position % tokens;
  }
  int32_t store_pages() const { return 1 + static_cast<int32_t>(pages.size()); }

  PageSize page_size;
  BranchesRandom random;
  int32_t width, live = 0, step_rows = 0;
  std::vector<int32_t> pages, rows, path_rows;  // pages: [rows of the table, width], each of one request
  std::vector<WalkedPath> paths = {};

 private:
  void add_path(int32_t b) {
    const bool is_tree = b % 3 != 1;
    const int32_t drafts = random.below(4) == 0 ? kMostTreeDrafts : 1 + random.below(kMostTreeDrafts);
    const int32_t text = random.below(20);  // rows of others, and of its text
    const int32_t came = !is_tree ? 0 : random.below(4) == 0 ? drafts : random.below(drafts + 1);
    std::vector<int32_t> nodes = random.shuffled(1, drafts);
    nodes.resize(static_cast<size_t>(came));
    std::ranges::sort(nodes);
    nodes.insert(nodes.begin(), 0);
    if (is_tree) std::ranges::copy(nodes, path_rows.begin() + b * (1 + kMostTreeDrafts));
    paths.push_back({.nodes = 1 + came,
                     .position = random.below(kPathTokens - kMostTreeDrafts),
                     .first_row = step_rows + text,
                     .unused = kUntouched});
    step_rows += text + 1 + drafts;
  }
};

// Bytes of a store from its first layer's keys to its last layer's values, or keys.
int64_t bytes_of(const kv::KvStore& store) {
  const kv::LayerKv last = store.layer(store.layout().layers - 1);
  return last.values - store.layer(0).keys + last.slots * last.value_stride * size_of(last.type);
}

std::vector<std::byte> moved_along_paths(const PathCase& given, const kv::KvStore& store,
                                         const std::vector<std::byte>& before) {
  std::vector<std::byte> after = before;
  const auto move = [&](const std::byte* array, int64_t bytes, int32_t from, int32_t to) {
    const int64_t begin = array - store.layer(0).keys;
    std::copy_n(before.begin() + begin + from * bytes, bytes, after.begin() + begin + to * bytes);
  };
  for (int32_t index = 0; index < store.layout().layers; ++index) {
    const kv::LayerKv layer = store.layer(index);
    for (int32_t b = 0; b < given.live; ++b)
      for (int32_t i = 1; i < given.paths[b].nodes; ++i) {
        const int32_t from = given.slot(b, given.node(b, i)), to = given.slot(b, i);
        move(layer.keys, layer.key_stride * size_of(layer.type), from, to);
        move(layer.values, layer.value_stride * size_of(layer.type), from, to);
      }
  }
  return after;
}

HostRows kept_along_paths(const PathCase& given, const HostRows& features, int64_t first_page, HostRows kept) {
  const int32_t tokens = given.page_size.tokens();
  for (int32_t b = 0; b < given.live; ++b)
    for (int32_t i = 0; given.paths[b].nodes > 1 && i < given.paths[b].nodes; ++i)
      if (given.slot(b, i) % tokens == tokens - 1)
        kept.put(first_page + given.slot(b, i) / tokens, features.row(given.paths[b].first_row + given.node(b, i)));
  return kept;
}

void expect_path_kept(BranchesGpu& gpu, const KeptStore& kind, PageSize page_size, uint32_t seed) {
  PathCase given(page_size, seed);
  const kv::KvStore store({.layers = kind.layers,
                           .pages = given.store_pages(),
                           .page_size = page_size,
                           .type = kind.type,
                           .kv_heads = kind.kv_heads,
                           .key_dim = kind.key_dim,
                           .value_dim = kind.value_dim,
                           .latent = kind.latent},
                          Place::device);
  const kv::LayerKv first = store.layer(0);
  const std::vector<std::byte> before = given.random.bytes(bytes_of(store));
  gpu.copy(first.keys, before.data(), before.size());
  const int64_t first_page = 5;
  const HostRows features = given.random.rows(given.step_rows, 133, 140);
  const HostRows kept = given.random.rows(first_page + given.store_pages(), 133, 137);
  const GpuRows features_there(gpu, features), kept_there(gpu, kept);
  const GpuArray<int32_t> live(gpu, {given.live}), rows(gpu, given.rows), path_rows(gpu, given.path_rows);
  const GpuArray<int32_t> pages(gpu, given.pages);
  const GpuArray<WalkedPath> paths(gpu, given.paths);
  cuda::keep_path({.live = live.data(),
                   .captured = kPathShares,
                   .rows = reinterpret_cast<const RequestRow*>(rows.data()),
                   .paths = paths.data(),
                   .path_rows = path_rows.data(),
                   .table = {.pages = reinterpret_cast<const PageId*>(pages.data()),
                             .stride = given.width,
                             .rows = kPathShares + 1,
                             .width = given.width,
                             .page_size = page_size,
                             .pool_pages = given.store_pages()},
                   .first_layer = first,
                   .layer_bytes = kind.layers > 1 ? store.layer(1).keys - first.keys : 0,
                   .layers = kind.layers,
                   .features = features_there,
                   .first_page = first_page,
                   .kept = kept_there},
                  gpu.exec());
  std::vector<std::byte> after(before.size());
  gpu.exec().wait();
  gpu.copy(after.data(), first.keys, after.size());
  const std::vector<std::byte> expected = moved_along_paths(given, store, before);
  const auto wrong = std::ranges::mismatch(after, expected).in1 - after.begin();
  EXPECT_EQ(wrong, std::ssize(after)) << "the first wrong byte of the store";
  EXPECT_EQ(kept_there.values(), kept_along_paths(given, features, first_page, kept).values);
}

TEST(KeepPath, MovesWhatCameAndNothingElse) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  BranchesGpu gpu;
  for (const KeptStore& kind : kKeptStores)
    for (const int32_t page_size : {1, 16, 128})
      for (uint32_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(cat(kind.name, ", page size ", page_size, ", seed ", seed));
        expect_path_kept(gpu, kind, PageSize(page_size), seed);
        if (::testing::Test::HasFailure()) return;
      }
}

// --- the next branches

struct GrowCase {
  int32_t captured, live, topk;
  uint32_t number;
  std::vector<int32_t> said;
  std::vector<float> hits, paths;
  HostRows states;
};

// Few chances, of which products are exact: many paths are equal, and many are 0.
GrowCase random_branches(int32_t topk, bool has_ties, BranchesRandom& random) {
  constexpr int32_t kCaptured = 6, kStateWidth = 300, kStride = 303;
  constexpr float kChances[] = {0, 0.25f, 0.5f, 1};
  const auto chance = [&] { return has_ties ? kChances[random.below(4)] : std::abs(random.normal()); };
  GrowCase made{.captured = kCaptured,
                .live = random.below(kCaptured),
                .topk = topk,
                .number = 0x80000000u + static_cast<uint32_t>(random.below(1000)),
                .said = {},
                .hits = {},
                .paths = {},
                .states = random.rows(kCaptured * topk, kStateWidth, kStride)};
  for (int32_t i = 0; i < kCaptured * topk; ++i) made.paths.push_back(chance());
  for (int32_t i = 0; i < kCaptured * topk * topk; ++i) {
    made.said.push_back(random.below(100000));
    made.hits.push_back(chance());
  }
  return made;
}

struct Grown {
  std::vector<int32_t> tokens, parents;
  std::vector<float> paths;
  std::vector<PickedDraft> followed;
  HostRows states;
};

Grown expected_growth(const GrowCase& given, HostRows states_out) {
  const int32_t topk = given.topk, branches = given.captured * topk;
  Grown grown{.tokens = untouched(branches),
              .parents = untouched(branches),
              .paths = given.paths,
              .followed = unsaid(branches),
              .states = std::move(states_out)};
  for (int32_t b = 0; b < given.live; ++b) {
    const int32_t first_branch = b * topk, first_said = b * topk * topk;
    std::vector<float> paths;
    for (int32_t i = 0; i < topk * topk; ++i)
      paths.push_back(given.paths[first_branch + i / topk] * given.hits[first_said + i]);
    std::vector<int32_t> order(paths.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t one, int32_t other) { return paths[one] > paths[other]; });
    for (int32_t k = 0; k < topk; ++k) {
      const int32_t chosen = order[k], branch = first_branch + k;
      grown.tokens[branch] = given.said[first_said + chosen];
      grown.parents[branch] = chosen / topk;
      grown.paths[branch] = paths[chosen];
      grown.followed[branch] = {chosen, given.number, paths[chosen], given.number};
      grown.states.put(branch, given.states.row(first_branch + chosen / topk));
    }
  }
  return grown;
}

void expect_grown(BranchesGpu& gpu, const GrowCase& given, bool in_place, BranchesRandom& random) {
  const int32_t branches = given.captured * given.topk;
  const HostRows other = random.rows(branches, given.states.dim, given.states.dim + 1);
  const GpuRows states(gpu, given.states), others(gpu, other);
  const GpuRows& states_out = in_place ? states : others;
  const GpuArray<int32_t> live(gpu, {given.live}), said(gpu, given.said);
  const GpuArray<int32_t> tokens(gpu, untouched(branches)), parents(gpu, untouched(branches));
  const GpuArray<uint32_t> number(gpu, {given.number});
  const GpuArray<float> hits(gpu, given.hits), paths(gpu, given.paths);
  const GpuArray<PickedDraft> followed(gpu, unsaid(branches), Place::pinned);
  cuda::grow({.live = live.data(),
              .captured = given.captured,
              .topk = given.topk,
              .said = said.data(),
              .hits = hits.data(),
              .paths = paths.data(),
              .states = states,
              .states_out = states_out,
              .tokens = tokens.data(),
              .parents = parents.data(),
              .number = number.data(),
              .followed = followed.data()},
             gpu.exec());
  gpu.exec().wait();
  const Grown expected = expected_growth(given, in_place ? given.states : other);
  EXPECT_EQ(tokens.values(), expected.tokens);
  EXPECT_EQ(parents.values(), expected.parents);
  EXPECT_EQ(paths.values(), expected.paths);
  expect_said(followed.values(), expected.followed);
  EXPECT_EQ(states_out.values(), expected.states.values);
  EXPECT_EQ(states.values(), in_place ? expected.states.values : given.states.values);
  EXPECT_EQ(said.values(), given.said);
  EXPECT_EQ(hits.values(), given.hits);
}

TEST(GrowBranches, FollowsTheLikeliestPaths) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  BranchesGpu gpu;
  for (const int32_t topk : {1, 2, 3, 4, 8, 16})
    for (const bool has_ties : {false, true})
      for (const bool in_place : {false, true})
        for (uint32_t seed = 0; seed < 4; ++seed) {
          SCOPED_TRACE(cat("topk ", topk, has_ties ? ", ties" : "", in_place ? ", in place" : "", ", seed ", seed));
          BranchesRandom random(seed);
          const GrowCase given = random_branches(topk, has_ties, random);
          expect_grown(gpu, given, in_place, random);
        }
}

TEST(GrowBranches, FollowsTheFirstWhereAllAreEqual) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  BranchesGpu gpu;
  for (const float chance : {0.0f, 0.5f}) {
    SCOPED_TRACE(cat("chances of ", chance));
    BranchesRandom random(1);
    GrowCase given = random_branches(4, true, random);
    given.live = given.captured - 1;
    std::ranges::fill(given.hits, chance);
    std::ranges::fill(given.paths, chance);
    const Grown expected = expected_growth(given, given.states);
    for (int32_t k = 0; k < given.topk; ++k) EXPECT_EQ(expected.followed[k].token, k);
    expect_grown(gpu, given, true, random);
  }
}

// --- the likeliest tokens

struct PickCase {
  int32_t live, topk;
  uint32_t number;
  HostRows logits, states;
  std::vector<int32_t> token_ids;
};

// Rows of every kind, one after the other.
void fill_logits(HostRows& logits, int32_t topk, BranchesRandom& random) {
  const auto vocabulary = static_cast<int32_t>(logits.dim);
  for (int64_t row = 0; row < logits.rows(); ++row) {
    float* const begin = logits.values.data() + row * logits.stride;
    const std::span<float> values(begin, static_cast<size_t>(vocabulary));
    for (float& value : values) value = 3 * random.normal();
    const int64_t kind = row % 8;
    if (kind == 1)  // few values: many are equal
      for (float& value : values) value = static_cast<float>(random.below(3));
    if (kind == 2) std::ranges::fill(values, -7.5f);
    if (kind == 3) values[random.below(vocabulary)] = kNotANumber;
    if (kind == 4) values[random.below(vocabulary)] = kInfinite;
    if (kind == 5) {  // fewer than topk are above -infinity
      std::ranges::fill(values, -kInfinite);
      for (int32_t i = 0; i < topk - 1; ++i) values[random.below(vocabulary)] = random.normal();
    }
    if (kind == 6) std::ranges::fill(values, -kInfinite);
    if (kind == 7)  // the likeliest are the last
      for (int32_t i = std::max(0, vocabulary - topk); i < vocabulary; ++i) values[i] = 20 + random.normal();
  }
}

PickCase random_logits(int32_t vocabulary, int32_t padding, int32_t topk, BranchesRandom& random) {
  constexpr int32_t kPickedRows = 19, kStateWidth = 1100;  // more columns than a block has threads
  PickCase made{.live = kPickedRows - 2,
                .topk = topk,
                .number = 0x90000000u + static_cast<uint32_t>(random.below(1000)),
                .logits = random.rows(kPickedRows, vocabulary, vocabulary + padding),
                .states = random.rows(kPickedRows, kStateWidth, kStateWidth + 3),
                .token_ids = random.shuffled(1000, vocabulary)};
  fill_logits(made.logits, topk, random);
  return made;
}

struct Picks {
  std::vector<int32_t> tokens;
  std::vector<float> hits;
};

Picks expected_picks(const PickCase& given) {
  const auto rows = static_cast<int32_t>(given.logits.rows()), vocabulary = static_cast<int32_t>(given.logits.dim);
  Picks picks{.tokens = untouched(rows * given.topk), .hits = untouched_floats(rows * given.topk)};
  for (int32_t row = 0; row < given.live; ++row) {
    const std::span<const float> logits(given.logits.row(row), static_cast<size_t>(vocabulary));
    const bool sound = std::ranges::none_of(logits, [](float x) { return std::isnan(x) || x == kInfinite; });
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    if (sound) std::ranges::stable_sort(order, [&](int32_t one, int32_t other) { return logits[one] > logits[other]; });
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - logits[order[0]]);
    for (int32_t k = 0; k < given.topk; ++k) {
      const float logit = logits[order[k]];
      const bool says = sound && logit > -kInfinite;
      picks.tokens[row * given.topk + k] = given.token_ids[says ? order[k] : 0];
      picks.hits[row * given.topk + k] =
          says ? static_cast<float>(std::exp(static_cast<double>(logit) - logits[order[0]]) / sum) : 0;
    }
  }
  return picks;
}

void expect_near_chances(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4 * expected[i]) << "draft " << i;
}

void expect_picked(BranchesGpu& gpu, const PickCase& given, bool hands_states_on, BranchesRandom& random) {
  const int64_t rows = given.logits.rows(), drafts = rows * given.topk;
  HostRows handed_on = random.rows(drafts, given.states.dim, given.states.dim + 5);
  const GpuRows logits(gpu, given.logits), states(gpu, given.states), states_out(gpu, handed_on);
  const GpuArray<int32_t> live(gpu, {given.live}), token_ids(gpu, given.token_ids), tokens(gpu, untouched(drafts));
  const GpuArray<float> hits(gpu, untouched_floats(drafts));
  const GpuArray<uint32_t> number(gpu, {given.number});
  const GpuArray<PickedDraft> picked(gpu, unsaid(drafts), Place::pinned);
  cuda::pick({.logits = logits,
              .token_ids = token_ids.data(),
              .topk = given.topk,
              .states = states,
              .states_out = hands_states_on ? Rows<float>(states_out) : Rows<float>{nullptr, 0, 0, 0},
              .tokens = tokens.data(),
              .hits = hits.data(),
              .number = number.data(),
              .picked = picked.data(),
              .live = live.data()},
             gpu.exec());
  gpu.exec().wait();
  const Picks expected = expected_picks(given);
  EXPECT_EQ(tokens.values(), expected.tokens);
  const std::vector<float> got_hits = hits.values();
  expect_near_chances(got_hits, expected.hits);
  // Pinned memory has the same bits.
  std::vector<PickedDraft> said = unsaid(drafts);
  for (int64_t i = 0; i < int64_t{given.live} * given.topk; ++i)
    said[i] = {expected.tokens[i], given.number, got_hits[i], given.number};
  expect_said(picked.values(), said);
  for (int32_t i = 0; hands_states_on && i < given.live * given.topk; ++i)
    handed_on.put(i, given.states.row(i / given.topk));
  EXPECT_EQ(states_out.values(), handed_on.values);
}

TEST(PickDrafts, SaysTheLikeliestTokensWithTheirChances) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  BranchesGpu gpu;
  // Rows begin at multiples of 16 bytes, or do not.
  for (const auto& [vocabulary, padding] : {std::tuple{16, 0}, {19, 0}, {1000, 4}, {1000, 1}, {9004, 0}, {9003, 2}})
    for (const int32_t topk : {1, 2, 4, 16})
      for (const bool hands_states_on : {false, true}) {
        SCOPED_TRACE(cat("vocabulary ", vocabulary, ", stride ", vocabulary + padding, ", topk ", topk,
                         hands_states_on ? ", with states" : ""));
        BranchesRandom random(static_cast<uint32_t>(vocabulary + topk));
        const PickCase given = random_logits(vocabulary, padding, topk, random);
        expect_picked(gpu, given, hands_states_on, random);
      }
}

// --- positions and slots of all passes

struct LayOutCase {
  PageSize page_size;
  int32_t live, passes, captured, topk, steps;
};

void expect_laid_out(BranchesGpu& gpu, const LayOutCase& given, BranchesRandom& random) {
  constexpr int32_t kLaidOutRows = 50, kLaidOutTokens = 400, kFirstBranchSlot = 123456;
  const int32_t width = given.page_size.pages_for(kLaidOutTokens), tokens = given.page_size.tokens();
  const std::vector<int32_t> table = random.shuffled(1, kLaidOutRows * width);
  const std::vector<int32_t> request_rows = random.shuffled(0, kLaidOutRows);
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < given.captured; ++b) lengths.push_back(random.below(kLaidOutTokens - given.passes));
  const int32_t rows = given.captured * given.topk, all = given.passes * rows;
  const GpuArray<int32_t> pages(gpu, table), rows_of_table(gpu, request_rows), lengths_there(gpu, lengths);
  const GpuArray<int32_t> live(gpu, {given.live});
  // What lies behind each is compared as well.
  constexpr int32_t kBehind = 300;
  const GpuArray<int32_t> positions(gpu, untouched(all + kBehind)), slots(gpu, untouched(all + kBehind));
  const GpuArray<int32_t> draft_slots(gpu, untouched(rows * given.steps + kBehind));
  const GpuArray<int32_t> all_rows(gpu, untouched(2)), pass_rows(gpu, untouched(2));
  cuda::lay_out({.live = live.data(),
                 .rows = reinterpret_cast<const RequestRow*>(rows_of_table.data()),
                 .lengths = reinterpret_cast<const TokenCount*>(lengths_there.data()),
                 .table = {.pages = reinterpret_cast<const PageId*>(pages.data()),
                           .stride = width,
                           .rows = kLaidOutRows,
                           .width = width,
                           .page_size = given.page_size,
                           .pool_pages = kLaidOutRows * width + 1},
                 .passes = given.passes,
                 .captured = given.captured,
                 .topk = given.topk,
                 .steps = given.steps,
                 .first_branch_slot = {kFirstBranchSlot},
                 .positions = positions.data(),
                 .slots = reinterpret_cast<TokenSlot*>(slots.data()),
                 .draft_slots = reinterpret_cast<TokenSlot*>(draft_slots.data()),
                 .all_rows = all_rows.data(),
                 .pass_rows = pass_rows.data()},
                gpu.exec());
  gpu.exec().wait();
  std::vector<int32_t> expected_positions = untouched(all + kBehind), expected_slots = untouched(all + kBehind);
  std::vector<int32_t> expected_draft_slots = untouched(rows * given.steps + kBehind);
  int32_t* next_position = expected_positions.data();
  int32_t* next_slot = expected_slots.data();
  for (int32_t pass = 0; pass < given.passes; ++pass)
    for (int32_t b = 0; b < given.captured; ++b)
      for (int32_t branch = 0; branch < given.topk; ++branch) {
        const int32_t position = lengths[b] + pass, of_branch = (b * given.topk + branch) * given.steps + pass;
        const int32_t page = table[request_rows[b] * width + position / tokens];
        const int32_t slot = given.topk > 1 ? kFirstBranchSlot + of_branch : page * tokens + position % tokens;
        *next_position++ = b < given.live ? position : 0;
        *next_slot++ = b < given.live ? slot : 0;
        if (given.topk > 1) expected_draft_slots[of_branch] = b < given.live ? slot : 0;
      }
  EXPECT_EQ(positions.values(), expected_positions);
  EXPECT_EQ(slots.values(), expected_slots);
  EXPECT_EQ(draft_slots.values(), expected_draft_slots);
  EXPECT_EQ(all_rows.values(), (std::vector<int32_t>{all, kUntouched}));
  EXPECT_EQ(pass_rows.values(), (std::vector<int32_t>{given.live * given.topk, kUntouched}));
}

TEST(LayOutPasses, PutsChainsBehindTheTextAndBranchesIntoTheirOwnSlots) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  BranchesGpu gpu;
  for (const int32_t page_size : {1, 16, 128})
    for (const int32_t topk : {1, 2, 3, 16})
      for (const int32_t live : {0, 1, 20, 40})
        for (const int32_t passes : {1, 5}) {
          SCOPED_TRACE(cat("page size ", page_size, ", topk ", topk, ", live ", live, ", passes ", passes));
          BranchesRandom random(static_cast<uint32_t>(page_size + topk + live + passes));
          expect_laid_out(gpu,
                          {.page_size = PageSize(page_size),
                           .live = live,
                           .passes = passes,
                           .captured = 40,
                           .topk = topk,
                           .steps = passes + 1},
                          random);
        }
}

}  // namespace
}  // namespace quire::model
