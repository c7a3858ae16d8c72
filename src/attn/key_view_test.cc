#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "attn/attention.h"
#include "base/testing/expect_refused.h"

namespace quire::attn {
namespace {

struct Fixture {
  Limits limits{.batch = 4,
                .context = 60,
                .page_size = PageSize(16),
                .topk = 2,
                .draft_steps = 4,
                .draft_tokens = 3,
                .chunk = 32,
                .encoder_context = 20,
                .form = Form::materialised};
  MetadataArena arena{limits};
  std::vector<PageId> pages = std::vector<PageId>(4 * 8);
  kv::TableView table{
      .pages = pages.data(), .stride = 8, .rows = 4, .width = 8, .page_size = PageSize(16), .pool_pages = 9};
  kv::TableView window{
      .pages = pages.data() + 1, .stride = 7, .rows = 4, .width = 7, .page_size = PageSize(16), .pool_pages = 9};

  StepShape shape(Mode mode, Form form) const {
    return {.mode = mode, .form = form, .captured = 4, .query_rows = 12, .table = table};
  }
};

TEST(KeyView, InPlaceReadsTheRequestTable) {
  const Fixture f;
  const KeyView view = key_view(f.arena, f.shape(Mode::decode, Form::in_place), LayerKind::full);
  EXPECT_EQ(view.set, Set::decode);
  EXPECT_EQ(view.pages, f.table.pages);
  EXPECT_EQ(view.stride, 8);
  EXPECT_EQ(view.rows, f.arena.rows(Buf::decode_request_row));
  EXPECT_EQ(view.first_page, f.arena.counts(Buf::decode_first_page));
  EXPECT_FALSE(view.starts_at_first_page);
  EXPECT_TRUE(view.causal);
  EXPECT_EQ(view.branch_lengths, nullptr);
  EXPECT_EQ(view.most_branch_tokens, 0);
}

TEST(KeyView, MaterialisedReadsItsOwnTable) {
  const Fixture f;
  const KeyView view = key_view(f.arena, f.shape(Mode::verify, Form::materialised), LayerKind::full);
  EXPECT_EQ(view.pages, f.arena.pages(Buf::verify_page_table));
  EXPECT_EQ(view.stride, f.limits.text_pages());
  EXPECT_EQ(view.rows, nullptr);
  EXPECT_EQ(view.first_page, nullptr);
}

TEST(KeyView, ADraftStepReadsItsPlane) {
  const Fixture f;
  StepShape step = f.shape(Mode::draft, Form::materialised);
  step.draft_step = 2;
  const KeyView view = key_view(f.arena, step, LayerKind::full);
  EXPECT_EQ(view.lengths, f.arena.counts(Buf::decode_cache_seqlens) + 2 * 4);
  EXPECT_EQ(view.cu_items, f.arena.counts(Buf::decode_cu_items) + 2 * 5);
  EXPECT_EQ(view.cu_splits, f.arena.counts(Buf::decode_cu_splits) + 2 * 5);
  EXPECT_EQ(view.pages, f.arena.pages(Buf::decode_page_table_draft_decode));
  step.draft_step = 3;
  expect_refused([&] { key_view(f.arena, step, LayerKind::full); }, "draft step 3 is not below 3");
}

TEST(KeyView, BoundsTheKeys) {
  const Fixture f;  // drafts of up to 4 tokens
  StepShape step = f.shape(Mode::decode, Form::in_place);
  EXPECT_EQ(key_view(f.arena, step, LayerKind::full).most_keys, 64);
  step.context = 30;
  step.encoder = true;
  EXPECT_EQ(key_view(f.arena, step, LayerKind::full).most_keys, 34);
  EXPECT_EQ(key_view(f.arena, step, LayerKind::encoder).most_keys, 20);
}

TEST(KeyView, TreesCarryTheirBranches) {
  const Fixture f;
  StepShape step = f.shape(Mode::draft_tree, Form::in_place);
  step.draft_step = 1;
  const KeyView draft = key_view(f.arena, step, LayerKind::full);
  EXPECT_EQ(draft.set, Set::draft_prefix);
  EXPECT_FALSE(draft.causal);
  EXPECT_EQ(draft.lengths, f.arena.counts(Buf::draft_prefix_cache_seqlens));
  EXPECT_EQ(draft.branch_lengths, f.arena.counts(Buf::draft_branch_cache_seqlens) + 4 * 2);
  EXPECT_EQ(draft.branch_slots, f.arena.slots(Buf::draft_branch_page_table));
  EXPECT_EQ(draft.branch_stride, 4);
  EXPECT_EQ(draft.most_branch_tokens, 4);
  const KeyView verify = key_view(f.arena, f.shape(Mode::verify_tree, Form::in_place), LayerKind::full);
  EXPECT_FALSE(verify.causal);
  EXPECT_EQ(verify.branch_lengths, f.arena.counts(Buf::verify_tree_branch_cache_seqlens));
  EXPECT_EQ(verify.branch_stride, 3);
  EXPECT_EQ(verify.most_branch_tokens, 3);
}

TEST(KeyView, LocalChunksStartAtTheirFirstPage) {
  const Fixture f;
  StepShape step = f.shape(Mode::extend, Form::in_place);
  step.local = true;
  const KeyView view = key_view(f.arena, step, LayerKind::local);
  EXPECT_EQ(view.live, f.arena.counts(Buf::local_live_count));
  EXPECT_EQ(view.cu_q, f.arena.counts(Buf::local_local_query_start_loc));
  EXPECT_TRUE(view.starts_at_first_page);
  EXPECT_EQ(view.first_page, f.arena.counts(Buf::local_first_page));
  step.form = Form::materialised;
  const KeyView own = key_view(f.arena, step, LayerKind::local);
  EXPECT_FALSE(own.starts_at_first_page);
  EXPECT_EQ(own.pages, f.arena.pages(Buf::local_local_block_table));
  EXPECT_EQ(own.stride, 2);
}

TEST(KeyView, EncoderKeysBeginTheRow) {
  const Fixture f;
  StepShape step = f.shape(Mode::extend, Form::in_place);
  step.encoder = true;
  const KeyView view = key_view(f.arena, step, LayerKind::encoder);
  EXPECT_EQ(view.set, Set::encoder);
  EXPECT_FALSE(view.causal);
  EXPECT_EQ(view.lengths, f.arena.counts(Buf::encoder_encoder_lens_int32));
  EXPECT_EQ(view.cu_q, f.arena.counts(Buf::extend_cu_seqlens_q));
  EXPECT_EQ(view.rows, f.arena.rows(Buf::extend_request_row));
  EXPECT_EQ(view.first_page, nullptr);
  EXPECT_EQ(view.cu_items, f.arena.counts(Buf::encoder_cu_items));
}

TEST(KeyView, WindowLayersReadTheirOwnPool) {
  const Fixture f;
  StepShape step = f.shape(Mode::verify_tree, Form::in_place);
  step.window_table = f.window;
  const KeyView view = key_view(f.arena, step, LayerKind::window);
  EXPECT_EQ(view.set, Set::window);
  EXPECT_EQ(view.pages, f.window.pages);
  EXPECT_EQ(view.stride, 7);
  EXPECT_EQ(view.branch_lengths, f.arena.counts(Buf::verify_tree_branch_cache_seqlens));
  EXPECT_EQ(view.branch_slots, f.arena.slots(Buf::window_branch_page_table));
}

TEST(KeyView, SaysHowManyQueryRowsTheStepMayHave) {
  const Fixture f;
  EXPECT_EQ(key_view(f.arena, f.shape(Mode::extend, Form::in_place), LayerKind::full).query_rows, 12);
}

// A GPU's kernels cut the work themselves.
TEST(KeyView, OfAGpuHasNoItems) {
  Fixture f;
  f.limits.device = Device::cuda;
  const MetadataArena arena(f.limits);
  StepShape step = f.shape(Mode::extend, Form::in_place);
  step.local = step.encoder = true;
  for (const LayerKind kind : {LayerKind::full, LayerKind::local, LayerKind::encoder}) {
    const KeyView view = key_view(arena, step, kind);
    EXPECT_EQ(view.cu_items, nullptr);
    EXPECT_EQ(view.cu_splits, nullptr);
    EXPECT_NE(view.lengths, nullptr);
  }
}

TEST(KeyView, RefusesTablesThatTheArenaDoesNotHave) {
  Fixture f;
  f.limits.form = Form::in_place;
  const MetadataArena arena(f.limits);
  EXPECT_NO_THROW(key_view(arena, f.shape(Mode::decode, Form::in_place), LayerKind::full));
  expect_refused([&] { key_view(arena, f.shape(Mode::decode, Form::materialised), LayerKind::full); },
                 "the arena has no buffer decode.page_table");
}

TEST(KeyView, RefusesKindsThatTheStepIsNotWrittenFor) {
  const Fixture f;
  for (const LayerKind kind : {LayerKind::local, LayerKind::window, LayerKind::encoder})
    expect_refused([&] { key_view(f.arena, f.shape(Mode::decode, Form::in_place), kind); },
                   cat("this decode step is not written for layers of the kind ", to_string(kind)));
}

}  // namespace
}  // namespace quire::attn
