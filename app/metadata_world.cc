#include "metadata_world.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "tree.h"

namespace quire::bench {
namespace {

constexpr PageSize kPageSize(16);
constexpr int32_t kChunk = 2048;
constexpr int32_t kEncoderTokens = 512;
constexpr int32_t kExtendTokens = 16;
constexpr TokenCount kWindow{1024};

attn::Limits limits_of(int32_t batch, int32_t context, int threads) {
  return {.batch = batch,
          .context = context,
          .page_size = kPageSize,
          .topk = 4,
          .draft_steps = 4,
          .draft_tokens = kTreeNodes,
          .chunk = kChunk,
          .encoder_context = kEncoderTokens,
          .heads = 32,
          .kv_heads = 8,
          .threads = threads,
          .form = attn::Form::materialised};
}

int32_t row_pages(const attn::Limits& limits) { return limits.encoder_pages() + limits.text_pages(); }

// Pages of the requests and of their drafts, and the reserved one.
int32_t pool_pages(const attn::Limits& limits) {
  return limits.batch * (row_pages(limits) + kPageSize.pages_for(limits.topk * limits.draft_steps)) + 1;
}

}  // namespace

MetadataWorld::MetadataWorld(int32_t batch, int32_t context, int threads)
    : arena_(limits_of(batch, context, threads)),
      inputs_(arena_.limits()),
      pool_(pool_pages(arena_.limits()), kPageSize),
      table_(pool_, batch + 1, row_pages(arena_.limits()) * kPageSize.tokens()),
      window_(pool_pages(arena_.limits()), kPageSize, batch + 1, row_pages(arena_.limits()) * kPageSize.tokens(),
              kWindow),
      window_view_(window_.table().view()) {
  inputs_.live() = batch;
  for (int32_t i = 0; i < batch; ++i) {
    open_request(i);
    draft(i);
  }
}

attn::StepShape MetadataWorld::shape(attn::Mode mode, attn::LayerKind kind, attn::Form form) const {
  return {.mode = mode,
          .form = form,
          .captured = arena_.limits().batch,
          .query_rows = arena_.limits().batch * std::max(kExtendTokens, kTreeNodes),
          .local = kind == attn::LayerKind::local,
          .encoder = kind == attn::LayerKind::encoder,
          .table = table_.view(),
          .window_table = kind == attn::LayerKind::window ? std::optional(window_view_) : std::nullopt};
}

void MetadataWorld::open_request(int32_t index) {
  const attn::Limits& limits = arena_.limits();
  const TokenCount room{row_pages(limits) * kPageSize.tokens()};
  const RequestRow row = table_.open();
  check(table_.reserve(row, room), "the pool has too few pages for the benchmark's requests");
  check(window_.open() == row && window_.reserve(row, room), "the window pool does not follow the request table");
  inputs_.rows()[index] = row;
  inputs_.lengths()[index] = {limits.context - index * 7 % 64};  // no two neighbours end at the same place of a page
  inputs_.extend_lengths()[index] = {kExtendTokens};
  inputs_.encoder_lengths()[index] = {kEncoderTokens - index};
}

void MetadataWorld::draft(int32_t index) {
  const attn::Limits& limits = arena_.limits();
  const int32_t slots = limits.topk * limits.draft_steps;
  std::vector<PageId> pages(static_cast<size_t>(kPageSize.pages_for(slots)));
  check(pool_.allocate(pages), "the pool has too few pages for the benchmark's drafts");
  for (int32_t i = 0; i < slots; ++i) {
    const PageId page = pages[static_cast<size_t>(i >> kPageSize.shift())];
    inputs_.draft_slots()[index * slots + i] = kPageSize.slot(page, i % kPageSize.tokens());
  }
  fill_tree_mask(inputs_.tree_mask() + index * kTreeNodes * kTreeNodes, kTreeNodes);
}

}  // namespace quire::bench
