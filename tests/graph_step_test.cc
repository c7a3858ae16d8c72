// Whole steps as a server runs them: the new tokens' keys and values are stored, the metadata is written, a layer
// attends; captured once for each padded batch size and replayed while the batch shrinks and grows. Replays give the
// bits of eager runs, agree with the dense reference, and ask for no memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "allocation_counter.h"
#include "attn/sequence.h"
#include "attn/testing/case.h"
#include "base/graph.h"
#include "base/testing/expect_refused.h"

namespace quire::attn::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kMostRequests = 8;
constexpr int kPaddedSizes[] = {1, 2, 4, 8};
constexpr int32_t kExtend = 4;  // most queries of a request in the extend modes

// Where a request's text begins in its row, in tokens.
int32_t text_begin(const World& world, const Sequence& sequence) {
  const PageSize size = world.arena().limits().page_size;
  return size.pages_for(sequence.encoder) * size.tokens();
}

// The slot of a query's own key.
TokenSlot query_slot(World& world, const Step& step, int32_t b, int32_t row) {
  const Limits& limits = world.arena().limits();
  const Sequence& sequence = step.sequences[b];
  if (step.mode == Mode::draft_tree)
    return world.inputs().draft_slots[(b * limits.topk + row) * limits.draft_steps + step.draft_step];
  int32_t first = sequence.length;
  if (step.mode == Mode::decode) first -= 1;
  if (has_extend_lengths(step.mode)) first -= sequence.extend;
  if (step.mode == Mode::draft) first += step.draft_step;
  const StepShape shape = world.shape();
  const bool in_window_pool = step.kind == LayerKind::window;
  const kv::TableView& table = in_window_pool ? *shape.window_table : shape.table;
  const int32_t position = (in_window_pool ? 0 : text_begin(world, sequence)) + first + row;
  const PageId page =
      table.pages[world.row(sequence.request).value * table.stride + position / table.page_size.tokens()];
  return table.page_size.slot(page, position % table.page_size.tokens());
}

// One step's inputs and outputs at fixed addresses: queries, the new tokens' keys and values, and the results.
class Rows {
 public:
  Rows(const Sizes& sizes, int64_t most)
      : sizes_(sizes),
        tokens_(sizes),
        queries_(most * sizes.heads * sizes.key_dim),
        keys_(most * sizes.kv_heads * sizes.key_dim),
        values_(most * sizes.kv_heads * sizes.value_dim),
        slots_(most),
        out_(most * sizes.heads * sizes.value_dim),
        lse_(most * sizes.heads) {}

  // Fills in the step that the world holds. Until the step stores them, the new tokens' slots are NaN.
  void fill(World& world, const Step& step) {
    std::fill(out_.begin(), out_.end(), std::nanf(""));
    std::fill(lse_.begin(), lse_.end(), std::nanf(""));
    std::fill(queries_.begin(), queries_.end(), std::nanf(""));
    std::memset(static_cast<void*>(slots_.data()), 0x7f, slots_.size() * sizeof(TokenSlot));
    live_ = 0;
    for (size_t b = 0; b < step.sequences.size(); ++b)
      for (int32_t row = 0; row < query_rows(step, step.sequences[b], sizes_); ++row)
        add(world, query_token(step, step.sequences[b], row), query_slot(world, step, static_cast<int32_t>(b), row));
  }

  // The three operations, for `rows` padded query rows.
  void store(const kv::LayerKv& layer, int64_t rows, Exec& exec) {
    kv::store_rows({.layer = layer,
                    .keys = view(keys_, rows, sizes_.kv_heads, sizes_.key_dim),
                    .values = view(values_, rows, sizes_.kv_heads, sizes_.value_dim),
                    .slots = slots_.data(),
                    .live_rows = &live_},
                   exec);
  }
  void attend_layer(AttendArgs args, int64_t rows, Exec& exec) {
    args.q = view(queries_, rows, sizes_.heads, sizes_.key_dim);
    args.out = {.data = reinterpret_cast<std::byte*>(out_.data()),
                .type = Dtype::f32,
                .rows = rows,
                .heads = sizes_.heads,
                .dim = sizes_.value_dim,
                .row_stride = int64_t{sizes_.heads} * sizes_.value_dim};
    args.lse = lse_.data();
    attend(args, exec);
  }

  // Live rows are as expected; padded ones are zero, their log-sum-exp -inf.
  void expect_right(const Attention& expected, int64_t rows) const {
    const int64_t width = int64_t{sizes_.heads} * sizes_.value_dim;
    const auto expected_rows = static_cast<int64_t>(expected.lse.size()) / sizes_.heads;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = row * width; i < (row + 1) * width; ++i)
        ASSERT_NEAR(out_[i], row < live_ ? expected.out[i] : 0.0f, row < live_ ? 5e-5f : 0.0f) << "row " << row;
      for (int32_t head = 0; head < sizes_.heads; ++head) {
        const float got = lse_[head * rows + row];
        const float wanted = row < live_ ? expected.lse[head * expected_rows + row] : -kInfinity;
        ASSERT_TRUE(got == wanted || std::abs(got - wanted) < 1e-4f) << "row " << row << ": " << got << ", " << wanted;
      }
    }
  }

  std::string bits(int64_t rows) const {
    std::string bits(reinterpret_cast<const char*>(out_.data()),
                     rows * sizes_.heads * sizes_.value_dim * sizeof(float));
    return bits.append(reinterpret_cast<const char*>(lse_.data()), rows * sizes_.heads * sizeof(float));
  }

 private:
  void add(World& world, Token token, TokenSlot slot) {
    const TokenValues::Row& row = tokens_.row(token);
    const std::vector<float> query = tokens_.query(token);
    std::copy(query.begin(), query.end(), queries_.begin() + live_ * std::ssize(query));
    std::copy(row.keys.begin(), row.keys.end(), keys_.begin() + live_ * std::ssize(row.keys));
    std::copy(row.values.begin(), row.values.end(), values_.begin() + live_ * std::ssize(row.values));
    slots_[live_++] = slot;
    const kv::LayerKv layer = world.args().kv;
    std::memset(layer.keys + slot.value * layer.key_stride * sizeof(float), 0xff, layer.key_stride * sizeof(float));
    std::memset(layer.values + slot.value * layer.value_stride * sizeof(float), 0xff,
                layer.value_stride * sizeof(float));
  }

  static ConstHeadRows view(const std::vector<float>& numbers, int64_t rows, int32_t heads, int32_t dim) {
    return {.data = reinterpret_cast<const std::byte*>(numbers.data()),
            .type = Dtype::f32,
            .rows = rows,
            .heads = heads,
            .dim = dim,
            .row_stride = int64_t{heads} * dim};
  }

  Sizes sizes_;
  TokenValues tokens_;
  std::vector<float> queries_, keys_, values_;
  std::vector<TokenSlot> slots_;
  std::vector<float> out_, lse_;
  int32_t live_ = 0;
};

Case case_of(Mode mode, LayerKind kind) {
  Case c{.mode = mode,
         .kind = kind,
         .heads = 4,
         .kv_heads = 2,
         .key_dim = 32,
         .lengths = std::vector<int32_t>(kMostRequests, 800),
         .captured = kMostRequests,
         .threads = 2};
  if (has_extend_lengths(mode)) c.extend.assign(kMostRequests, kExtend);
  if (is_draft(mode)) c.draft_steps = 4;
  if (mode == Mode::draft_tree) c.topk = 3;
  if (mode == Mode::verify || mode == Mode::verify_tree) c.draft_tokens = 5;
  if (kind == LayerKind::local) c.chunk = 64;
  if (kind == LayerKind::encoder) c.encoder.assign(kMostRequests, 70);
  c.window_pool = kind == LayerKind::window;
  if (c.window_pool) c.window = 20;
  return c;
}

// The batch shrinks and grows; requests come in any order, and the first one is long enough to be split.
class Batches {
 public:
  explicit Batches(const Case& c) : case_(c) {}

  Step next(int32_t live) {
    std::vector<int32_t> ids(kMostRequests);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(live);
    Case c = case_;
    c.seed = random_();
    c.lengths.clear();
    c.extend.clear();
    c.requests = ids;
    c.captured = 0;
    if (!c.encoder.empty()) c.encoder.clear();
    for (const int32_t id : ids) {
      length_[id] = std::min(length_[id] + 1 + static_cast<int32_t>(random_() % 9), id == 0 ? 799 : 150);
      c.lengths.push_back(length_[id]);
      if (has_extend_lengths(c.mode)) c.extend.push_back(static_cast<int32_t>(1 + random_() % kExtend));
      if (!case_.encoder.empty()) c.encoder.push_back(id * 10);
    }
    return c.step();
  }

 private:
  Case case_;
  std::mt19937_64 random_{17};
  std::vector<int32_t> length_ = {700, 4, 15, 16, 17, 30, 63, 100};
};

Step padded_to(Step step, int32_t captured) {
  step.captured = captured;
  return step;
}

class GraphStep : public ::testing::Test {
 protected:
  static int32_t rows_of(const Case& c, int32_t captured) {
    if (has_extend_lengths(c.mode)) return captured * kExtend;
    return captured * query_rows(c.step(), Sequence{.request = 0, .length = 1}, c.world().sizes);
  }

  void run_eagerly(World& world, Rows& rows, int32_t count) {
    rows.store(world.args().kv, count, exec_);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec_);
    rows.attend_layer(world.args(), count, exec_);
  }

  GraphSet captured(World& world, Rows& rows, const Case& c) {
    Step nobody = c.step();
    nobody.sequences.clear();
    GraphSet graphs;
    graphs.capture(exec_, kPaddedSizes, [&](int size) {
      world.lay_out(padded_to(nobody, size), other_exec_);
      run_eagerly(world, rows, rows_of(c, size));
    });
    return graphs;
  }

  // The step that the world holds, over fresh poison.
  void prepare(World& world, Rows& rows, const Step& step) {
    world.lay_out(step, other_exec_);
    world.poison(Poison::guard);
    rows.fill(world, step);
  }

  void expect_replays_right(const Case& c) {
    SCOPED_TRACE(to_string(c));
    const WorldSpec spec = c.world();
    World world(spec);
    Rows rows(spec.sizes, rows_of(c, kMostRequests));
    const GraphSet graphs = captured(world, rows, c);
    Batches batches(c);
    for (const int32_t live : {8, 3, 1, 5, 8, 0, 2, 7, 4, 1, 6, 8}) {
      SCOPED_TRACE(cat("live ", live));
      const int32_t size = graphs.padded_size(live);
      const Step step = padded_to(batches.next(live), size);
      prepare(world, rows, step);
      run_eagerly(world, rows, rows_of(c, size));
      const std::string eager = rows.bits(rows_of(c, size));
      prepare(world, rows, step);
      const int64_t before = quire::testing::allocations();
      graphs.replay(exec_, live);
      EXPECT_EQ(quire::testing::allocations() - before, 0);
      EXPECT_TRUE(rows.bits(rows_of(c, size)) == eager) << "the replay and the eager run differ";
      rows.expect_right(world.expected(), rows_of(c, size));
    }
  }

  void expect_replays_right_in_both_forms(Mode mode, LayerKind kind = LayerKind::full) {
    Case c = case_of(mode, kind);
    expect_replays_right(c);
    c.form = Form::materialised;
    c.page_size = 1;
    expect_replays_right(c);
  }

  Exec exec_{{.threads = 2}};
  Exec other_exec_{{.threads = 1}};  // lays out while exec_ captures
};

TEST_F(GraphStep, Decode) { expect_replays_right_in_both_forms(Mode::decode); }
TEST_F(GraphStep, DecodeOfLocalLayers) { expect_replays_right_in_both_forms(Mode::decode, LayerKind::local); }
TEST_F(GraphStep, DecodeOfWindowLayers) { expect_replays_right_in_both_forms(Mode::decode, LayerKind::window); }
TEST_F(GraphStep, DecodeOfEncoderLayers) { expect_replays_right_in_both_forms(Mode::decode, LayerKind::encoder); }
TEST_F(GraphStep, Extend) { expect_replays_right_in_both_forms(Mode::extend); }
TEST_F(GraphStep, ExtendOfLocalLayers) { expect_replays_right_in_both_forms(Mode::extend, LayerKind::local); }
TEST_F(GraphStep, ExtendOfEncoderLayers) { expect_replays_right_in_both_forms(Mode::extend, LayerKind::encoder); }
TEST_F(GraphStep, Draft) { expect_replays_right_in_both_forms(Mode::draft); }
TEST_F(GraphStep, DraftTree) { expect_replays_right_in_both_forms(Mode::draft_tree); }
TEST_F(GraphStep, Verify) { expect_replays_right_in_both_forms(Mode::verify); }
TEST_F(GraphStep, VerifyTree) { expect_replays_right_in_both_forms(Mode::verify_tree); }
TEST_F(GraphStep, VerifyTreeOfWindowLayers) {
  expect_replays_right_in_both_forms(Mode::verify_tree, LayerKind::window);
}
TEST_F(GraphStep, DraftExtend) { expect_replays_right_in_both_forms(Mode::draft_extend); }

// --- steps that a recorded graph has no room for

constexpr Mode kAllModes[] = {Mode::decode, Mode::extend,      Mode::draft,       Mode::draft_tree,
                              Mode::verify, Mode::verify_tree, Mode::draft_extend};

class TooFewRows : public GraphStep {
 protected:
  // Eight requests in a world with room for them, and a shape with room for less.
  void lay_out(const Case& c, int32_t rows) {
    world_.emplace(c.world());
    world_->lay_out(c.step(), other_exec_);
    world_->poison(Poison::guard);
    shape_ = world_->shape();
    shape_.query_rows = rows;
  }
  void attend_to(int32_t rows) {
    AttendArgs args = world_->args();
    args.keys = key_view(world_->arena(), shape_, LayerKind::full);
    args.q.rows = args.out.rows = rows;
    attend(args, exec_);
  }

  std::optional<World> world_;
  StepShape shape_{
      .mode = Mode::decode,
      .captured = 0,
      .query_rows = 0,
      .table = {.pages = nullptr, .stride = 0, .rows = 0, .width = 0, .page_size = PageSize(1), .pool_pages = 0}};
};

// Kernels write a row of `out` for each query row of the step: the others would lie past its end.
TEST_F(TooFewRows, AReplayWithMoreQueryRowsThanWereRecordedIsRefused) {
  for (const Mode mode : kAllModes) {
    SCOPED_TRACE(attn::to_string(mode));
    const Case c = case_of(mode, LayerKind::full);
    const int32_t all = rows_of(c, kMostRequests), few = all / 2;
    lay_out(c, few);
    Graph graph;
    exec_.begin_capture(graph);
    write_metadata(shape_, world_->inputs(), world_->arena(), exec_);
    attend_to(few);
    exec_.end_capture();
    expect_refused(
        [&] {
          check_step(shape_, world_->inputs(), world_->arena().limits());
          graph.replay(exec_);
        },
        cat("its requests have ", all, " query rows, the shape has room for ", few));
    const std::vector<float> out = world_->result().out;
    EXPECT_TRUE(std::ranges::all_of(out, [](float value) { return std::isnan(value); })) << "a row was written";
  }
}

TEST_F(TooFewRows, RecordingAttentionWithFewerRowsThanTheShapeAllowsIsRefused) {
  for (const Mode mode : kAllModes) {
    SCOPED_TRACE(attn::to_string(mode));
    const Case c = case_of(mode, LayerKind::full);
    const int32_t all = rows_of(c, kMostRequests);
    lay_out(c, all);
    Graph graph;
    exec_.begin_capture(graph);
    expect_refused([&] { attend_to(all - 1); }, cat("a step of this shape has up to ", all, " query rows"));
    EXPECT_NO_THROW(attend_to(all));
    exec_.end_capture();
  }
}

TEST_F(GraphStep, AnArenaOfAGpuIsRefusedOnTheCpu) {
  const Case c = case_of(Mode::decode, LayerKind::full);
  WorldSpec spec = c.world();
  spec.limits.device = Device::cuda;
  World world(spec);
  world.lay_out(c.step(), exec_);
  expect_refused([&] { attend(world.args(), exec_); }, "on the cpu, and the arena is made for");
}

// --- a whole draft round in one graph: one write, then every draft step stores, attends and chooses its branches

class DraftRound : public GraphStep {
 protected:
  static constexpr int32_t kForwards = 3;  // of 4 draft steps

  // One step of the round; the world lies at its last one, whose slots are those of all.
  static Step step_of(Step round, int32_t draft_step) {
    round.draft_step = draft_step;
    for (Sequence& sequence : round.sequences)
      if (!sequence.draft_parents.empty()) sequence.draft_parents.resize(draft_step);
    return round;
  }

  Graph captured_round(World& world, std::vector<Rows>& rows, const Case& c) {
    Graph graph;
    exec_.begin_capture(graph);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec_);
    for (int32_t i = 0; i < kForwards; ++i) {
      StepShape shape = world.shape();
      shape.draft_step = i;
      if (c.mode == Mode::draft_tree && i > 0)
        follow_parents(shape, world.inputs(), world.arena(), i - 1, parents_[i - 1].data(), exec_);
      AttendArgs args = world.args();
      args.keys = key_view(world.arena(), shape, LayerKind::full);
      rows[i].store(args.kv, rows_of(c, kMostRequests), exec_);
      rows[i].attend_layer(args, rows_of(c, kMostRequests), exec_);
    }
    exec_.end_capture();
    return graph;
  }

  void choose_parents(Step& round, const Case& c) {
    if (c.mode != Mode::draft_tree) return;
    for (size_t b = 0; b < round.sequences.size(); ++b)
      for (int32_t t = 0; t + 1 < kForwards; ++t) {
        std::vector<int32_t>& chosen = round.sequences[b].draft_parents.emplace_back();
        for (int32_t branch = 0; branch < c.topk; ++branch) {
          chosen.push_back(static_cast<int32_t>(random_() % c.topk));
          parents_[t][b * c.topk + branch] = chosen.back();
        }
      }
  }

  void expect_rounds_right(Case c) {
    SCOPED_TRACE(to_string(c));
    c.draft_step = kForwards - 1;
    const WorldSpec spec = c.world();
    World world(spec);
    TokenValues tokens(spec.sizes);
    parents_.assign(kForwards - 1, std::vector<int32_t>(kMostRequests * c.topk));
    std::vector<Rows> rows(kForwards, Rows(spec.sizes, rows_of(c, kMostRequests)));
    Step nobody = c.step();
    nobody.sequences.clear();
    world.lay_out(nobody, other_exec_);
    const Graph graph = captured_round(world, rows, c);
    Batches batches(c);
    for (const int32_t live : {8, 3, 1, 0, 5, 8}) {
      SCOPED_TRACE(cat("live ", live));
      Step round = padded_to(batches.next(live), kMostRequests);
      choose_parents(round, c);
      world.lay_out(round, other_exec_);
      world.poison(Poison::guard);
      for (int32_t i = 0; i < kForwards; ++i) rows[i].fill(world, step_of(round, i));
      const int64_t before = quire::testing::allocations();
      graph.replay(exec_);
      EXPECT_EQ(quire::testing::allocations() - before, 0);
      for (int32_t i = 0; i < kForwards; ++i)
        rows[i].expect_right(dense_attention(step_of(round, i), spec.sizes, tokens), rows_of(c, kMostRequests));
    }
  }

  std::vector<std::vector<int32_t>> parents_;  // [draft step][request, branch], where the graph reads them
  std::mt19937_64 random_{23};
};

TEST_F(DraftRound, ChainsInOneGraph) {
  for (const Form form : {Form::in_place, Form::materialised}) {
    Case c = case_of(Mode::draft, LayerKind::full);
    c.form = form;
    expect_rounds_right(c);
  }
}

TEST_F(DraftRound, TreesThatFollowTheirParentsInOneGraph) {
  for (const Form form : {Form::in_place, Form::materialised}) {
    Case c = case_of(Mode::draft_tree, LayerKind::full);
    c.form = form;
    expect_rounds_right(c);
  }
}

// The counter that the tests above hold at zero does count.
TEST(AllocationCounter, CountsTheAllocatorAndMappings) {
  int64_t before = quire::testing::allocations();
  std::vector<int> numbers(1000);
  EXPECT_EQ(quire::testing::allocations() - before, 1) << numbers.size();
  before = quire::testing::allocations();
  const Buffer buffer(1 << 20);
  EXPECT_EQ(quire::testing::allocations() - before, quire::testing::kCountsMappings) << buffer.size();
}

}  // namespace
}  // namespace quire::attn::testing
