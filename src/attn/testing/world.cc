#include "attn/testing/world.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace quire::attn::testing {
namespace {

constexpr int kNanByte = 0xff;  // repeated, it is a NaN in every element type
constexpr int kHostileByte = 0x7f;
constexpr int32_t kOutOfRange = 0x7f7f7f7f;

Limits limits_of(const WorldSpec& spec) {
  Limits limits = spec.limits;
  limits.batch = std::max(limits.batch, kGuard + 1);  // so that a poisoned count of sequences stays in the arena
  limits.heads = spec.sizes.heads;
  limits.kv_heads = spec.sizes.kv_heads;
  limits.key_dim = spec.sizes.key_dim;
  limits.value_dim = spec.sizes.value_dim;
  limits.topk = spec.sizes.topk;
  limits.draft_tokens = spec.sizes.draft_tokens;
  limits.chunk = spec.sizes.chunk;
  limits.form = Form::materialised;
  return limits;
}

Limits gpu_limits_of(const WorldSpec& spec) {
  Limits limits = limits_of(spec);
  limits.device = Device::cuda;
  return limits;
}

int32_t table_rows(const Limits& limits) { return std::max(limits.batch, kGuard) + 3; }

int32_t tokens_per_row(const Limits& limits) {
  return (limits.encoder_pages() + limits.text_pages()) * limits.page_size.tokens();
}

kv::KvLayout layout_of(const WorldSpec& spec) {
  return {.layers = 1,
          .pages = spec.pages,
          .page_size = spec.limits.page_size,
          .type = spec.sizes.kv_type,
          .kv_heads = spec.sizes.kv_heads,
          .key_dim = spec.sizes.key_dim,
          .value_dim = spec.sizes.value_dim,
          .latent = spec.sizes.latent};
}

PageId* entries(const kv::TableView& view) { return const_cast<PageId*>(view.pages); }

// Hands the pages out in the order of the layout from now on, and the guard never.
void arrange_pages(kv::PagePool& pool, Layout layout, std::mt19937_64& random) {
  std::vector<PageId> pages(pool.free_pages());
  check(pool.allocate(pages), "a new pool has all its pages");
  std::reverse(pages.begin(), pages.end());  // the page released last is handed out first
  if (layout == Layout::shuffled) std::shuffle(pages.begin(), pages.end(), random);
  for (const PageId page : pages)
    if (page.value != kGuard) pool.release(page);
}

// Opens rows in a random order that depends on the seed alone, so that two tables agree, and the guard never.
void arrange_rows(kv::RequestTable& table, uint64_t seed) {
  const kv::TableView view = table.view();
  std::fill(entries(view), entries(view) + int64_t{view.rows} * view.stride, PageId{kGuard});
  std::vector<RequestRow> rows;
  for (int32_t row = 1; row < view.rows; ++row) rows.push_back(table.open());
  std::mt19937_64 random(seed);
  std::shuffle(rows.begin(), rows.end(), random);
  for (const RequestRow row : rows)
    if (row.value != kGuard) table.close(row);
  table.append_shared({kGuard}, std::vector<PageId>(view.width, PageId{kGuard}));
}

void scrub_all(kv::KvStore& store) {
  const kv::LayerKv layer = store.layer(0);
  std::memset(layer.keys, kNanByte, layer.slots * layer.key_stride * size_of(layer.type));
  std::memset(layer.values, kNanByte, layer.slots * layer.value_stride * size_of(layer.type));
}

void scrub(kv::KvStore& store, TokenSlot slot) {
  const kv::LayerKv layer = store.layer(0);
  const int64_t key_bytes = layer.key_stride * size_of(layer.type);
  const int64_t value_bytes = layer.value_stride * size_of(layer.type);
  std::memset(layer.keys + slot.value * key_bytes, kNanByte, key_bytes);
  std::memset(layer.values + slot.value * value_bytes, kNanByte, value_bytes);
}

void scrub(kv::KvStore& store, PageId page) {
  const PageSize size = store.layout().page_size;
  for (int32_t offset = 0; offset < size.tokens(); ++offset) scrub(store, size.slot(page, offset));
}

void fill_bytes(const Buffer& storage, int byte) { std::memset(storage.data(), byte, storage.size()); }

Buffer floats(int64_t count, Place place) { return Buffer(static_cast<size_t>(count) * sizeof(float), place); }
float* floats_of(const Buffer& storage) { return reinterpret_cast<float*>(storage.data()); }

// The first position that the step or a repetition of it may query.
int32_t first_query(const Step& step, const Sequence& sequence) {
  switch (step.mode) {
    case Mode::decode:
      return sequence.length - 1;
    case Mode::extend:
    case Mode::draft_extend:
      return sequence.length - sequence.extend;
    default:
      return sequence.length;
  }
}

bool sees(const std::vector<int32_t>& parents, int32_t node, int32_t other) {
  for (; node >= 0; node = parents[node])
    if (node == other) return true;
  return false;
}

}  // namespace

const char* to_string(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "shuffled", "interleaved"};
  return kNames[static_cast<int>(layout)];
}

std::string row_bits(const Result& result, int64_t row) {
  const size_t row_bytes = result.out_bytes.size() / result.rows;
  std::string bits(reinterpret_cast<const char*>(result.out_bytes.data()) + row * row_bytes, row_bytes);
  for (size_t at = row; at < result.lse.size(); at += result.rows)
    bits.append(reinterpret_cast<const char*>(&result.lse[at]), sizeof(float));
  return bits;
}

World::World(const WorldSpec& spec)
    : spec_(spec),
      random_(spec.sizes.seed),
      tokens_(spec.sizes),
      pool_(spec.pages, spec.limits.page_size),
      table_(pool_, table_rows(limits_of(spec)), tokens_per_row(limits_of(spec)), spec.place),
      store_(layout_of(spec), spec.place),
      arena_(limits_of(spec), spec.place),
      inputs_(arena_.limits(), spec.place) {
  if (spec.place != Place::host) gpu_arena_.emplace(gpu_limits_of(spec), spec.place);
  arrange_pages(pool_, spec.layout, random_);
  arrange_rows(table_, spec.sizes.seed);
  scrub_all(store_);
  store_.set_scales(0, spec.sizes.key_scale, spec.sizes.value_scale);
  if (spec.window_pool >= 0) {
    const Limits& limits = arena_.limits();
    window_ = std::make_unique<kv::WindowPool>(spec.pages, limits.page_size, table_rows(limits), tokens_per_row(limits),
                                               TokenCount{spec.window_pool}, spec.place);
    arrange_pages(window_->pool(), spec.layout, random_);
    arrange_rows(window_->table(), spec.sizes.seed);
    window_store_.emplace(layout_of(spec), spec.place);
    scrub_all(*window_store_);
    window_store_->set_scales(0, spec.sizes.key_scale, spec.sizes.value_scale);
  }
  const int64_t rows = spec.query_rows + kGuard + 1;  // a poisoned row number stays inside
  queries_ = floats(rows * spec.sizes.heads * spec.sizes.key_dim, spec.place);
  out_ = floats(rows * spec.sizes.heads * spec.sizes.value_dim, spec.place);
  lse_ = floats(rows * spec.sizes.heads, spec.place);
  const Limits& limits = arena_.limits();  // nothing can be allocated later, while a graph is captured
  parents_ = Buffer(size_t{sizeof(int32_t)} * limits.planes() * limits.batch * limits.topk, spec.place);
  const std::vector<float> sinks = tokens_.sinks();
  sinks_ = floats(std::ssize(sinks), spec.place);
  std::copy(sinks.begin(), sinks.end(), floats_of(sinks_));
}

void World::lay_out(const Step& step, Exec& exec) {
  step_ = step;
  on_gpu_ = exec.stream() != nullptr;
  check(query_rows(step, spec_.sizes) <= spec_.query_rows, "the world has room for ", spec_.query_rows, " query rows");
  for (const Sequence& sequence : step.sequences) {
    if (!requests_.contains(sequence.request)) open(sequence, exec);
    Request& request = requests_.at(sequence.request);
    release_drafts(request);
    shrink(text_side(request), sequence, exec);
    if (has_window_side()) shrink(window_side(request), sequence, exec);
  }
  grow_all();
  fill_inputs();
  for (size_t b = 0; b < step.sequences.size(); ++b) {
    const Sequence& sequence = step.sequences[b];
    Request& request = requests_.at(sequence.request);
    store_text(text_side(request), sequence, exec);
    if (has_window_side()) {
      advance_window(sequence, request);
      store_text(window_side(request), sequence, exec);
    }
    if (step.mode == Mode::draft_tree) lay_out_drafts(static_cast<int32_t>(b), request, exec);
  }
  fill_queries();
  check_step(shape(), inputs(), arena_.limits());
  check_pages(shape(), inputs(), arena_.limits());
}

World::Side World::text_side(Request& request) {
  const PageSize size = pool_.page_size();
  return {pool_, table_, store_, request.row, size.pages_for(request.encoder) * size.tokens(), request.stored};
}

World::Side World::window_side(Request& request) {
  return {window_->pool(), window_->table(), *window_store_, request.row, 0, request.window_stored};
}

void World::open(const Sequence& sequence, Exec& exec) {
  Request& request = requests_[sequence.request];
  request.row = table_.open();
  request.encoder = sequence.encoder;
  if (window_) check(window_->open() == request.row, "both tables hand out the same rows");
  check(table_.reserve(request.row, {sequence.encoder}), "no pages left for encoder keys");
  Writing writing;
  for (int32_t j = 0; j < sequence.encoder; ++j) {
    writing.slots.push_back(table_.slot(request.row, j));
    writing.tokens.push_back({sequence.request, j, Token::kEncoder});
  }
  store(store_, writing, exec);
}

void World::close(int32_t id) {
  Request& request = requests_.at(id);
  release_drafts(request);
  for (const PageId page : table_.pages(request.row))
    if (pool_.references(page) == 1) scrub(store_, page);
  table_.close(request.row);
  if (window_) {
    for (const PageId page : window_->table().pages(request.row)) scrub(*window_store_, page);
    window_->close(request.row);
  }
  requests_.erase(id);
}

void World::fork(int32_t parent_id, int32_t child_id, int32_t tokens, Exec& exec) {
  Request& parent = requests_.at(parent_id);
  check(tokens <= parent.stored && !requests_.contains(child_id), "cannot fork ", tokens, " of ", parent.stored,
        " tokens of request ", parent_id, " to request ", child_id);
  tokens_.share_prefix(parent_id, child_id, tokens);
  Request& child = requests_[child_id];
  child.row = table_.open();
  child.encoder = parent.encoder;
  child.stored = tokens;
  if (window_) check(window_->open() == child.row, "both tables hand out the same rows");
  const auto count = static_cast<size_t>(pool_.page_size().pages_for(text_side(child).first + tokens));
  table_.append_shared(child.row, table_.pages(parent.row).first(count));
  own_pages(text_side(child), exec);
}

void World::accept(int32_t id, int32_t tokens, Exec& exec) {
  for (const Sequence& sequence : step_.sequences) {
    if (sequence.request != id) continue;
    Request& request = requests_.at(id);
    compact(text_side(request), sequence, tokens, exec);
    if (has_window_side()) compact(window_side(request), sequence, tokens, exec);
    return;
  }
  throw CheckError(cat("request ", id, " has no part in the step"));
}

void World::compact(Side side, const Sequence& sequence, int32_t tokens, Exec& exec) {
  std::vector<TokenSlot> from, to;
  for (int32_t node = 0; node < spec_.sizes.draft_tokens; ++node) {
    const Token token = node_token(sequence, node);
    if (token.variant != 0 || token.position >= sequence.length + tokens) continue;
    from.push_back(side.table.slot(side.row, side.first + sequence.length + node));
    to.push_back(side.table.slot(side.row, side.first + token.position));
  }
  check(std::ssize(from) == tokens, "the main line has ", from.size(), " of ", tokens, " nodes");
  side.store.copy_slots(from, to, laying(exec));
  side.stored = sequence.length + tokens;
}

// Copy-on-write: from where the stored tokens end, the row's pages become its own.
void World::own_pages(Side side, Exec& exec) {
  const PageSize size = pool_.page_size();
  const int32_t stored_end = side.first + side.stored;
  const auto count = static_cast<int32_t>(side.table.pages(side.row).size());
  for (int32_t index = std::max(stored_end >> size.shift(), side.table.first_page(side.row)); index < count; ++index) {
    const PageId shared = side.table.pages(side.row)[index];
    if (side.pool.references(shared) == 1) continue;
    PageId fresh;
    check(side.pool.allocate({&fresh, 1}), "the world has too few pages to copy one");
    std::vector<TokenSlot> from, to;
    for (int32_t offset = 0; offset < std::min(stored_end - index * size.tokens(), size.tokens()); ++offset) {
      from.push_back(size.slot(shared, offset));
      to.push_back(size.slot(fresh, offset));
    }
    side.store.copy_slots(from, to, laying(exec));
    side.table.replace_page(side.row, index, fresh);
  }
}

// Row positions that the step may read, drafts that are not made yet included.
int32_t World::tokens_in_row(const Sequence& sequence) const {
  switch (step_.mode) {
    case Mode::draft:
      return sequence.length + arena_.limits().planes();
    case Mode::verify:
    case Mode::verify_tree:
      return sequence.length + spec_.sizes.draft_tokens;
    default:
      return sequence.length;
  }
}

// Makes what the row holds past the step's main line NaN, and gives back the pages past the step.
void World::shrink(Side side, const Sequence& sequence, Exec& exec) {
  side.stored = std::min(side.stored, main_tokens(step_, sequence, spec_.sizes));
  own_pages(side, exec);
  const PageSize size = pool_.page_size();
  const auto end = static_cast<int32_t>(side.table.pages(side.row).size()) * size.tokens();
  const int32_t alive = side.table.first_page(side.row) * size.tokens();
  for (int32_t at = std::max(alive, side.first + side.stored); at < end; ++at)
    scrub(side.store, side.table.slot(side.row, at));
  const int32_t tokens = side.first + tokens_in_row(sequence);
  if (tokens < end) side.table.truncate(side.row, {tokens});
}

// Interleaved: every request takes one page in turn.
void World::grow_all() {
  const int32_t step =
      spec_.layout == Layout::interleaved ? pool_.page_size().tokens() : tokens_per_row(arena_.limits());
  for (int32_t most = step;; most += step) {
    bool is_complete = true;
    for (const Sequence& sequence : step_.sequences) {
      Request& request = requests_.at(sequence.request);
      const int32_t text = tokens_in_row(sequence);
      const Side side = text_side(request);
      check(side.table.reserve(side.row, {std::min(most, side.first + text)}), "the world has too few pages");
      if (has_window_side())
        check(window_->reserve(request.row, {std::min(most, text)}), "the world has too few window pages");
      is_complete &= most >= side.first + text;
    }
    if (is_complete) return;
  }
}

void World::advance_window(const Sequence& sequence, Request& request) {
  const int32_t before = window_->table().first_page(request.row);
  const auto pages = window_->table().pages(request.row);
  const std::vector<PageId> owned(pages.begin(), pages.end());
  window_->advance(request.row, first_query(step_, sequence));
  for (int32_t index = before; index < window_->table().first_page(request.row); ++index)
    scrub(*window_store_, owned[index]);
}

void World::store_text(Side side, const Sequence& sequence, Exec& exec) {
  const int32_t main_line = main_tokens(step_, sequence, spec_.sizes);
  const int32_t alive = side.table.first_page(side.row) * pool_.page_size().tokens();
  Writing writing;
  const auto add = [&](int32_t position, Token token) {
    writing.slots.push_back(side.table.slot(side.row, side.first + position));
    writing.tokens.push_back(token);
  };
  for (int32_t position = std::max(alive, side.stored); position < main_line; ++position)
    add(position, {sequence.request, position, 0});
  if (step_.mode == Mode::verify_tree)
    for (int32_t node = 0; node < spec_.sizes.draft_tokens; ++node)
      add(sequence.length + node, node_token(sequence, node));
  side.stored = main_line;
  store(side.store, writing, exec);
}

// A draft tree's slots lie anywhere: here in pages of their own, shuffled.
void World::lay_out_drafts(int32_t b, Request& request, Exec& exec) {
  const Sequence& sequence = step_.sequences[b];
  const PageSize size = pool_.page_size();
  const int32_t topk = spec_.sizes.topk, steps = arena_.limits().draft_steps;
  request.draft_pages.resize(size.pages_for(int64_t{topk} * steps));
  check(pool_.allocate(request.draft_pages), "the world has too few pages for drafts");
  std::vector<TokenSlot> slots;
  for (const PageId page : request.draft_pages)
    for (int32_t offset = 0; offset < size.tokens(); ++offset) slots.push_back(size.slot(page, offset));
  std::shuffle(slots.begin(), slots.end(), random_);
  Writing writing;
  for (int32_t branch = 0; branch < topk; ++branch)
    for (int32_t t = 0; t < steps; ++t) {
      const TokenSlot slot = slots[branch * steps + t];
      inputs_.draft_slots()[(b * topk + branch) * steps + t] = slot;
      if (t > step_.draft_step) continue;
      writing.slots.push_back(slot);
      writing.tokens.push_back({sequence.request, sequence.length + t, branch});
    }
  store(store_, writing, exec);
}

void World::release_drafts(Request& request) {
  for (const PageId page : request.draft_pages) {
    scrub(store_, page);
    pool_.release(page);
  }
  request.draft_pages.clear();
}

void World::store(kv::KvStore& store, const Writing& writing, Exec& exec) {
  const Sizes& sizes = spec_.sizes;
  std::vector<float> keys, values;
  for (const Token token : writing.tokens) {
    const TokenValues::Row& row = tokens_.row(token);
    for (const float key : row.keys) keys.push_back(key * sizes.key_scale);
    for (const float value : row.values) values.push_back(value * sizes.value_scale);
  }
  const auto count = static_cast<int32_t>(writing.tokens.size());
  const auto rows_of = [&](const std::vector<float>& numbers, int32_t dim) {
    return ConstHeadRows{.data = reinterpret_cast<const std::byte*>(numbers.data()),
                         .type = Dtype::f32,
                         .rows = count,
                         .heads = sizes.kv_heads,
                         .dim = dim,
                         .row_stride = int64_t{sizes.kv_heads} * dim};
  };
  kv::store_rows({.layer = store.layer(0),
                  .keys = rows_of(keys, sizes.key_dim),
                  .values = rows_of(values, sizes.value_dim),
                  .slots = writing.slots.data(),
                  .live_rows = &count},
                 laying(exec));
}

void World::fill_inputs() {
  const Limits& limits = arena_.limits();
  const int32_t nodes = limits.draft_tokens;
  fill_bytes(inputs_.memory(), kHostileByte);
  inputs_.live() = static_cast<int32_t>(step_.sequences.size());
  for (int32_t b = 0; b < inputs_.live(); ++b) {
    const Sequence& sequence = step_.sequences[b];
    inputs_.rows()[b] = requests_.at(sequence.request).row;
    inputs_.lengths()[b] = {sequence.length};
    inputs_.extend_lengths()[b] = {sequence.extend};
    inputs_.encoder_lengths()[b] = {sequence.encoder};
    if (step_.mode == Mode::verify_tree)
      for (int32_t node = 0; node < nodes; ++node)
        for (int32_t other = 0; other < nodes; ++other)
          inputs_.tree_mask()[(int64_t{b} * nodes + node) * nodes + other] = sees(sequence.parents, node, other);
  }
}

// Rows of padding keep NaN: they may not reach any result.
void World::fill_queries() {
  fill_bytes(queries_, kNanByte);
  const int64_t width = int64_t{spec_.sizes.heads} * spec_.sizes.key_dim;
  int64_t at = 0;
  for (const Sequence& sequence : step_.sequences)
    for (int32_t row = 0; row < query_rows(step_, sequence, spec_.sizes); ++row, ++at) {
      const std::vector<float> query = tokens_.query(query_token(step_, sequence, row));
      for (int64_t i = 0; i < width; ++i)
        store_element(spec_.sizes.query_type, queries_.data(), at * width + i, query[i]);
    }
}

void World::poison(Poison poison) {
  const int32_t word = poison == Poison::guard ? kGuard : kOutOfRange;
  for (const BufferSpec& buffer : kBuffers) {
    if (!arena().has(buffer.id)) continue;
    const std::span<int32_t> words = arena().words(buffer.id);
    std::fill(words.begin(), words.end(), buffer.element == Element::f32 ? -1 : word);  // -1 is a NaN
  }
  fill_bytes(out_, kNanByte);
  fill_bytes(lse_, kNanByte);
  const auto poison_tails = [&](const kv::RequestTable& table) {
    const kv::TableView view = table.view();
    for (const auto& [id, request] : requests_) {
      PageId* row = entries(view) + request.row.value * view.stride;
      std::fill(row + table.pages(request.row).size(), row + view.width, PageId{word});
    }
  };
  poison_tails(table_);
  if (window_) poison_tails(window_->table());
}

StepShape World::shape() const {
  const Limits& limits = arena_.limits();
  const bool may_have_more_sets = step_.mode == Mode::decode || step_.mode == Mode::extend;
  return {.mode = step_.mode,
          .form = step_.form,
          .captured = captured_of(step_),
          .query_rows = query_rows(step_, spec_.sizes),
          .sequence_rows = step_.sequence_rows,
          .draft_step = step_.draft_step,
          .local = may_have_more_sets && limits.chunk > 0,
          .encoder = may_have_more_sets && limits.encoder_context > 0,
          .table = table_.view(),
          .window_table = has_window_side() ? std::optional(window_->table().view()) : std::nullopt};
}

AttendArgs World::args_with(const MetadataArena& arena) {
  const Sizes& sizes = spec_.sizes;
  const bool in_window_pool = step_.kind == LayerKind::window && has_window_side();
  const int64_t rows = query_rows(step_, sizes);
  return {.keys = key_view(arena, shape(), step_.kind),
          .arena = &arena,
          .kv = in_window_pool ? window_store_->layer(0) : store_.layer(0),
          .q = {.data = queries_.data(),
                .type = sizes.query_type,
                .rows = rows,
                .heads = sizes.heads,
                .dim = sizes.key_dim,
                .row_stride = int64_t{sizes.heads} * sizes.key_dim},
          .out = {.data = out_.data(),
                  .type = spec_.out_type,
                  .rows = rows,
                  .heads = sizes.heads,
                  .dim = sizes.value_dim,
                  .row_stride = int64_t{sizes.heads} * sizes.value_dim},
          .lse = floats_of(lse_),
          .scale = sizes.scale(),
          .softcap = step_.softcap,
          .window = step_.window,
          .sinks = step_.sinks ? floats_of(sinks_) : nullptr,
          .deterministic = spec_.deterministic};
}

const int32_t* World::draft_parents(int32_t step) {
  auto* const parents =
      reinterpret_cast<int32_t*>(parents_.data()) + int64_t{step} * arena_.limits().batch * spec_.sizes.topk;
  int32_t* at = parents;
  for (const Sequence& sequence : step_.sequences) at = std::ranges::copy(sequence.draft_parents[step], at).out;
  return parents;
}

Result World::result() const {
  Result result;
  result.rows = query_rows(step_, spec_.sizes);
  const int64_t count = result.rows * spec_.sizes.heads * spec_.sizes.value_dim;
  const std::byte* bytes = out_.data();
  result.out_bytes.assign(bytes, bytes + count * size_of(spec_.out_type));
  for (int64_t i = 0; i < count; ++i) result.out.push_back(load_element(spec_.out_type, bytes, i));
  result.lse.assign(floats_of(lse_), floats_of(lse_) + result.rows * spec_.sizes.heads);
  return result;
}

Attention World::expected() { return dense_attention(step_, spec_.sizes, tokens_); }

}  // namespace quire::attn::testing
