// The hazards of the system that the metadata was learnt from (SGLang's FlashAttention backend), each by its name and
// with its own elements. There buffers are filled with zeros when they are made, because warm-up, padded rows or first
// elements of prefix sums read what no step has written.
//
// Here each hazard's step is the first one that its arena ever sees. A graph is captured on it, warmed up with nobody
// live, and replayed with fewer live requests than it was captured for, over poison every time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/merge.h"
#include "attn/testing/case.h"
#include "attn/testing/expect_near.h"
#include "attn/testing/shadow.h"

namespace quire::attn::testing {
namespace {

constexpr int32_t kCaptured = 4;

Step with_nobody_live(const Case& c) {
  Step step = c.step();
  step.sequences.clear();
  return step;
}

class Hazard : public ::testing::Test {
 protected:
  // --- the first capture, warm-up and replay of a world

  void expect_first_graph_right(Case c) {
    for (const Form form : {Form::in_place, Form::materialised}) {
      c.form = form;
      SCOPED_TRACE(to_string(c));
      World world(c.world());
      world.lay_out(with_nobody_live(c), exec_);
      world.poison(Poison::guard);
      const Graph graph = captured(world);
      for (const Step& step : {with_nobody_live(c), c.step(), with_nobody_live(c), c.step()}) {
        world.lay_out(step, exec_);
        world.poison(Poison::guard);
        graph.replay(exec_);
        expect_dense(world.result(), world.expected());
      }
    }
  }

  Graph captured(World& world) {
    Graph graph;
    exec_.begin_capture(graph);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec_);
    attend(world.args(), exec_);
    exec_.end_capture();
    return graph;
  }

  // --- what the materialised step writes, element by element

  struct Element {
    Buf id;
    int64_t row;
    int64_t column;
    int32_t value;
  };

  // Both with nobody live and with the case's requests, as the first step of a new world.
  void expect_written(const Case& c, const std::vector<Element>& with_nobody, const std::vector<Element>& with_live) {
    expect_written(c, with_nobody_live(c), with_nobody);
    expect_written(c, c.step(), with_live);
  }

  void expect_written(Case c, Step step, const std::vector<Element>& elements) {
    c.form = step.form = Form::materialised;
    SCOPED_TRACE(cat(to_string(c), ", live ", step.sequences.size()));
    World world(c.world());
    world.lay_out(step, exec_);
    world.poison(Poison::out_of_range);
    const Shadow shadow = shadow_of(world);
    for (const Element& element : elements) {
      const std::string name = cat(element.id, "[", element.row, "][", element.column, "]");
      ASSERT_TRUE(shadow.written(element.id, element.row, element.column)) << name;
      EXPECT_EQ(shadow.read(element.id, element.row, element.column), element.value) << name;
    }
    attend_shadowed(world.args(), world.shape(), c.kind, shadow);
    expect_dense(world.result(), world.expected());
  }

  Shadow shadow_of(World& world) {
    return Shadow(world.arena(), [&] { write_metadata(world.shape(), world.inputs(), world.arena(), exec_); });
  }

  // The same value at columns [0, count) of a row.
  static std::vector<Element> row_of(Buf id, int64_t row, int64_t count, int32_t value) {
    std::vector<Element> elements;
    for (int64_t column = 0; column < count; ++column) elements.push_back({id, row, column, value});
    return elements;
  }

  // The same value at the first column of rows [first, end).
  static std::vector<Element> first_column(Buf id, int64_t first, int64_t end, int32_t value) {
    std::vector<Element> elements;
    for (int64_t row = first; row < end; ++row) elements.push_back({id, row, 0, value});
    return elements;
  }

  static std::vector<Element> joined(const std::vector<std::vector<Element>>& lists) {
    std::vector<Element> all;
    for (const std::vector<Element>& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  Exec exec_{{.threads = 1}};
};

Case decode_case() { return {.lengths = {17, 40}, .captured = kCaptured}; }

Case draft_case() {
  return {.mode = Mode::draft, .lengths = {17, 40}, .captured = kCaptured, .draft_steps = 4, .draft_step = 2};
}

Case draft_tree_case() {
  return {.mode = Mode::draft_tree,
          .lengths = {17, 40},
          .captured = kCaptured,
          .topk = 3,
          .draft_steps = 4,
          .draft_step = 2};
}

Case verify_case() { return {.mode = Mode::verify, .lengths = {17, 40}, .captured = kCaptured, .draft_tokens = 5}; }

Case verify_tree_case() {
  return {.mode = Mode::verify_tree, .lengths = {17, 40}, .captured = kCaptured, .draft_tokens = 5};
}

Case local_case() { return {.kind = LayerKind::local, .lengths = {17, 40}, .captured = kCaptured, .chunk = 32}; }

Case encoder_case() {
  return {.kind = LayerKind::encoder, .lengths = {17, 40}, .captured = kCaptured, .encoder = {33, 5}};
}

// --- R1: wrong reads at replay

// Rows of padded requests in the table of draft branches were not written, yet read.
TEST_F(Hazard, R1_DraftBranchRowsOfPaddedRequestsAreWritten) {
  const Case c = draft_tree_case();
  const int64_t live_rows = 2 * c.topk, rows = kCaptured * c.topk;
  std::vector<Element> lengths;
  for (int64_t row = live_rows; row < rows; ++row)
    lengths.push_back({Buf::draft_branch_cache_seqlens, c.draft_step, row, 1});
  expect_written(c, first_column(Buf::draft_branch_page_table, 0, rows, 0),
                 joined({first_column(Buf::draft_branch_page_table, live_rows, rows, 0), lengths}));
  expect_first_graph_right(c);
}

// --- W1 to W8: warm-up reads what capture does not write

TEST_F(Hazard, W1_LengthsOfDraftChainsAreWrittenBeforeWarmUp) {
  expect_written(draft_case(),
                 joined({row_of(Buf::decode_cache_seqlens, 2, kCaptured, 1),
                         {{Buf::decode_cu_seqlens_k, 2, 0, 0}, {Buf::decode_cu_seqlens_k, 2, kCaptured, kCaptured}},
                         first_column(Buf::decode_page_table_draft_decode, 0, kCaptured, 0)}),
                 {{Buf::decode_cache_seqlens, 2, 0, 20},
                  {Buf::decode_cache_seqlens, 2, 1, 43},
                  {Buf::decode_cache_seqlens, 2, 2, 1},
                  {Buf::decode_cache_seqlens, 2, 3, 1},
                  {Buf::decode_cu_seqlens_k, 2, 4, 65}});
  expect_first_graph_right(draft_case());
  expect_first_graph_right(decode_case());
}

TEST_F(Hazard, W2_LocalBuffersAreWrittenBeforeWarmUp) {
  expect_written(local_case(),
                 joined({{{Buf::local_local_query_start_loc, 0, 0, 0},
                          {Buf::local_local_query_start_loc, 0, kCaptured, kCaptured}},
                         row_of(Buf::local_local_seqused_k, 0, kCaptured, 1),
                         first_column(Buf::local_local_block_table, 0, kCaptured, 0)}),
                 {{Buf::local_local_query_start_loc, 0, 0, 0},
                  {Buf::local_local_query_start_loc, 0, 1, 1},
                  {Buf::local_local_seqused_k, 0, 0, 17},
                  {Buf::local_local_seqused_k, 0, 1, 8},
                  {Buf::local_local_seqused_k, 0, 2, 1},
                  {Buf::local_local_block_table, 2, 0, 0},
                  {Buf::local_local_block_table, 3, 0, 0}});
  expect_first_graph_right(local_case());
}

TEST_F(Hazard, W3_PrefixLengthsOfDraftTreesAreWrittenBeforeWarmUp) {
  expect_written(draft_tree_case(),
                 joined({row_of(Buf::draft_prefix_cache_seqlens, 0, kCaptured, 1),
                         first_column(Buf::draft_prefix_page_table, 0, kCaptured, 0)}),
                 {{Buf::draft_prefix_cache_seqlens, 0, 0, 17},
                  {Buf::draft_prefix_cache_seqlens, 0, 1, 40},
                  {Buf::draft_prefix_cache_seqlens, 0, 2, 1},
                  {Buf::draft_prefix_cache_seqlens, 0, 3, 1}});
  expect_first_graph_right(draft_tree_case());
}

// Upstream's branch lengths are constants, so its warm-up reads slots at once.
TEST_F(Hazard, W4_SlotsOfDraftBranchesAreWrittenBeforeWarmUp) {
  Case c = draft_tree_case();
  for (c.draft_step = 0; c.draft_step < 3; ++c.draft_step) {
    expect_written(c, with_nobody_live(c),
                   first_column(Buf::draft_branch_page_table, 0, int64_t{kCaptured} * c.topk, 0));
    expect_first_graph_right(c);
  }
}

// Upstream's warm-up has length nd > 0 and reads row 0 of a table that nobody wrote.
TEST_F(Hazard, W5_TheVerifyTableIsWrittenBeforeWarmUp) {
  expect_written(verify_case(),
                 joined({row_of(Buf::verify_cache_seqlens, 0, kCaptured, 1),
                         first_column(Buf::verify_page_table, 0, kCaptured, 0)}),
                 {{Buf::verify_cache_seqlens, 0, 0, 22},
                  {Buf::verify_cache_seqlens, 0, 1, 45},
                  {Buf::verify_page_table, 2, 0, 0},
                  {Buf::verify_page_table, 3, 0, 0}});
  expect_first_graph_right(verify_case());
}

TEST_F(Hazard, W6_PrefixLengthsOfVerifiedTreesAreWrittenBeforeWarmUp) {
  expect_written(verify_tree_case(),
                 joined({row_of(Buf::verify_tree_prefix_cache_seqlens, 0, kCaptured, 1),
                         first_column(Buf::verify_tree_prefix_page_table, 0, kCaptured, 0)}),
                 {{Buf::verify_tree_prefix_cache_seqlens, 0, 0, 17},
                  {Buf::verify_tree_prefix_cache_seqlens, 0, 1, 40},
                  {Buf::verify_tree_prefix_cache_seqlens, 0, 2, 1},
                  {Buf::verify_tree_prefix_cache_seqlens, 0, 3, 1}});
  expect_first_graph_right(verify_tree_case());
}

TEST_F(Hazard, W7_BranchLengthsOfVerifiedTreesAreWrittenBeforeWarmUp) {
  Case c = verify_tree_case();
  c.trees = {{-1, 0, 0, 1, 3}, {-1, 0, 1, 2, 3}};
  const int64_t rows = int64_t{kCaptured} * c.draft_tokens;
  std::vector<Element> live = row_of(Buf::verify_tree_branch_cache_seqlens, 0, rows, 1);
  const std::vector<int32_t> visible = {1, 2, 2, 3, 4, 1, 2, 3, 4, 5};  // ancestors, the node included
  for (size_t node = 0; node < visible.size(); ++node) live[node].value = visible[node];
  expect_written(c,
                 joined({row_of(Buf::verify_tree_branch_cache_seqlens, 0, rows, 1),
                         first_column(Buf::verify_tree_branch_page_table, 0, rows, 0)}),
                 live);
  expect_first_graph_right(c);
}

TEST_F(Hazard, W8_EncoderLengthsAreWrittenBeforeWarmUp) {
  expect_written(encoder_case(),
                 joined({row_of(Buf::encoder_encoder_lens_int32, 0, kCaptured, 1),
                         first_column(Buf::encoder_encoder_page_table, 0, kCaptured, 0)}),
                 {{Buf::encoder_encoder_lens_int32, 0, 0, 33},
                  {Buf::encoder_encoder_lens_int32, 0, 1, 5},
                  {Buf::encoder_encoder_lens_int32, 0, 2, 1},
                  {Buf::encoder_encoder_lens_int32, 0, 3, 1}});
  expect_first_graph_right(encoder_case());
}

// --- L1 to L5: the first element of key prefix sums, which no replay wrote

TEST_F(Hazard, L1_PrefixSumsOfDraftTreesStartWithZero) {
  expect_written(draft_tree_case(), {{Buf::draft_prefix_cu_seqlens_k, 0, 0, 0}},
                 {{Buf::draft_prefix_cu_seqlens_k, 0, 0, 0}, {Buf::draft_prefix_cu_seqlens_k, 0, 4, 59}});
}

TEST_F(Hazard, L2_PrefixSumsOfVerifiedChainsStartWithZero) {
  expect_written(verify_case(), {{Buf::verify_cu_seqlens_k, 0, 0, 0}},
                 {{Buf::verify_cu_seqlens_k, 0, 0, 0}, {Buf::verify_cu_seqlens_k, 0, 4, 69}});
}

TEST_F(Hazard, L3_PrefixSumsOfVerifiedTreesStartWithZero) {
  expect_written(verify_tree_case(), {{Buf::verify_tree_prefix_cu_seqlens_k, 0, 0, 0}},
                 {{Buf::verify_tree_prefix_cu_seqlens_k, 0, 0, 0}, {Buf::verify_tree_prefix_cu_seqlens_k, 0, 4, 59}});
}

TEST_F(Hazard, L4_PrefixSumsOfTreeNodesStartWithZero) {
  Case c = verify_tree_case();
  c.trees = {{-1, 0, 0, 1, 3}, {-1, 0, 1, 2, 3}};
  expect_written(c, {{Buf::verify_tree_branch_cu_seqlens_k, 0, 0, 0}},
                 {{Buf::verify_tree_branch_cu_seqlens_k, 0, 0, 0},
                  {Buf::verify_tree_branch_cu_seqlens_k, 0, 5, 12},
                  {Buf::verify_tree_branch_cu_seqlens_k, 0, 20, 37}});
}

TEST_F(Hazard, L5_PrefixSumsOfEncoderKeysStartWithZero) {
  expect_written(encoder_case(), {{Buf::encoder_encoder_cu_seqlens_k, 0, 0, 0}},
                 {{Buf::encoder_encoder_cu_seqlens_k, 0, 0, 0}, {Buf::encoder_encoder_cu_seqlens_k, 0, 4, 40}});
}

// --- N1: table entries past a sequence's pages

// They are not written, and hold the guard's pages, full of NaN, when the kernel runs.
TEST_F(Hazard, N1_TableEntriesPastTheLengthAreNeitherWrittenNorRead) {
  struct Table {
    Case c;
    Buf id;
    std::vector<int32_t> pages;  // of each sequence, padding included
  };
  for (Table& table : std::vector<Table>{{decode_case(), Buf::decode_page_table, {2, 3, 1, 1}},
                                         {draft_case(), Buf::decode_page_table_draft_decode, {2, 3, 1, 1}},
                                         {draft_tree_case(), Buf::draft_prefix_page_table, {2, 3, 1, 1}},
                                         {verify_case(), Buf::verify_page_table, {2, 3, 1, 1}},
                                         {verify_tree_case(), Buf::verify_tree_prefix_page_table, {2, 3, 1, 1}},
                                         {local_case(), Buf::local_local_block_table, {2, 1, 1, 1}},
                                         {encoder_case(), Buf::encoder_encoder_page_table, {3, 1, 1, 1}}}) {
    table.c.form = Form::materialised;
    table.c.context = 200;
    SCOPED_TRACE(to_string(table.c));
    World world(table.c.world());
    world.lay_out(table.c.step(), exec_);
    const Shadow shadow = shadow_of(world);
    const int64_t columns = world.arena().shape(table.id).columns;
    for (size_t b = 0; b < table.pages.size(); ++b)
      for (int64_t column = 0; column < columns; ++column)
        EXPECT_EQ(shadow.written(table.id, static_cast<int64_t>(b), column), column < table.pages[b])
            << b << ", " << column;
    world.poison(Poison::guard);
    write_metadata(world.shape(), world.inputs(), world.arena(), exec_);
    attend(world.args(), exec_);
    expect_dense(world.result(), world.expected());
  }
}

// --- defects

// Upstream's reader and writer of draft slots once disagreed on their order for more than one request.
TEST_F(Hazard, DraftSlotsOfSeveralRequestsKeepTheirPlaces) {
  Case c = draft_tree_case();
  c.lengths = {17, 40, 9};
  c.form = Form::materialised;
  World world(c.world());
  world.lay_out(c.step(), exec_);
  const Shadow shadow = shadow_of(world);
  const TokenSlot* given = world.inputs().draft_slots;  // [request, branch, step]
  for (int32_t row = 0; row < 3 * c.topk; ++row)
    for (int32_t step = 0; step <= c.draft_step; ++step)
      EXPECT_EQ(shadow.read(Buf::draft_branch_page_table, row, step), given[row * c.draft_steps + step].value);
  expect_first_graph_right(c);
}

// Upstream rounds a chunk that is longer than all requests down to whole pages: of 100 keys the last row saw 4.
TEST_F(Hazard, AChunkLongerThanTheRequestIsNotRoundedDown) {
  Case c = local_case();
  c.lengths = {100, 37};
  c.chunk = 8192;
  expect_written(c, c.step(),
                 {{Buf::local_local_seqused_k, 0, 0, 100},
                  {Buf::local_local_seqused_k, 0, 1, 37},
                  {Buf::local_local_query_start_loc, 0, 1, 1}});
  expect_first_graph_right(c);
}

// Upstream gives both halves of a tree the window, aligned as if all nodes stood at the end: deep and shallow nodes
// of one request begin at different keys of the prefix, or past it.
TEST_F(Hazard, NodesOfATreeHaveTheirOwnWindows) {
  Case c = verify_tree_case();
  c.lengths = {17, 40, 0};
  c.draft_tokens = 6;
  c.trees = {{-1, 0, 1, 2, 3, 4}, {-1, 0, 0, 0, 1, 4}, {-1, 0, 1, 1, 3, 0}};
  for (c.window = 0; c.window < 9; ++c.window)
    for (c.window_pool = false;; c.window_pool = true) {
      c.kind = c.window_pool ? LayerKind::window : LayerKind::full;
      expect_first_graph_right(c);
      if (c.window_pool) break;
    }
}

TEST_F(Hazard, AMergeOfTwoEmptyPartsIsEmpty) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int32_t kRows = 3, kHeads = 2, kDim = 16;
  const std::vector<float> part(kRows * kHeads * kDim, std::nanf(""));
  for (const float empty : {-kInfinity, kInfinity})
    for (MergeFn* merge_fn : {ref::merge, cpu::merge}) {
      const std::vector<float> lse_a(kRows * kHeads, -kInfinity), lse_b(kRows * kHeads, empty);
      std::vector<float> out(part.size(), std::nanf("")), lse(kRows * kHeads, std::nanf(""));
      const ConstHeadRows rows{.data = reinterpret_cast<const std::byte*>(part.data()),
                               .type = Dtype::f32,
                               .rows = kRows,
                               .heads = kHeads,
                               .dim = kDim,
                               .row_stride = kHeads * kDim};
      merge_fn({.a = rows,
                .b = rows,
                .lse_a = lse_a.data(),
                .lse_b = lse_b.data(),
                .out = {.data = reinterpret_cast<std::byte*>(out.data()),
                        .type = Dtype::f32,
                        .rows = kRows,
                        .heads = kHeads,
                        .dim = kDim,
                        .row_stride = kHeads * kDim},
                .lse = lse.data()},
               exec_);
      EXPECT_EQ(out, std::vector<float>(out.size(), 0.0f));
      EXPECT_EQ(lse, std::vector<float>(lse.size(), -kInfinity));
    }
}

// With s + nd past the context upstream's tables are clipped and its lengths are not.
TEST_F(Hazard, DraftsPastTheContextHaveTheirPages) {
  for (Case c : {verify_case(), verify_tree_case()})
    for (const int32_t page_size : {1, 16, 64}) {
      c.page_size = page_size;
      c.context = 64;
      c.lengths = {64, 61, 59};
      expect_first_graph_right(c);
    }
  const PageSize size(16);
  Case c = verify_case();
  c.context = 64;
  c.lengths = {64, 61};
  c.form = Form::materialised;
  World world(c.world());
  world.lay_out(c.step(), exec_);
  const Shadow shadow = shadow_of(world);
  for (int32_t b = 0; b < 2; ++b) {
    EXPECT_EQ(shadow.read(Buf::verify_cache_seqlens, 0, b), c.lengths[b] + c.draft_tokens);
    EXPECT_TRUE(shadow.written(Buf::verify_page_table, b, size.pages_for(c.lengths[b] + c.draft_tokens) - 1));
  }
}

// Upstream never resets the inputs of padded rows. Here those rows hold nonsense, what an earlier and larger step left
// in the arena stays there, and the requests it belonged to are gone.
TEST_F(Hazard, StaleRowsPastTheLiveCountDoNotMatter) {
  for (Case c : {decode_case(), draft_case(), draft_tree_case(), verify_case(), verify_tree_case(), local_case(),
                 encoder_case()})
    for (const Form form : {Form::in_place, Form::materialised}) {
      c.form = form;
      c.lengths = {17, 40, 33, 50};
      if (!c.encoder.empty()) c.encoder = {33, 5, 70, 1};
      SCOPED_TRACE(to_string(c));
      World world(c.world());
      world.lay_out(c.step(), exec_);
      world.poison(Poison::guard);
      const Graph graph = captured(world);
      graph.replay(exec_);
      expect_dense(world.result(), world.expected());
      for (const int32_t gone : {0, 1, 3}) world.close(gone);
      Step one = c.step();
      one.sequences = {one.sequences[2]};
      world.lay_out(one, exec_);
      graph.replay(exec_);
      expect_dense(world.result(), world.expected());
    }
}

// Upstream gives every request the first one's encoder length.
TEST_F(Hazard, EncoderLengthsBelongToTheirRequests) {
  Case c = encoder_case();
  c.lengths = {17, 40, 3};
  c.encoder = {33, 1, 0};
  expect_written(c, c.step(),
                 {{Buf::encoder_encoder_lens_int32, 0, 0, 33},
                  {Buf::encoder_encoder_lens_int32, 0, 1, 1},
                  {Buf::encoder_encoder_lens_int32, 0, 2, 0},
                  {Buf::decode_first_page, 0, 0, 3},
                  {Buf::decode_first_page, 0, 1, 1},
                  {Buf::decode_first_page, 0, 2, 0}});
  expect_first_graph_right(c);
  c.kind = LayerKind::full;  // text keys begin on the page after the encoder's
  expect_first_graph_right(c);
}

}  // namespace
}  // namespace quire::attn::testing
