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
  int32_t pages = 0;
  for (int32_t request = 0; request < line.batch; ++request)
    pages += PageSize(line.page).pages_for(room_of(line, request));
  return pages;
}

// Prefill reads its keys many times over: for it, one layer is as good as many.
int32_t layers_needed(const AttentionLine& line) {
  if (line.kind == Kind::prefill) return 1;
  const double wanted = std::max(300e6, 2.5 * static_cast<double>(last_level_cache_bytes()));
  return std::max(2, static_cast<int32_t>(std::ceil(wanted / work_of(line).bytes)));
}

kv::KvLayout layout_of(const AttentionLine& line) {
  return {.layers = layers_needed(line),
          .pages = pages_needed(line) + 1,
          .page_size = PageSize(line.page),
          .type = line.type,
          .kv_heads = line.heads.kv,
          .key_dim = line.heads.dim,
          .value_dim = line.heads.value_dim,
          .latent = line.heads.latent};
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
      table_(pool_, line.batch + 1, room_of(line, 0)),
      store_(layout_of(line)) {
  shuffle_pages(pool_);
  open_requests();
  for (int32_t layer = 0; layer < store_.layout().layers; ++layer) store_layer(store_.layer(layer), exec);
}

bool AttentionWorld::serves(const AttentionLine& line) const {
  return line.batch == line_.batch && line.tokens == line_.tokens && line.longest == line_.longest &&
         line.page == line_.page && line.heads == line_.heads && line.type == line_.type;
}

kv::LayerKv AttentionWorld::next_layer() { return store_.layer(calls_++ % store_.layout().layers); }

void AttentionWorld::open_requests() {
  for (int32_t i = 0; i < line_.batch; ++i) {
    rows_.push_back(table_.open());
    check(table_.reserve(rows_.back(), {room_of(line_, i)}), "the pool has too few pages for the benchmark's requests");
  }
}

// The same few random rows again and again: what matters is where keys lie, not how they differ.
void AttentionWorld::store_layer(const kv::LayerKv& layer, Exec& exec) const {
  constexpr int32_t kRows = 512;
  const int32_t heads = layer.kv_heads, most_dim = std::max(layer.key_dim, layer.value_dim);
  const Buffer random = random_elements(int64_t{kRows} * heads * most_dim, layer.type, 2);
  const auto first_rows = [&](int32_t rows, int32_t dim) {
    return ConstHeadRows{random.data(), layer.type, rows, heads, dim, int64_t{heads} * dim};
  };
  std::vector<TokenSlot> slots(kRows);
  for (int32_t request = 0; request < line_.batch; ++request) {
    const RequestRow row = rows_[static_cast<size_t>(request)];
    const int32_t tokens = room_of(line_, request);
    for (int32_t first = 0; first < tokens; first += kRows) {
      const int32_t count = std::min(kRows, tokens - first);
      for (int32_t i = 0; i < count; ++i) slots[static_cast<size_t>(i)] = table_.slot(row, first + i);
      const ConstHeadRows keys = first_rows(count, layer.key_dim), values = first_rows(count, layer.value_dim);
      kv::store_rows({layer, keys, values, slots.data(), &count}, exec);
    }
  }
}

AttentionStep::AttentionStep(const AttentionLine& line, AttentionWorld& world, Exec& exec)
    : line_(line),
      world_(world),
      exec_(exec),
      arena_(limits_of(line, Device::cpu, exec.threads())),
      inputs_(arena_.limits()),
      shape_{.mode = mode_of(line.kind),
             .captured = line.batch,
             .query_rows = static_cast<int32_t>(line.rows()),
             .table = world.table()},
      q_(random_elements(query_elements(line), line.query_type(), 3)),
      out_(static_cast<size_t>(result_elements(line) * size_of(line.query_type()))),
      args_(make_args()) {
  describe_requests();
  attn::check_step(shape_, inputs_.inputs(), arena_.limits());
  attn::write_metadata(shape_, inputs_.inputs(), arena_, exec);
}

void AttentionStep::describe_requests() {
  inputs_.live() = line_.batch;
  for (int32_t i = 0; i < line_.batch; ++i) {
    inputs_.rows()[i] = world_.rows()[static_cast<size_t>(i)];
    inputs_.lengths()[i] = {line_.tokens_of(i)};
    if (line_.kind == Kind::prefill) inputs_.extend_lengths()[i] = {line_.tokens_of(i)};
    if (line_.kind == Kind::verify_tree)
      fill_tree_mask(inputs_.tree_mask() + i * line_.nodes * line_.nodes, line_.nodes);
  }
}

attn::AttendArgs AttentionStep::make_args() const {
  return {.keys = attn::key_view(arena_, shape_, attn::LayerKind::full),
          .arena = &arena_,
          .kv = world_.next_layer(),
          .q = query_rows(line_, q_),
          .out = result_rows(line_, out_),
          .scale = 1 / std::sqrt(static_cast<float>(line_.heads.dim))};
}

double AttentionStep::run() {
  args_.kv = world_.next_layer();
  gather(exec_);  // a sleeping thread takes the system longer to start than some calls take
  return seconds_of([&] { attn::attend(args_, exec_); });
}

}  // namespace quire::bench
