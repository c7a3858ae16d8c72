#include "attn/write_metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "attn/cpu_choice.h"
#include "attn/sequence.h"
#include "base/cuda.h"
#include "base/graph.h"
#include "base/testing/expect_refused.h"

namespace quire::attn {
namespace {

using Numbers = std::vector<int32_t>;

constexpr int32_t kPoolPages = 5000;
constexpr int32_t kUnwritten = 0x7f7f7f7f;  // no length, page, slot or sum of these tests

// Long enough that sequences, chunks and encoders are split, with tiles that are no power of two.
Limits limits_for(int32_t page_size, Device device = Device::cpu) {
  return {.batch = 6,
          .context = 1500,
          .page_size = PageSize(page_size),
          .topk = 3,
          .draft_steps = 5,
          .draft_tokens = 11,
          .chunk = 640,
          .encoder_context = 700,
          .heads = 12,
          .kv_heads = 1,
          .threads = 3,
          .device = device};
}

Limits for_both_forms(Limits limits) {
  limits.form = Form::materialised;
  return limits;
}

// A request table with random pages, a window table with others, inputs, and an arena full of kUnwritten.
struct World {
  explicit World(const Limits& of, uint64_t seed = 1, Place place = Place::host)
      : limits(for_both_forms(of)),
        inputs(limits, place),
        arena(limits, place),
        random(seed),
        width(limits.text_pages() + limits.encoder_pages()) {
    pages = random_pages(place);
    window_pages = random_pages(place);
    table = view(pages);
    window = view(window_pages);
    poison();
  }

  int32_t draw(int32_t least, int32_t most) { return std::uniform_int_distribution<int32_t>(least, most)(random); }
  Buffer random_pages(Place place) {
    const int64_t count = int64_t{kRows} * width;
    Buffer made(static_cast<size_t>(count) * sizeof(PageId), place);
    for (int64_t i = 0; i < count; ++i) entries(made)[i] = {draw(1, kPoolPages - 1)};
    return made;
  }
  static PageId* entries(const Buffer& of) { return reinterpret_cast<PageId*>(of.data()); }
  kv::TableView view(const Buffer& of) const {
    return {.pages = entries(of),
            .stride = width,
            .rows = kRows,
            .width = width,
            .page_size = limits.page_size,
            .pool_pages = kPoolPages};
  }
  void poison() {
    for (const BufferSpec& buffer : kBuffers)
      if (has_writer(buffer)) std::ranges::fill(arena.words(buffer.id), kUnwritten);
  }
  // Whether the arena has it, and it is not left to the kernels.
  bool has_writer(const BufferSpec& buffer) const { return arena.has(buffer.id) && buffer.role != Role::kernel; }

  StepShape shape(Mode mode, Form form, int32_t captured) const {
    return {.mode = mode,
            .form = form,
            .captured = captured,
            .query_rows = limits.batch * (limits.context + limits.draft_tokens),
            .table = table};
  }

  void draw_inputs(int32_t live) {
    inputs.live() = live;
    for (int32_t b = 0; b < live; ++b) {
      // Short, long and edge lengths alike; at most the context, of which drafts may need the last few.
      const int32_t length = draw(0, 3) ? draw(1, limits.context) : draw(0, 1) ? limits.context : draw(1, 17);
      inputs.rows()[b] = {draw(1, kRows - 1)};
      inputs.lengths()[b] = {length};
      inputs.extend_lengths()[b] = {draw(0, 1) ? draw(1, length) : 1};
      inputs.encoder_lengths()[b] = {draw(0, limits.encoder_context)};
    }
    for (int32_t i = 0; i < live * limits.topk * limits.draft_steps; ++i)
      inputs.draft_slots()[i] = {draw(0, kPoolPages * limits.page_size.tokens() - 1)};
    for (int32_t b = 0; b < live; ++b) draw_tree(b);
  }
  // Trees of several sizes, one after the other; what lies past a request's own nodes is nobody's.
  void draw_ragged_trees() {
    const int32_t most = limits.draft_tokens;
    std::fill_n(inputs.tree_mask(), limits.batch * most * most, uint8_t{1});
    int32_t row = 0;
    for (int32_t b = 0; b < inputs.live(); ++b) {
      const int32_t nodes = draw(1, most);
      inputs.extend_lengths()[b] = {nodes};
      draw_tree(inputs.tree_mask() + row * most, nodes);
      row += nodes;
    }
  }
  void draw_tree(int32_t b) {
    const int32_t nodes = limits.draft_tokens;
    draw_tree(inputs.tree_mask() + b * nodes * nodes, nodes);
  }
  void draw_tree(uint8_t* mask, int32_t own) {
    const int32_t nodes = limits.draft_tokens;
    for (int32_t q = 0; q < own; ++q) {
      uint8_t* row = mask + q * nodes;
      if (q == 0)
        std::fill_n(row, nodes, uint8_t{0});
      else
        std::copy_n(mask + draw(0, q - 1) * nodes, nodes, row);
      row[q] = 1;
    }
  }
  // A prefix of nothing, for the modes that allow it.
  void empty_first() { inputs.lengths()[0] = {0}; }

  // The readable part of row `row`, all draft steps.
  Numbers row(Buf id, const StepShape& step, int64_t row = 0) const {
    const int32_t* first = arena.words(id).data() + row * arena.shape(id).columns;
    return {first, first + readable(spec(id), step, inputs.inputs(), limits, row)};
  }

  static constexpr int32_t kRows = 9;
  Limits limits;
  StepInputBuffers inputs;
  MetadataArena arena;
  std::mt19937_64 random;
  int32_t width;
  Buffer pages, window_pages;
  kv::TableView table{.pages = nullptr, .stride = 0, .rows = 0, .width = 0, .page_size = PageSize(1), .pool_pages = 0};
  kv::TableView window = table;
};

Exec& one_thread() {
  static Exec exec(ExecOptions{.threads = 1});
  return exec;
}

// The writers that are compared with the formulas.
struct Writer {
  const char* name;
  WriteMetadataFn* write;
  FollowParentsFn* follow;
  Place place = Place::host;
  Device device = Device::cpu;

  bool is_available() const { return place == Place::host || quire::cuda::devices() > 0; }
  Exec& exec() const {
    if (place == Place::host) return one_thread();
    static quire::cuda::Stream stream;
    static Exec exec(ExecOptions{.threads = 1, .stream = &stream});
    return exec;
  }
};
void PrintTo(const Writer& writer, std::ostream* out) { *out << writer.name; }

const Writer kFormulas{"ref", ref::write_metadata, ref::follow_parents};
const Writer kFastWriters[] = {{"cpu", cpu::write_metadata, cpu::follow_parents},
                               {"cuda", cuda::write_metadata, cuda::follow_parents, Place::pinned, Device::cuda}};

// Every readable element was written, nothing else was touched.
void expect_written_exactly(const World& world, const StepShape& step) {
  for (const BufferSpec& buffer : kBuffers) {
    if (!world.has_writer(buffer)) {
      ASSERT_EQ(readable(buffer, step, world.inputs.inputs(), world.limits, 0), 0) << to_string(buffer.id);
      continue;
    }
    const std::span<int32_t> words = world.arena.words(buffer.id);
    const Shape shape = world.arena.shape(buffer.id);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t count = readable(buffer, step, world.inputs.inputs(), world.limits, r);
      ASSERT_LE(count, shape.columns) << to_string(buffer.id) << " row " << r;
      for (int64_t c = 0; c < shape.columns; ++c)
        ASSERT_EQ(words[r * shape.columns + c] != kUnwritten, c < count)
            << to_string(buffer.id) << "[" << r << "][" << c << "], readable " << count;
    }
  }
}

void expect_same(const World& a, const World& b) {
  for (const BufferSpec& buffer : kBuffers) {
    if (!a.has_writer(buffer)) continue;
    const auto left = a.arena.words(buffer.id), right = b.arena.words(buffer.id);
    const auto [at, other] = std::mismatch(left.begin(), left.end(), right.begin());
    ASSERT_TRUE(at == left.end()) << to_string(buffer.id) << " word " << at - left.begin() << ": " << *at << " and "
                                  << *other;
  }
}

bool is_prefix_sum(const std::string& name) {
  return name.starts_with("cu_") || name.ends_with("cu_seqlens_k") || name == "local_query_start_loc";
}

void expect_invariants(const World& world, const StepShape& step) {
  for (const BufferSpec& buffer : kBuffers) {
    const int32_t slots = kPoolPages * world.limits.page_size.tokens();
    for (int64_t r = 0; world.has_writer(buffer) && r < world.arena.shape(buffer.id).rows; ++r) {
      const Numbers values = world.row(buffer.id, step, r);
      if (values.empty()) continue;
      if (is_prefix_sum(buffer.name)) {
        EXPECT_EQ(values[0], 0) << to_string(buffer.id);
        EXPECT_TRUE(std::is_sorted(values.begin(), values.end())) << to_string(buffer.id);
      }
      const int32_t end = buffer.element == Element::page   ? kPoolPages
                          : buffer.element == Element::slot ? slots
                          : buffer.element == Element::row  ? World::kRows
                                                            : kUnwritten;
      for (const int32_t value : values) EXPECT_TRUE(value >= 0 && value < end) << to_string(buffer.id) << " " << value;
    }
  }
}

// --- every mode, page size and form: the fast writer against the formulas

constexpr Mode kAllModes[] = {Mode::decode, Mode::extend,      Mode::draft,       Mode::draft_tree,
                              Mode::verify, Mode::verify_tree, Mode::draft_extend};

struct Layers {
  bool local = false, encoder = false, window = false;
};

std::vector<Layers> layers_of(Mode mode) {
  if (mode == Mode::draft_tree) return {{}};
  if (mode == Mode::decode || mode == Mode::extend)
    return {{}, {.local = true}, {.encoder = true}, {.local = true, .window = true}, {.encoder = true, .window = true}};
  return {{}, {.window = true}};
}

class WriterTest : public ::testing::TestWithParam<Writer> {
 protected:
  void SetUp() override {
    if (!GetParam().is_available()) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
};

class Writers : public ::testing::TestWithParam<std::tuple<Writer, Mode, int>> {};

void expect_writers_agree(const Writer& writer, Mode mode, int32_t page_size, Form form, const Layers& layers,
                          uint64_t seed) {
  World fast(limits_for(page_size, writer.device), seed, writer.place),
      plain(limits_for(page_size, writer.device), seed);
  const auto live = static_cast<int32_t>(seed % 6);
  const auto captured = static_cast<int32_t>(std::clamp<uint64_t>(live + seed / 6 % 3, 1, 6));
  for (World* world : {&fast, &plain}) {
    world->draw_inputs(live);
    if (mode != Mode::decode && !has_extend_lengths(mode) && live && seed % 4 == 0) world->empty_first();
    StepShape step = world->shape(mode, form, captured);
    step.local = layers.local;
    step.encoder = layers.encoder;
    step.window_table = layers.window ? std::optional(world->window) : std::nullopt;
    ASSERT_NO_THROW(check_step(step, world->inputs.inputs(), world->limits));
    const Writer& used = world == &fast ? writer : kFormulas;
    used.write(step, world->inputs.inputs(), world->arena, used.exec());
    used.exec().wait();
    expect_written_exactly(*world, step);
    expect_invariants(*world, step);
  }
  expect_same(fast, plain);
}

TEST_P(Writers, AgreeAndWriteExactlyWhatIsReadable) {
  const auto& [writer, mode, page_size] = GetParam();
  if (!writer.is_available()) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  for (const Form form : {Form::in_place, Form::materialised})
    for (const Layers& layers : layers_of(mode))
      for (uint64_t seed = 0; seed < 24; ++seed) {
        SCOPED_TRACE(cat("form ", static_cast<int>(form), ", local ", layers.local, ", encoder ", layers.encoder,
                         ", window ", layers.window, ", seed ", seed));
        expect_writers_agree(writer, mode, page_size, form, layers, seed);
        if (HasFatalFailure()) return;
      }
}

std::string case_name(const ::testing::TestParamInfo<Writers::ParamType>& info) {
  const auto& [writer, mode, page_size] = info.param;
  return cat(writer.name, "_", to_string(mode), "_pages_of_", page_size);
}
INSTANTIATE_TEST_SUITE_P(AllModes, Writers,
                         ::testing::Combine(::testing::ValuesIn(kFastWriters), ::testing::ValuesIn(kAllModes),
                                            ::testing::Values(1, 16, 32, 64, 128)),
                         case_name);

std::string writer_name(const ::testing::TestParamInfo<Writer>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Fast, WriterTest, ::testing::ValuesIn(kFastWriters), writer_name);

TEST_P(WriterTest, RaggedTreesAgreeAndReadNoNodesOfOthers) {
  for (const bool has_window : {false, true})
    for (uint64_t seed = 0; seed < 48; ++seed) {
      SCOPED_TRACE(cat("window ", has_window, ", seed ", seed));
      const Limits limits = limits_for(seed % 2 ? 16 : 1, GetParam().device);
      World fast(limits, seed, GetParam().place), plain(limits, seed);
      const auto live = static_cast<int32_t>(seed % 6);
      for (World* world : {&fast, &plain}) {
        world->draw_inputs(live);
        world->draw_ragged_trees();
        if (live && seed % 4 == 0) world->empty_first();
        StepShape step = world->shape(Mode::verify_tree, Form::in_place, 6);
        step.ragged = true;
        step.window_table = has_window ? std::optional(world->window) : std::nullopt;
        ASSERT_NO_THROW(check_step(step, world->inputs.inputs(), world->limits));
        const Writer& used = world == &fast ? GetParam() : kFormulas;
        used.write(step, world->inputs.inputs(), world->arena, used.exec());
        used.exec().wait();
        expect_written_exactly(*world, step);
        int32_t row = 0;
        for (int32_t b = 0; b < live; ++b)
          for (int32_t q = 0; q < world->inputs.extend_lengths()[b].value; ++q, ++row) {
            const Numbers slots = world->row(Buf::verify_tree_branch_page_table, step, row);
            const PageSize size = limits.page_size;
            const int32_t at = world->inputs.lengths()[b].value + q;
            const PageId page =
                step.table.pages[world->inputs.rows()[b].value * step.table.stride + at / size.tokens()];
            ASSERT_FALSE(slots.empty());
            EXPECT_EQ(slots.back(), size.slot(page, at % size.tokens()).value) << "a node's own is its last";
          }
      }
      expect_same(fast, plain);
    }
}

TEST_P(WriterTest, TreesOfEverySizeAgree) {
  for (int32_t nodes = 1; nodes <= 40; ++nodes) {
    Limits limits = limits_for(16, GetParam().device);
    limits.draft_tokens = nodes;
    World fast(limits, nodes, GetParam().place), plain(limits, nodes);
    for (World* world : {&fast, &plain}) {
      world->draw_inputs(3);
      if (nodes > 1) world->inputs.tree_mask()[nodes - 1] = 1;  // a mask need not follow the order of the nodes
      const StepShape step = world->shape(Mode::verify_tree, Form::materialised, 4);
      const Writer& used = world == &fast ? GetParam() : kFormulas;
      used.write(step, world->inputs.inputs(), world->arena, used.exec());
      used.exec().wait();
      expect_written_exactly(*world, step);
    }
    expect_same(fast, plain);
  }
}

// What a GPU's writer must write, by the formulas, also where there is no GPU.
TEST(WriteMetadata, TheFormulasWriteExactlyWhatAGpuReads) {
  for (const Mode mode : kAllModes)
    for (const Form form : {Form::in_place, Form::materialised})
      for (const Layers& layers : layers_of(mode))
        for (const int32_t live : {0, 1, 4}) {
          SCOPED_TRACE(cat(to_string(mode), " ", to_string(form), ", live ", live));
          World world(limits_for(16, Device::cuda), 3);
          world.draw_inputs(live);
          StepShape step = world.shape(mode, form, 5);
          step.local = layers.local;
          step.encoder = layers.encoder;
          if (layers.window) step.window_table = world.window;
          ref::write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
          expect_written_exactly(world, step);
          expect_invariants(world, step);
          EXPECT_EQ(*world.arena.counts(Buf::split_next_tile), 0);
        }
}

// Workspace is the kernels' own: of it no writer touches a word.
TEST_P(WriterTest, LeaveTheWorkspaceOfKernelsAlone) {
  for (const Mode mode : kAllModes) {
    World world(limits_for(16, GetParam().device), 5, GetParam().place);
    for (const BufferSpec& buffer : kBuffers)
      if (world.arena.has(buffer.id)) std::ranges::fill(world.arena.words(buffer.id), kUnwritten);
    world.draw_inputs(6);
    const StepShape step = world.shape(mode, Form::materialised, 6);
    GetParam().write(step, world.inputs.inputs(), world.arena, GetParam().exec());
    GetParam().exec().wait();
    for (const BufferSpec& buffer : kBuffers) {
      if (!world.arena.has(buffer.id) || buffer.role != Role::kernel) continue;
      const std::span<const int32_t> words = world.arena.words(buffer.id);
      EXPECT_TRUE(std::ranges::all_of(words, [](int32_t word) { return word == kUnwritten; }))
          << to_string(mode) << " " << to_string(buffer.id);
    }
  }
}

// Who records a step may give the window's table from a frame that is gone when the step is replayed.
TEST(WriteMetadata, ARecordedStepHasItsWindowTableByValue) {
  World world(limits_for(16), 9), fresh(limits_for(16), 9);
  Graph graph;
  kv::TableView view = world.window;
  StepShape step = world.shape(Mode::verify_tree, Form::materialised, 6);
  step.window_table = view;
  one_thread().begin_capture(graph);
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  one_thread().end_capture();
  view = world.table;  // what a later frame leaves in its place
  for (World* of : {&world, &fresh}) of->draw_inputs(5);
  graph.replay(one_thread());
  StepShape expected = fresh.shape(Mode::verify_tree, Form::materialised, 6);
  expected.window_table = fresh.window;
  ref::write_metadata(expected, fresh.inputs.inputs(), fresh.arena, one_thread());
  expect_same(world, fresh);
}

TEST(WriteMetadata, RefusesArenasOfAnotherDeviceOrForm) {
  World of_cpu(limits_for(16)), of_gpu(limits_for(16, Device::cuda));
  for (World* world : {&of_cpu, &of_gpu}) world->draw_inputs(1);
  const auto write = [](WriteMetadataFn* writer, const World& world, Form form, const MetadataArena& arena) {
    writer(world.shape(Mode::decode, form, 1), world.inputs.inputs(), arena, one_thread());
  };
  expect_refused([&] { write(cpu::write_metadata, of_gpu, Form::in_place, of_gpu.arena); },
                 "the metadata is written on cpu, and the arena is made for batch 6");
  const MetadataArena in_place(limits_for(16));
  for (WriteMetadataFn* writer : {&cpu::write_metadata, &ref::write_metadata}) {
    EXPECT_NO_THROW(write(writer, of_cpu, Form::in_place, in_place));
    expect_refused([&] { write(writer, of_cpu, Form::materialised, in_place); },
                   "a materialised decode step needs tables");
  }
}

// Stale rows and stale tails of a larger step before must not show.
TEST(WriteMetadata, ShrinkingAndGrowingBatchesOnOneRecordedGraph) {
  for (const Mode mode : kAllModes) {
    World world(limits_for(16), 7);
    StepShape step = world.shape(mode, Form::materialised, 6);
    step.local = step.mode == Mode::decode || step.mode == Mode::extend;
    Graph graph;
    one_thread().begin_capture(graph);
    write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
    one_thread().end_capture();
    for (const int32_t live : {6, 1, 4, 0, 6, 2}) {
      world.draw_inputs(live);
      graph.replay(one_thread());
      World fresh(limits_for(16), 7);
      fresh.inputs.live() = live;
      ref::write_metadata(step, world.inputs.inputs(), fresh.arena, one_thread());
      for (const BufferSpec& buffer : kBuffers)
        for (int64_t r = 0; world.has_writer(buffer) && r < world.arena.shape(buffer.id).rows; ++r) {
          const int64_t count = readable(buffer, step, world.inputs.inputs(), world.limits, r);
          const int32_t* expected = fresh.arena.words(buffer.id).data() + r * fresh.arena.shape(buffer.id).columns;
          ASSERT_EQ(world.row(buffer.id, step, r), Numbers(expected, expected + count))
              << to_string(mode) << " " << to_string(buffer.id) << " row " << r << " live " << live;
        }
    }
  }
}

// --- worked by hand

// Requests in rows 1 and 3 of a table whose page c of row r is 10 r + c + 1.
World small_world(int32_t page_size, int32_t first_length, int32_t second_length) {
  World world({.batch = 3,
               .context = 40,
               .page_size = PageSize(page_size),
               .topk = 2,
               .draft_steps = 3,
               .draft_tokens = 4,
               .chunk = page_size == 1 ? 4 : 16,
               .encoder_context = 20});
  for (int32_t r = 0; r < World::kRows; ++r)
    for (int32_t c = 0; c < world.width; ++c) World::entries(world.pages)[r * world.width + c] = {10 * r + c + 1};
  world.inputs.live() = 2;
  world.inputs.rows()[0] = {1};
  world.inputs.rows()[1] = {3};
  world.inputs.lengths()[0] = {first_length};
  world.inputs.lengths()[1] = {second_length};
  return world;
}

StepShape write_small(World& world, Mode mode, bool local = false, bool encoder = false) {
  world.table = world.view(world.pages);
  StepShape step = world.shape(mode, Form::materialised, 3);
  step.local = local;
  step.encoder = encoder;
  check_step(step, world.inputs.inputs(), world.limits);
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  return step;
}

TEST(WriteMetadata, Decode) {
  World world = small_world(16, 17, 5);
  const StepShape step = write_small(world, Mode::decode);
  EXPECT_EQ(world.row(Buf::decode_live_count, step), Numbers{2});
  EXPECT_EQ(world.row(Buf::decode_cache_seqlens, step), (Numbers{17, 5, 1}));
  EXPECT_EQ(world.row(Buf::decode_cu_seqlens_q, step), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(world.row(Buf::decode_cu_seqlens_k, step), (Numbers{0, 17, 22, 23}));
  EXPECT_EQ(world.row(Buf::decode_request_row, step), (Numbers{1, 3, 0}));
  EXPECT_EQ(world.row(Buf::decode_first_page, step), (Numbers{0, 0, 0}));
  EXPECT_EQ(world.row(Buf::decode_cu_items, step), (Numbers{0, 1, 2}));
  EXPECT_EQ(world.row(Buf::decode_cu_splits, step), (Numbers{0, 0, 0}));
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 0), (Numbers{11, 12}));
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 1), Numbers{31});
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 2), Numbers{0});
}

TEST(WriteMetadata, Extend) {
  World world = small_world(16, 17, 5);
  world.inputs.extend_lengths()[0] = {3};
  world.inputs.extend_lengths()[1] = {5};
  const StepShape step = write_small(world, Mode::extend);
  EXPECT_EQ(world.row(Buf::extend_cache_seqlens, step), (Numbers{17, 5, 1}));
  EXPECT_EQ(world.row(Buf::extend_cu_seqlens_q, step), (Numbers{0, 3, 8, 8}));  // padding has no queries
  EXPECT_EQ(world.row(Buf::extend_cu_seqlens_k, step), (Numbers{0, 17, 22, 23}));
}

TEST(WriteMetadata, AllStepsOfADraftChainAtOnce) {
  World world = small_world(16, 15, 5);
  const StepShape step = write_small(world, Mode::draft);
  EXPECT_EQ(world.row(Buf::decode_cache_seqlens, step, 0), (Numbers{16, 6, 1}));
  EXPECT_EQ(world.row(Buf::decode_cache_seqlens, step, 1), (Numbers{17, 7, 1}));
  EXPECT_EQ(world.row(Buf::decode_cu_seqlens_k, step, 1), (Numbers{0, 17, 24, 25}));
  EXPECT_EQ(world.row(Buf::decode_page_table_draft_decode, step, 0), (Numbers{11, 12}));
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 0), Numbers{});
}

TEST(WriteMetadata, DraftTree) {
  World world = small_world(16, 17, 0);
  for (int32_t i = 0; i < 2 * 2 * 3; ++i) world.inputs.draft_slots()[i] = {100 + i};
  const StepShape step = write_small(world, Mode::draft_tree);
  EXPECT_EQ(world.row(Buf::draft_prefix_cache_seqlens, step), (Numbers{17, 0, 1}));
  EXPECT_EQ(world.row(Buf::draft_prefix_cu_seqlens_q, step), (Numbers{0, 2, 4, 6}));
  EXPECT_EQ(world.row(Buf::draft_prefix_page_table, step, 1), Numbers{});
  EXPECT_EQ(world.row(Buf::draft_branch_cache_seqlens, step, 1), (Numbers{2, 2, 2, 2, 1, 1}));
  EXPECT_EQ(world.row(Buf::draft_branch_cu_seqlens_q, step), (Numbers{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(world.row(Buf::draft_branch_cu_seqlens_k, step, 1), (Numbers{0, 2, 4, 6, 8, 9, 10}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 0), (Numbers{100, 101}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 2), (Numbers{106, 107}));  // request 1, branch 0
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 4), Numbers{0});
}

TEST(WriteMetadata, VerifyChain) {
  World world = small_world(16, 13, 5);
  const StepShape step = write_small(world, Mode::verify);
  EXPECT_EQ(world.row(Buf::verify_cache_seqlens, step), (Numbers{17, 9, 1}));
  EXPECT_EQ(world.row(Buf::verify_cu_seqlens_q, step), (Numbers{0, 4, 8, 12}));
  EXPECT_EQ(world.row(Buf::verify_cu_seqlens_k, step), (Numbers{0, 17, 26, 27}));
  EXPECT_EQ(world.row(Buf::verify_page_table, step, 0), (Numbers{11, 12}));
}

TEST(WriteMetadata, VerifyTree) {
  World world = small_world(16, 14, 5);
  const Numbers mask = {1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1,   // request 0
                        1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1};  // request 1
  std::copy(mask.begin(), mask.end(), world.inputs.tree_mask());
  const StepShape step = write_small(world, Mode::verify_tree);
  EXPECT_EQ(world.row(Buf::verify_tree_prefix_cache_seqlens, step), (Numbers{14, 5, 1}));
  EXPECT_EQ(world.row(Buf::verify_tree_prefix_cu_seqlens_q, step), (Numbers{0, 4, 8, 12}));
  EXPECT_EQ(world.row(Buf::verify_tree_prefix_page_table, step, 0), Numbers{11});  // nodes are not prefix
  EXPECT_EQ(world.row(Buf::verify_tree_branch_cache_seqlens, step), (Numbers{1, 2, 2, 3, 1, 2, 3, 2, 1, 1, 1, 1}));
  EXPECT_EQ(world.row(Buf::verify_tree_branch_cu_seqlens_k, step),
            (Numbers{0, 1, 3, 5, 8, 9, 11, 14, 16, 17, 18, 19, 20}));
  // Positions 14 and 15 end page 11; 16 and 17 begin page 12.
  EXPECT_EQ(world.row(Buf::verify_tree_branch_page_table, step, 0), Numbers{11 * 16 + 14});
  EXPECT_EQ(world.row(Buf::verify_tree_branch_page_table, step, 2), (Numbers{11 * 16 + 14, 12 * 16}));
  EXPECT_EQ(world.row(Buf::verify_tree_branch_page_table, step, 3), (Numbers{11 * 16 + 14, 11 * 16 + 15, 12 * 16 + 1}));
  EXPECT_EQ(world.row(Buf::verify_tree_branch_page_table, step, 11), Numbers{0});
}

// The worked example of the chunked layers, and where its chunks lie.
TEST(WriteMetadata, LocalChunks) {
  World world = small_world(1, 6, 17);
  world.inputs.live() = 3;
  world.inputs.rows()[2] = {5};
  world.inputs.lengths()[2] = {9};
  const Numbers extend = {4, 10, 5};
  for (int32_t b = 0; b < 3; ++b) world.inputs.extend_lengths()[b] = {extend[b]};
  const StepShape step = write_small(world, Mode::extend, true);
  EXPECT_EQ(world.row(Buf::local_live_count, step), Numbers{8});
  EXPECT_EQ(world.row(Buf::local_local_query_start_loc, step), (Numbers{0, 2, 4, 5, 9, 13, 14, 18, 19}));
  EXPECT_EQ(world.row(Buf::local_local_seqused_k, step), (Numbers{4, 2, 4, 4, 4, 1, 4, 1}));
  EXPECT_EQ(world.row(Buf::local_first_page, step), (Numbers{0, 4, 4, 8, 12, 16, 4, 8}));
  EXPECT_EQ(world.row(Buf::local_request_row, step), (Numbers{1, 1, 3, 3, 3, 3, 5, 5}));
  EXPECT_EQ(world.row(Buf::local_local_block_table, step, 1), (Numbers{15, 16}));
  EXPECT_EQ(world.row(Buf::local_local_block_table, step, 5), Numbers{47});
}

// A length below the chunk that is no multiple of the page size: the chunk is not rounded down, the query sees all of
// it.
TEST(WriteMetadata, LocalChunksAreNotRoundedToTheLengths) {
  World world({.batch = 2, .context = 200, .page_size = PageSize(16), .chunk = 8192});
  world.inputs.live() = 1;
  world.inputs.rows()[0] = {1};
  world.inputs.lengths()[0] = {100};
  const StepShape step = [&] {
    StepShape made = world.shape(Mode::decode, Form::materialised, 2);
    made.local = true;
    return made;
  }();
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  EXPECT_EQ(world.row(Buf::local_local_seqused_k, step), (Numbers{100, 1}));
  EXPECT_EQ(world.row(Buf::local_local_query_start_loc, step), (Numbers{0, 1, 2}));
  EXPECT_EQ(world.row(Buf::local_local_block_table, step, 0).size(), 7u);
}

// Encoder keys take whole pages at the start of the row; text begins on the next page.
TEST(WriteMetadata, Encoder) {
  World world = small_world(16, 17, 5);
  world.inputs.encoder_lengths()[0] = {18};
  world.inputs.encoder_lengths()[1] = {0};
  const StepShape step = write_small(world, Mode::decode, false, true);
  EXPECT_EQ(world.row(Buf::encoder_encoder_lens_int32, step), (Numbers{18, 0, 1}));
  EXPECT_EQ(world.row(Buf::encoder_encoder_cu_seqlens_k, step), (Numbers{0, 18, 18, 19}));
  EXPECT_EQ(world.row(Buf::encoder_encoder_page_table, step, 0), (Numbers{11, 12}));
  EXPECT_EQ(world.row(Buf::encoder_encoder_page_table, step, 1), Numbers{});
  EXPECT_EQ(world.row(Buf::encoder_encoder_page_table, step, 2), Numbers{0});
  EXPECT_EQ(world.row(Buf::decode_first_page, step), (Numbers{2, 0, 0}));
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 0), (Numbers{13, 14}));
  EXPECT_EQ(world.row(Buf::decode_page_table, step, 1), Numbers{31});
}

// --- how the work is cut

// With nine requests of one key and one of 3000, two threads share one kv head: only the long one is split.
TEST(WriteMetadata, LongSequencesAreSplitIntoRanges) {
  World world({.batch = 10, .context = 4000, .page_size = PageSize(16), .threads = 2});
  world.inputs.live() = 10;
  for (int32_t b = 0; b < 10; ++b) {
    world.inputs.rows()[b] = {1};
    world.inputs.lengths()[b] = {b == 4 ? 3000 : 1};
  }
  const StepShape step = world.shape(Mode::decode, Form::in_place, 10);
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  EXPECT_EQ(world.row(Buf::decode_cu_items, step), (Numbers{0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(world.row(Buf::decode_cu_splits, step), (Numbers{0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6}));
}

// Each draft step is cut by its own lengths: one request grows past a range while the chain is drafted.
TEST(WriteMetadata, DraftStepsAreCutByTheirOwnLengths) {
  const auto parts_of_steps = [](int32_t length, int32_t kv_heads) {
    World world({.batch = 1,
                 .context = 700,
                 .page_size = PageSize(16),
                 .draft_steps = 5,
                 .heads = 8,
                 .kv_heads = kv_heads,
                 .threads = 2});
    world.inputs.live() = 1;
    world.inputs.rows()[0] = {1};
    world.inputs.lengths()[0] = {length};
    const StepShape step = world.shape(Mode::draft, Form::in_place, 1);
    write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
    Numbers splits;
    for (int32_t plane = 0; plane < 4; ++plane) splits.push_back(world.row(Buf::decode_cu_splits, step, plane)[1]);
    return splits;
  };
  EXPECT_EQ(parts_of_steps(510, 1), (Numbers{0, 0, 2, 2}));  // 511 to 514 keys
  EXPECT_EQ(parts_of_steps(510, 8), (Numbers{0, 0, 2, 2}));  // a token's heads are read together: they do not matter
}

// 49 times the nearest double to 1/49 is below 1: the quotient at a chunk's edge must not fall short.
TEST(WriteMetadata, ChunksThatAreNoPowerOfTwoStartAtTheirEdge) {
  for (const int32_t chunk : {3, 7, 41, 49, 55, 61, 98, 103, 107}) {
    World world({.batch = 1, .context = 40 * chunk, .page_size = PageSize(1), .chunk = chunk});
    world.inputs.live() = 1;
    world.inputs.rows()[0] = {1};
    for (int32_t edge = chunk; edge < 40 * chunk; edge += chunk) {
      world.inputs.lengths()[0] = {edge + 1};
      StepShape step = world.shape(Mode::decode, Form::in_place, 1);
      step.local = true;
      write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
      ASSERT_EQ(world.row(Buf::local_first_page, step), Numbers{edge});
      ASSERT_EQ(world.row(Buf::local_local_seqused_k, step), Numbers{1});
    }
  }
}

// The workspace that the arena declares holds the splits of any step.
TEST(WriteMetadata, PartsFitTheWorkspace) {
  std::mt19937 random(3);
  for (int32_t round = 0; round < 200; ++round) {
    const int32_t kv_heads = 1 << random() % 4, threads = 1 + static_cast<int32_t>(random() % 40);
    World world({.batch = 8,
                 .context = 6000,
                 .page_size = PageSize(16),
                 .heads = kv_heads * 3,
                 .kv_heads = kv_heads,
                 .threads = threads},
                round);
    world.draw_inputs(1 + round % 8);
    const StepShape step = world.shape(Mode::extend, Form::in_place, 8);
    write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
    const int64_t tile_rows = int64_t{tile_positions(3 * kv_heads, kv_heads, 128)} * 3 * kv_heads;
    EXPECT_LE(world.row(Buf::extend_cu_splits, step).back() * tile_rows, partial_rows(world.limits));
  }
}

// Chunks that do not start where a range does are cut where the positions of the text are.
TEST(WriteMetadata, LocalChunksAreCutAtTheTextsRanges) {
  World world({.batch = 1, .context = 4000, .page_size = PageSize(16), .chunk = 1008, .threads = 8});
  world.inputs.live() = 1;
  world.inputs.rows()[0] = {1};
  world.inputs.lengths()[0] = {2016};
  StepShape step = world.shape(Mode::decode, Form::in_place, 1);
  step.local = true;
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  EXPECT_EQ(world.row(Buf::local_cu_items, step), (Numbers{0, 3}));  // [1008, 2016) touches three ranges of 512
  step.form = Form::materialised;
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  EXPECT_EQ(world.row(Buf::local_cu_items, step), (Numbers{0, 2}));  // its own table's row starts at its first key
}

// --- following the chosen parents

TEST(FollowParents, PathsMoveAndSlotsDoNot) {
  World world({.batch = 2, .context = 40, .page_size = PageSize(1), .topk = 3, .draft_steps = 4});
  world.inputs.live() = 1;
  world.inputs.rows()[0] = {1};
  world.inputs.lengths()[0] = {5};
  for (int32_t i = 0; i < 12; ++i)
    world.inputs.draft_slots()[i] = {100 + 10 * (i / 4) + i % 4};  // branch c, step t: 1ct
  const StepShape step = world.shape(Mode::draft_tree, Form::in_place, 2);
  write_metadata(step, world.inputs.inputs(), world.arena, one_thread());
  const int32_t first[] = {2, 0, 0}, second[] = {1, 1, 0};
  follow_parents(step, world.inputs.inputs(), world.arena, 0, first, one_thread());
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 0), (Numbers{120, 101, 102}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 1), (Numbers{100, 111, 112}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 2), (Numbers{100, 121, 122}));
  follow_parents(step, world.inputs.inputs(), world.arena, 1, second, one_thread());
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 0), (Numbers{100, 111, 102}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 1), (Numbers{100, 111, 112}));
  EXPECT_EQ(world.row(Buf::draft_branch_page_table, step, 2), (Numbers{120, 101, 122}));
}

TEST_P(WriterTest, FollowParentsAndTouchOnlyLiveRows) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Limits limits = limits_for(16, GetParam().device);
    World fast(limits, seed, GetParam().place), plain(limits, seed);
    const auto live = static_cast<int32_t>(seed % 7);
    for (World* world : {&fast, &plain}) {
      world->draw_inputs(live);
      const Writer& used = world == &fast ? GetParam() : kFormulas;
      const Buffer storage((live + 1) * 3 * sizeof(int32_t), used.place);
      auto* const parents = reinterpret_cast<int32_t*>(storage.data());
      for (int32_t i = 0; i < live * 3; ++i) parents[i] = world->draw(0, 2);
      const StepShape step = world->shape(Mode::draft_tree, Form::materialised, 6);
      used.write(step, world->inputs.inputs(), world->arena, used.exec());
      for (int32_t i = 0; i < 3; ++i) used.follow(step, world->inputs.inputs(), world->arena, i, parents, used.exec());
      used.exec().wait();
      expect_written_exactly(*world, step);
    }
    expect_same(fast, plain);
  }
}

TEST(FollowParents, RefusesStepsThatNothingFollows) {
  World world(limits_for(16));
  const int32_t parents[1] = {0};
  const auto follow = [&](Mode mode, int32_t step) {
    follow_parents(world.shape(mode, Form::in_place, 1), world.inputs.inputs(), world.arena, step, parents,
                   one_thread());
  };
  expect_refused([&] { follow(Mode::verify_tree, 0); }, "a verify_tree step has no draft branches");
  expect_refused([&] { follow(Mode::draft_tree, 3); }, "no draft step follows step 3 of 4");
  expect_refused([&] { follow(Mode::draft_tree, -1); }, "no draft step follows step -1");
}

TEST(FollowParents, RefusesParentsThatAreNoBranches) {
  World world(limits_for(16));
  world.draw_inputs(1);
  const StepShape step = world.shape(Mode::draft_tree, Form::in_place, 1);
  for (const int32_t bad : {-1, 3}) {
    const int32_t parents[3] = {0, bad, 0};
    for (FollowParentsFn* follow : {&cpu::follow_parents, &ref::follow_parents})
      expect_refused([&] { follow(step, world.inputs.inputs(), world.arena, 0, parents, one_thread()); },
                     cat("branch 1 of request 0 continues branch ", bad, " of 3"));
  }
}

}  // namespace
}  // namespace quire::attn
