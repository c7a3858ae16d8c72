#include "kv/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "base/cuda.h"
#include "base/testing/expect_refused.h"

namespace quire::kv {
namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Exec& two_threads() {
  static Exec exec({.threads = 2});
  return exec;
}

// Where the rows are stored: by the team, or by the GPU in memory that this side can read.
struct Machine {
  const char* name;
  Place place;
  bool is_gpu() const { return place == Place::pinned; }
};
void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }

class OnEachMachine : public ::testing::TestWithParam<Machine> {
 protected:
  void SetUp() override {
    if (GetParam().is_gpu() && quire::cuda::devices() == 0)
      GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
  Place place() const { return GetParam().place; }
  Exec& exec() const {
    if (!GetParam().is_gpu()) return two_threads();
    static quire::cuda::Stream stream;
    static Exec exec({.threads = 1, .stream = &stream});
    return exec;
  }
};
class StoreRows : public OnEachMachine {};
class CopySlots : public OnEachMachine {};

const auto kMachines = ::testing::Values(Machine{"cpu", Place::host}, Machine{"cuda", Place::pinned});
const auto machine_name = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Machines, StoreRows, kMachines, machine_name);
INSTANTIATE_TEST_SUITE_P(Machines, CopySlots, kMachines, machine_name);

KvLayout small_layout(Dtype type = Dtype::bf16) {
  return {
      .layers = 3, .pages = 6, .page_size = PageSize(16), .type = type, .kv_heads = 2, .key_dim = 6, .value_dim = 4};
}

KvLayout latent_layout(Dtype type = Dtype::bf16) {
  return {.layers = 2,
          .pages = 5,
          .page_size = PageSize(16),
          .type = type,
          .kv_heads = 1,
          .key_dim = 9,
          .value_dim = 7,
          .latent = true};
}

// New keys or values whose rows lie `gap` elements apart, full of numbers that need rounding.
struct Rows {
  Rows(Dtype type, int64_t rows, int32_t heads, int32_t dim, uint32_t seed, int64_t gap = 0)
      : bytes(static_cast<size_t>((heads * dim + gap) * rows) * size_of(type)), view{bytes.data(), type,
                                                                                     rows,         heads,
                                                                                     dim,          heads * dim + gap} {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 20);
    for (int64_t i = 0; i < std::ssize(bytes) / size_of(type); ++i)
      store_element(type, bytes.data(), i, normal(random));
  }
  void set(int64_t row, int64_t element, float value) {
    store_element(view.type, bytes.data(), row * view.row_stride + element, value);
  }

  std::vector<std::byte> bytes;
  ConstHeadRows view;
};

// All the bytes of one layer, to be compared with what they should be.
struct Snapshot {
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

Snapshot snapshot(const LayerKv& layer) {
  const auto copy = [&](const std::byte* array, int64_t stride) {
    return std::vector<std::byte>(array, array + layer.slots * stride * size_of(layer.type));
  };
  return {copy(layer.keys, layer.key_stride), copy(layer.values, layer.value_stride)};
}

void fill_with_pattern(const KvStore& store) {
  for (int32_t index = 0; index < store.layout().layers; ++index) {
    const LayerKv layer = store.layer(index);
    const int64_t key_bytes = layer.slots * layer.key_stride * size_of(layer.type);
    const int64_t value_bytes = layer.slots * layer.value_stride * size_of(layer.type);
    for (int64_t i = 0; i < key_bytes; ++i) layer.keys[i] = static_cast<std::byte>(i * 37 + index);
    for (int64_t i = 0; i < value_bytes && !layer.latent(); ++i)
      layer.values[i] = static_cast<std::byte>(i * 41 + index);
  }
}

void store_one_by_one(const ConstHeadRows& rows, int64_t row, Dtype type, float scale, std::byte* target) {
  for (int64_t i = 0; i < static_cast<int64_t>(rows.heads) * rows.dim; ++i)
    store_element(type, target, i, load_element(rows.type, rows.data, row * rows.row_stride + i) / scale);
}

// What store_rows means: the store as it was, with the live rows' slots rewritten element by element.
Snapshot expected_after(Snapshot before, const StoreArgs& args) {
  const LayerKv& layer = args.layer;
  for (int32_t row = 0; row < *args.live_rows; ++row) {
    const int64_t slot = args.slots[row].value;
    std::byte* key = before.keys.data() + slot * layer.key_stride * size_of(layer.type);
    store_one_by_one(args.keys, row, layer.type, layer.key_scale, key);
    if (layer.latent()) continue;
    std::byte* value = before.values.data() + slot * layer.value_stride * size_of(layer.type);
    store_one_by_one(args.values, row, layer.type, layer.value_scale, value);
  }
  return before;
}

// The arguments with all that is read in memory that the machine reaches.
class PlacedArgs {
 public:
  PlacedArgs(const StoreArgs& host, Place place)
      : keys_(bytes_of(host.keys), place),
        values_(bytes_of(host.values), place),
        slots_(static_cast<size_t>(host.keys.rows) * sizeof(TokenSlot), place),
        live_(sizeof(int32_t), place),
        args_(host) {
    args_.keys.data = keys_.data();
    args_.values.data = values_.data();
    args_.slots = reinterpret_cast<const TokenSlot*>(slots_.data());
    args_.live_rows = reinterpret_cast<const int32_t*>(live_.data());
    take(host);
  }

  void take(const StoreArgs& host) const {  // what the arguments hold now, at the same addresses
    copy(keys_, host.keys.data);
    copy(values_, host.values.data);
    copy(slots_, host.slots);
    copy(live_, host.live_rows);
  }
  const StoreArgs& args() const { return args_; }

 private:
  static size_t bytes_of(const ConstHeadRows& rows) {
    return static_cast<size_t>(rows.rows * rows.row_stride * size_of(rows.type));
  }
  static void copy(const Buffer& to, const void* from) {
    if (to.size()) std::memcpy(to.data(), from, to.size());
  }

  Buffer keys_, values_, slots_, live_;
  StoreArgs args_;
};

void expect_stores(const StoreArgs& args, Exec& exec) {
  Snapshot expected = expected_after(snapshot(args.layer), args);
  if (args.layer.latent()) expected.values = expected.keys;
  const PlacedArgs placed(args, exec.stream() ? Place::pinned : Place::host);
  store_rows(placed.args(), exec);
  exec.wait();
  EXPECT_TRUE(snapshot(args.layer) == expected);
}

std::vector<TokenSlot> distinct_slots(int64_t count, int64_t slots, uint32_t seed) {
  std::vector<TokenSlot> all(slots);
  for (int64_t i = 0; i < slots; ++i) all[i] = {static_cast<int32_t>(i)};
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  all.resize(count);
  return all;
}

TEST_P(StoreRows, ConvertsEveryTypeToEveryType) {
  const int32_t live = 13;
  for (const Dtype type : kTypes) {
    for (const Dtype from : kTypes) {
      SCOPED_TRACE(cat(from, " to ", type));
      KvStore store(small_layout(type), place());
      fill_with_pattern(store);
      const Rows keys(from, live, 2, 6, 1), values(from, live, 2, 4, 2);
      const auto slots = distinct_slots(live, store.layout().slots(), 3);
      expect_stores({store.layer(1), keys.view, values.view, slots.data(), &live}, exec());
    }
  }
}

TEST_P(StoreRows, LeavesOtherLayersAlone) {
  KvStore store(small_layout(), place());
  fill_with_pattern(store);
  const Snapshot below = snapshot(store.layer(0)), above = snapshot(store.layer(2));
  const int32_t live = 96;
  const Rows keys(Dtype::f32, live, 2, 6, 1), values(Dtype::f32, live, 2, 4, 2);
  const auto slots = distinct_slots(live, 96, 3);
  expect_stores({store.layer(1), keys.view, values.view, slots.data(), &live}, exec());
  EXPECT_TRUE(snapshot(store.layer(0)) == below);
  EXPECT_TRUE(snapshot(store.layer(2)) == above);
}

TEST_P(StoreRows, StoresPagesOfEverySize) {
  for (const int32_t tokens : {1, 16, 32, 64, 128}) {
    SCOPED_TRACE(tokens);
    KvLayout layout = small_layout();
    layout.page_size = PageSize(tokens);
    KvStore store(layout, place());
    const int32_t live = 5;
    const Rows keys(Dtype::f32, live, 2, 6, 1), values(Dtype::f32, live, 2, 4, 2);
    const auto slots = distinct_slots(live, layout.slots(), 3);
    expect_stores({store.layer(0), keys.view, values.view, slots.data(), &live}, exec());
  }
}

void expect_stores_many_strided_rows(Exec& exec, Place place) {
  KvLayout layout = small_layout();
  layout.pages = 100;
  const int32_t live = 1001;
  KvStore store(layout, place);
  fill_with_pattern(store);
  const Rows keys(Dtype::f32, live, 2, 6, 1, 5), values(Dtype::bf16, live, 2, 4, 2, 11);
  const auto slots = distinct_slots(live, layout.slots(), 3);
  expect_stores({store.layer(2), keys.view, values.view, slots.data(), &live}, exec);
}

TEST_P(StoreRows, ManyStridedRows) { expect_stores_many_strided_rows(exec(), place()); }

TEST(StoreRowsOnTeams, OfOneThreadAndSeveral) {
  for (const int threads : {1, 3}) {
    Exec exec({.threads = threads});
    expect_stores_many_strided_rows(exec, Place::host);
  }
}

TEST_P(StoreRows, SkipsRowsPastTheLiveOnes) {
  KvStore store(small_layout(), place());
  fill_with_pattern(store);
  const Rows keys(Dtype::f32, 70, 2, 6, 1), values(Dtype::f32, 70, 2, 4, 2);
  for (const int32_t live : {0, 1, 15, 16, 17, 33, 69}) {
    auto slots = distinct_slots(70, 96, 3);
    std::fill(slots.begin() + live, slots.end(), TokenSlot{1 << 30});  // padding's slots are never looked at
    expect_stores({store.layer(0), keys.view, values.view, slots.data(), &live}, exec());
  }
}

TEST_P(StoreRows, Fp8DividesByTheScaleAndSaturates) {
  KvStore store(small_layout(Dtype::f8e4m3), place());
  store.set_scales(1, 0.5f, 4.0f);
  const int32_t live = 1;
  Rows keys(Dtype::f32, 1, 2, 6, 1), values(Dtype::f32, 1, 2, 4, 2);
  const float inputs[] = {1.0f, 224.0f, 300.0f, -1e30f};
  for (int i = 0; i < 4; ++i) {
    keys.set(0, i, inputs[i]);
    values.set(0, i, inputs[i]);
  }
  const TokenSlot slot{40};
  const LayerKv layer = store.layer(1);
  expect_stores({layer, keys.view, values.view, &slot, &live}, exec());
  const float expected_keys[] = {2.0f, 448.0f, 448.0f, -448.0f};
  const float expected_values[] = {0.25f, 56.0f, 72.0f, -448.0f};  // 75 lies between 72 and 80
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(load_element(layer.type, layer.keys, 40 * layer.key_stride + i), expected_keys[i]);
    EXPECT_EQ(load_element(layer.type, layer.values, 40 * layer.value_stride + i), expected_values[i]);
  }
  EXPECT_EQ(store.layer(0).key_scale, 1.0f);
}

TEST_P(StoreRows, KeepsNanAndInfinity) {
  for (const Dtype type : kTypes) {
    for (const Dtype from : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      SCOPED_TRACE(cat(from, " to ", type));
      KvStore store(small_layout(type), place());
      const int32_t live = 1;
      Rows keys(from, 1, 2, 6, 1), values(from, 1, 2, 4, 2);
      keys.set(0, 0, kNan);
      keys.set(0, 1, -INFINITY);
      values.set(0, 5, kNan);
      const TokenSlot slot{17};
      const LayerKv layer = store.layer(0);
      expect_stores({layer, keys.view, values.view, &slot, &live}, exec());
      EXPECT_TRUE(std::isnan(load_element(type, layer.keys, 17 * layer.key_stride)));
      EXPECT_EQ(load_element(type, layer.keys, 17 * layer.key_stride + 1), type == Dtype::f8e4m3 ? -448 : -INFINITY);
      EXPECT_TRUE(std::isnan(load_element(type, layer.values, 17 * layer.value_stride + 5)));
    }
  }
}

TEST_P(StoreRows, LatentRowsAreKeysAndValuesAtOnce) {
  for (const Dtype type : kTypes) {
    KvStore store(latent_layout(type), place());
    fill_with_pattern(store);
    const LayerKv layer = store.layer(1);
    EXPECT_TRUE(layer.latent());
    EXPECT_EQ(layer.value_stride, 9);
    const int32_t live = 50;
    const Rows keys(Dtype::bf16, live, 1, 9, 1, 2);
    const auto slots = distinct_slots(live, layer.slots, 3);
    expect_stores({layer, keys.view, ConstHeadRows{}, slots.data(), &live}, exec());
  }
}

TEST_P(StoreRows, ReplaysWithNewSlotsRowsAndCountsAtTheSameAddresses) {
  KvStore store(small_layout(), place());
  fill_with_pattern(store);
  Rows keys(Dtype::f32, 40, 2, 6, 1), values(Dtype::f32, 40, 2, 4, 2);
  std::vector<TokenSlot> slots(40, TokenSlot{-1});
  int32_t live = -1;  // neither is known while capturing
  const StoreArgs args{store.layer(0), keys.view, values.view, slots.data(), &live};
  const PlacedArgs placed(args, place());
  const Snapshot untouched = snapshot(args.layer);
  Graph graph;
  exec().begin_capture(graph);
  store_rows(placed.args(), exec());
  exec().end_capture();
  EXPECT_EQ(graph.size(), exec().stream() ? 0 : 1);  // operations of the team
  EXPECT_TRUE(snapshot(args.layer) == untouched);

  for (uint32_t step = 0; step < 4; ++step) {
    live = static_cast<int32_t>(40 - 12 * step);
    std::ranges::copy(distinct_slots(40, 96, step), slots.begin());
    std::ranges::copy(Rows(Dtype::f32, 40, 2, 6, 10 + step).bytes, keys.bytes.begin());
    placed.take(args);
    const Snapshot expected = expected_after(snapshot(args.layer), args);
    graph.replay(exec());
    exec().wait();
    EXPECT_TRUE(snapshot(args.layer) == expected) << "step " << step;
  }
}

TEST(StoreRowsDoor, RefusesSlotsOutsideTheStoreAndChangesNothing) {
  KvStore store(small_layout());
  fill_with_pattern(store);
  const Snapshot before = snapshot(store.layer(0));
  const int32_t live = 3;
  const Rows keys(Dtype::f32, 3, 2, 6, 1), values(Dtype::f32, 3, 2, 4, 2);
  for (const int32_t outside : {96, -1, std::numeric_limits<int32_t>::max()}) {
    const TokenSlot slots[] = {{5}, {6}, {outside}};
    const StoreArgs args{store.layer(0), keys.view, values.view, slots, &live};
    expect_refused([&] { store_rows(args, two_threads()); }, cat("slot ", outside, " (number 2) is outside"));
    expect_refused([&] { check_slots(slots, args.layer); }, cat("slot ", outside));
  }
  EXPECT_TRUE(snapshot(store.layer(0)) == before);
}

TEST(StoreRowsDoor, RefusesRowsThatDoNotFitTheLayer) {
  KvStore store(small_layout());
  const int32_t live = 2;
  const Rows keys(Dtype::f32, 2, 2, 6, 1), values(Dtype::f32, 2, 2, 4, 2);
  const TokenSlot slots[] = {{5}, {6}};
  const StoreArgs good{store.layer(0), keys.view, values.view, slots, &live};
  const auto refuse = [&](auto&& change, const std::string& part) {
    StoreArgs args = good;
    change(args);
    expect_refused([&] { store_rows(args, two_threads()); }, part);
    Graph graph;
    two_threads().begin_capture(graph);
    expect_refused([&] { store_rows(args, two_threads()); }, part);
    two_threads().end_capture();
    EXPECT_EQ(graph.size(), 0);
  };
  refuse([](StoreArgs& a) { a.keys.heads = 3; }, "keys are 3 heads of 6");
  refuse([](StoreArgs& a) { a.values.dim = 5; }, "values are 2 heads of 5");
  refuse([](StoreArgs& a) { a.values.rows = 1; }, "2 rows of keys and 1 rows of values");
  refuse([](StoreArgs& a) { a.keys.row_stride = 11; }, "keys have a row stride of 11");
  refuse([](StoreArgs& a) { a.keys.data += 2; }, "keys are not aligned to f32");
  refuse([](StoreArgs& a) { a.values.data = nullptr; }, "values have 2 rows and no address");
  refuse([](StoreArgs& a) { a.keys.rows = -4; }, "keys have -4 rows");
  refuse([](StoreArgs& a) { a.slots = nullptr; }, "slots for 2 rows");
  refuse([](StoreArgs& a) { a.live_rows = nullptr; }, "live row count");
  refuse([](StoreArgs& a) { a.layer.key_scale = 0.5f; }, "key scale of 0.5");
  for (const int32_t wrong : {3, -1}) {
    StoreArgs args = good;
    args.live_rows = &wrong;
    expect_refused([&] { store_rows(args, two_threads()); }, cat(wrong, " live rows of 2"));
  }
}

// What copy_slots means: a second store's worth of memory is read while the first is written.
Snapshot expected_copy(const LayerKv& layer, const std::vector<TokenSlot>& from, const std::vector<TokenSlot>& to) {
  const Snapshot before = snapshot(layer);
  Snapshot after = before;
  const auto copy = [&](const std::vector<std::byte>& source, std::vector<std::byte>& target, int64_t stride) {
    const int64_t bytes = stride * size_of(layer.type);
    for (size_t i = 0; i < from.size(); ++i)
      std::memcpy(target.data() + to[i].value * bytes, source.data() + from[i].value * bytes, bytes);
  };
  copy(before.keys, after.keys, layer.key_stride);
  copy(before.values, after.values, layer.value_stride);
  return after;
}

void expect_copies(Exec& exec, KvStore& store, const std::vector<TokenSlot>& from, const std::vector<TokenSlot>& to) {
  fill_with_pattern(store);
  std::vector<Snapshot> expected;
  for (int32_t layer = 0; layer < store.layout().layers; ++layer)
    expected.push_back(expected_copy(store.layer(layer), from, to));
  store.copy_slots(from, to, exec);
  exec.wait();
  for (int32_t layer = 0; layer < store.layout().layers; ++layer)
    EXPECT_TRUE(snapshot(store.layer(layer)) == expected[layer]) << "layer " << layer;
}

TEST_P(CopySlots, ReadsAllBeforeItWrites) {
  for (const KvLayout& layout : {small_layout(), latent_layout(Dtype::f8e4m3)}) {
    KvStore store(layout, place());
    expect_copies(exec(), store, {{20}, {22}, {25}, {29}}, {{19}, {20}, {21}, {22}});  // an accepted path moves down
    expect_copies(exec(), store, {{19}, {20}, {21}, {22}},
                  {{20}, {21}, {22}, {23}});                         // and up, each onto the next source
    expect_copies(exec(), store, {{1}, {2}}, {{2}, {1}});            // exchanged
    expect_copies(exec(), store, {{7}, {7}, {7}}, {{8}, {9}, {7}});  // one slot to several
    expect_copies(exec(), store, {}, {});
  }
}

TEST_P(CopySlots, PermutesTheWholeStore) {
  for (const Dtype type : kTypes) {
    KvStore store(small_layout(type), place());
    expect_copies(exec(), store, distinct_slots(96, 96, 1), distinct_slots(96, 96, 2));
    expect_copies(exec(), store, {{3}}, {{90}});  // a small copy after a large one
  }
}

TEST(CopySlotsDoor, RefusesSlotsOutsideTheStoreAndChangesNothing) {
  KvStore store(small_layout());
  fill_with_pattern(store);
  const Snapshot before = snapshot(store.layer(2));
  const std::vector<TokenSlot> good = {{1}, {2}};
  for (const int32_t outside : {96, -1}) {
    const std::vector<TokenSlot> bad = {{3}, {outside}};
    const std::string message = cat("slot ", outside, " (number 1) is outside the store's 96 slots");
    expect_refused([&] { store.copy_slots(good, bad, two_threads()); }, message);
    expect_refused([&] { store.copy_slots(bad, good, two_threads()); }, message);
  }
  expect_refused([&] { store.copy_slots(good, std::vector<TokenSlot>{{4}}, two_threads()); }, "2 slots to 1");
  EXPECT_TRUE(snapshot(store.layer(2)) == before);
}

TEST(CopySlotsDoor, RefusesToBeCaptured) {
  KvStore store(small_layout());
  Graph graph;
  two_threads().begin_capture(graph);
  const std::vector<TokenSlot> one = {{1}};
  expect_refused([&] { store.copy_slots(one, one, two_threads()); }, "1 slots cannot be captured");
  two_threads().end_capture();
}

TEST(KvStore, ArraysAreAlignedAndDoNotOverlap) {
  for (const Dtype type : kTypes) {
    for (const KvLayout& layout : {small_layout(type), latent_layout(type)}) {
      KvStore store(layout);
      const std::byte* end = nullptr;
      for (int32_t index = 0; index < layout.layers; ++index) {
        const LayerKv layer = store.layer(index);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.keys) % 64, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.values) % 64, 0u);
        EXPECT_GE(layer.keys, end);
        end = layer.keys + layer.slots * layer.key_stride * size_of(type);
        if (layer.latent()) continue;
        EXPECT_GE(layer.values, end);
        end = layer.values + layer.slots * layer.value_stride * size_of(type);
      }
    }
  }
}

TEST(KvStore, RefusesLayoutsThatMakeNoSenseAndPrintsThem) {
  const auto refuse = [](KvLayout layout, auto&& change, const std::string& part) {
    change(layout);
    expect_refused([&] { KvStore{layout}; }, part);
    expect_refused([&] { KvStore{layout}; }, to_string(layout));
  };
  refuse(
      small_layout(), [](KvLayout& l) { l.layers = 0; }, "layers 0");
  refuse(
      small_layout(), [](KvLayout& l) { l.pages = 1; }, "pages 1");
  refuse(
      small_layout(), [](KvLayout& l) { l.kv_heads = -2; }, "kv heads -2");
  refuse(
      small_layout(), [](KvLayout& l) { l.key_dim = 0; }, "key dim 0");
  refuse(
      small_layout(), [](KvLayout& l) { l.value_dim = 0; }, "value dim 0");
  refuse(
      small_layout(), [](KvLayout& l) { l.pages = 1 << 27; }, "2147483648 token slots");
  refuse(
      small_layout(), [](KvLayout& l) { l.layers = l.kv_heads = l.key_dim = 1 << 30; }, "layers 1073741824");
  refuse(
      latent_layout(), [](KvLayout& l) { l.kv_heads = 2; }, "kv heads 2");
  refuse(
      latent_layout(), [](KvLayout& l) { l.value_dim = 10; }, "value dim 10");
  EXPECT_EQ(to_string(latent_layout()),
            "{layers 2, pages 5, page size 16, type bf16, kv heads 1, key dim 9, value dim 7, latent}");
}

TEST(KvStore, RefusesLayersAndScalesThatMakeNoSense) {
  KvStore store(small_layout(Dtype::f8e4m3));
  expect_refused([&] { store.layer(3); }, "layer 3 is outside the store's 3 layers");
  expect_refused([&] { store.layer(-1); }, "layer -1");
  expect_refused([&] { store.set_scales(3, 1, 1); }, "layer 3");
  expect_refused([&] { store.set_scales(0, 0, 1); }, "key scale must be positive and finite, got 0.0");
  expect_refused([&] { store.set_scales(0, 1, -2); }, "value scale must be positive and finite, got -2.0");
  expect_refused([&] { store.set_scales(0, INFINITY, 1); }, "got inf");
  expect_refused([&] { store.set_scales(0, kNan, 1); }, "got nan");
  EXPECT_EQ(store.layer(0).key_scale, 1);

  KvStore plain(small_layout());
  expect_refused([&] { plain.set_scales(0, 2, 1); }, "key scale of 2.000000 needs the type f8e4m3, not bf16");
  KvStore latent(latent_layout(Dtype::f8e4m3));
  expect_refused([&] { latent.set_scales(0, 2, 3); }, "2.000000 and 3.000000 differ");
  latent.set_scales(0, 2, 2);
}

}  // namespace
}  // namespace quire::kv
