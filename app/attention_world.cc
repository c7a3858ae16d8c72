#include "attention_world.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "attention_problem.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "gather.h"
#include "timing.h"
#include "tree.h"

namespace quire::bench {
namespace {

int32_t pages_needed(const AttentionLine& line) {
  return line.batch * PageSize(line.page).pages_for(tokens_each(line));
}

// Prefill reads its keys many times over: for it, one layer is as good as many.
int32_t layers_needed(const AttentionLine& line) {
  if (line.kind == Kind::prefill) return 1;
  const double wanted = std::max(300e6, 2.5 * static_cast<double>(last_level_cache_bytes()));
  const double layer = 2.0 * line.batch * line.tokens * line.heads.kv * line.heads.dim * size_of(line.type);
  return std::max(2, static_cast<int32_t>(std::ceil(wanted / layer)));
}

kv::KvLayout layout_of(const AttentionLine& line) {
  return {.layers = layers_needed(line),
          .pages = pages_needed(line) + 1,
          .page_size = PageSize(line.page),
          .type = line.type,
          .kv_heads = line.heads.kv,
          .key_dim = line.heads.dim,
          .value_dim = line.heads.dim};
}

// The pool hands out the page freed last first, so freeing all pages in random order shuffles it.
void shuffle_pages(kv::PagePool& pool) {
  std::vector<PageId> pages(static_cast<size_t>(pool.free_pages()));
  check(pool.allocate(pages), "the pool does not give its free pages");
  std::shuffle(pages.begin(), pages.end(), std::minstd_rand(1));
  for (PageId page : pages) pool.release(page);
}

}  // namespace

AttentionWorld::AttentionWorld(const AttentionLine& line, Exec& exec)
    : line_(line),
      pool_(pages_needed(line) + 1, PageSize(line.page)),
      table_(pool_, line.batch + 1, tokens_each(line)),
      store_(layout_of(line)) {
  shuffle_pages(pool_);
  open_requests(tokens_each(line));
  for (int32_t layer = 0; layer < store_.layout().layers; ++layer) store_layer(store_.layer(layer), exec);
}

bool AttentionWorld::serves(const AttentionLine& line) const {
  return line.batch == line_.batch && line.tokens == line_.tokens && line.page == line_.page &&
         line.heads == line_.heads && line.type == line_.type;
}

kv::LayerKv AttentionWorld::next_layer() { return store_.layer(calls_++ % store_.layout().layers); }

void AttentionWorld::open_requests(int32_t tokens_of_each) {
  for (int32_t i = 0; i < line_.batch; ++i) {
    rows_.push_back(table_.open());
    check(table_.reserve(rows_.back(), {tokens_of_each}), "the pool has too few pages for the benchmark's requests");
  }
}

// The same few random rows again and again: what matters is where keys lie, not how they differ.
void AttentionWorld::store_layer(const kv::LayerKv& layer, Exec& exec) const {
  constexpr int32_t kRows = 512;
  const int32_t heads = layer.kv_heads, dim = layer.key_dim;
  const Buffer random = random_elements(int64_t{kRows} * heads * dim, layer.type, 2);
  ConstHeadRows source{random.data(), layer.type, kRows, heads, dim, int64_t{heads} * dim};
  std::vector<TokenSlot> slots(kRows);
  for (RequestRow row : rows_) {
    for (int32_t first = 0; first < tokens_each(line_); first += kRows) {
      const int32_t count = std::min(kRows, tokens_each(line_) - first);
      for (int32_t i = 0; i < count; ++i) slots[static_cast<size_t>(i)] = table_.slot(row, first + i);
      source.rows = count;
      kv::store_rows({layer, source, source, slots.data(), &count}, exec);
    }
  }
}

AttentionStep::AttentionStep(const AttentionLine& line, AttentionWorld& world, Exec& exec)
    : line_(line),
      world_(world),
      exec_(exec),
      arena_(limits_of(line, exec.threads())),
      inputs_(arena_.limits()),
      shape_{.mode = mode_of(line.kind), .captured = line.batch, .table = world.table()},
      q_(random_elements(line.rows() * int64_t{line.heads.query} * line.heads.dim, line.type, 3)),
      out_(q_.size()),
      args_(make_args()) {
  describe_requests();
  attn::check_step(shape_, inputs_.inputs(), arena_.limits());
  attn::write_metadata(shape_, inputs_.inputs(), arena_, exec);
}

void AttentionStep::describe_requests() {
  inputs_.live() = line_.batch;
  for (int32_t i = 0; i < line_.batch; ++i) {
    inputs_.rows()[i] = world_.rows()[static_cast<size_t>(i)];
    inputs_.lengths()[i] = {line_.tokens};
    if (line_.kind == Kind::prefill) inputs_.extend_lengths()[i] = {line_.tokens};
    if (line_.kind == Kind::verify_tree)
      fill_tree_mask(inputs_.tree_mask() + i * line_.nodes * line_.nodes, line_.nodes);
  }
}

attn::AttendArgs AttentionStep::make_args() const {
  const int32_t heads = line_.heads.query, dim = line_.heads.dim;
  const int64_t rows = line_.rows(), stride = int64_t{heads} * dim;
  return {.keys = attn::key_view(arena_, shape_, attn::LayerKind::full),
          .arena = &arena_,
          .kv = world_.next_layer(),
          .q = {q_.data(), line_.type, rows, heads, dim, stride},
          .out = {out_.data(), line_.type, rows, heads, dim, stride},
          .scale = 1 / std::sqrt(static_cast<float>(dim))};
}

double AttentionStep::run() {
  args_.kv = world_.next_layer();
  gather(exec_);  // a sleeping thread takes the system longer to start than some calls take
  return seconds_of([&] { attn::attend(args_, exec_); });
}

}  // namespace quire::bench
