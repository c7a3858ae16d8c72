#include "attn/testing/case.h"

#include <algorithm>
#include <numeric>

namespace quire::attn::testing {
namespace {

int32_t longest(const std::vector<int32_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

std::string list(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) text += cat(text.empty() ? "" : ",", number);
  return text;
}

Sizes sizes_of(const Case& c) {
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .key_dim = c.key_dim,
          .value_dim = c.value_dim ? c.value_dim : c.key_dim,
          .latent = c.latent,
          .query_type = c.query_type,
          .kv_type = c.kv_type,
          .key_scale = c.key_scale,
          .value_scale = c.value_scale,
          .score_scale = c.score_scale,
          .topk = c.topk,
          .draft_tokens = c.draft_tokens,
          .chunk = c.chunk,
          .seed = c.seed};
}

Limits limits_of(const Case& c) {
  return {.batch = std::max(c.captured, static_cast<int32_t>(c.lengths.size())),
          .context = std::max(c.context, std::max(1, longest(c.lengths))),
          .page_size = PageSize(c.page_size),
          .draft_steps = c.draft_steps,
          .encoder_context = longest(c.encoder),
          .threads = c.threads};
}

// With a pool of its own the window is that of the window layers; else it is that of all layers but the encoder's.
bool has_window(const Case& c) { return c.window_pool ? c.kind == LayerKind::window : c.kind != LayerKind::encoder; }

// Enough for every request's text, drafts and encoder keys, the guard, and some pages that stay free.
int32_t pages_of(const Case& c) {
  const PageSize size(c.page_size);
  const int32_t drafts = std::max(c.draft_steps, c.draft_tokens) + size.pages_for(int64_t{c.topk} * c.draft_steps);
  int32_t pages = kGuard + 6;
  for (size_t b = 0; b < c.lengths.size(); ++b)
    pages += size.pages_for(c.lengths[b]) + drafts + (c.encoder.empty() ? 0 : size.pages_for(c.encoder[b]));
  return pages;
}

}  // namespace

WorldSpec Case::world() const {
  return {.limits = limits_of(*this),
          .sizes = sizes_of(*this),
          .out_type = out_type,
          .pages = pages_of(*this),
          .query_rows = testing::query_rows(step(), sizes_of(*this)),
          .window_pool = window_pool ? window : -1,
          .layout = layout,
          .place = place,
          .deterministic = deterministic};
}

Step Case::step() const {
  Step step{.mode = mode,
            .kind = kind,
            .form = form,
            .captured = captured,
            .sequence_rows = sequence_rows,
            .draft_step = draft_step,
            .window = has_window(*this) ? window : -1,
            .softcap = softcap,
            .sinks = sinks};
  std::mt19937_64 random(seed);
  for (size_t b = 0; b < lengths.size(); ++b) {
    Sequence sequence{.request = requests.empty() ? static_cast<int32_t>(b) : requests[b],
                      .length = lengths[b],
                      .extend = extend.empty() ? 0 : extend[b],
                      .encoder = encoder.empty() ? 0 : encoder[b]};
    if (mode == Mode::verify_tree) sequence.parents = trees.empty() ? random_parents(draft_tokens, random) : trees[b];
    step.sequences.push_back(sequence);
  }
  return step;
}

std::string to_string(const Case& c) {
  std::string text =
      cat(attn::to_string(c.mode), " ", attn::to_string(c.kind), " lengths ", list(c.lengths), " pages of ",
          c.page_size, " ", testing::to_string(c.layout), ", heads ", c.heads, "/", c.kv_heads, " dim ", c.key_dim, "/",
          c.value_dim ? c.value_dim : c.key_dim, ", q ", quire::to_string(c.query_type), " kv ",
          quire::to_string(c.kv_type), " out ", quire::to_string(c.out_type), ", threads ", c.threads);
  const auto add = [&](bool is_set, const std::string& part) { text += is_set ? cat(", ", part) : ""; };
  add(c.form == Form::materialised, "materialised");
  add(!c.extend.empty(), cat("extend ", list(c.extend)));
  add(c.captured > 0, cat("captured ", c.captured));
  add(c.sequence_rows > 0, cat("rows up to ", c.sequence_rows));
  add(c.draft_steps > 0, cat("topk ", c.topk, " step ", c.draft_step, " of ", c.draft_steps));
  add(c.draft_tokens > 0, cat("nodes ", c.draft_tokens));
  add(c.chunk > 0, cat("chunk ", c.chunk));
  add(c.window >= 0, cat("window ", c.window, c.window_pool ? " in its pool" : ""));
  add(c.softcap > 0, cat("softcap ", c.softcap));
  add(c.sinks, "sinks");
  add(!c.encoder.empty(), cat("encoder ", list(c.encoder)));
  return text;
}

std::vector<int32_t> random_parents(int32_t nodes, std::mt19937_64& random) {
  std::vector<int32_t> parents = {-1};
  for (int32_t node = 1; node < nodes; ++node) parents.push_back(static_cast<int32_t>(random() % node));
  return parents;
}

Result run_case(const Case& c, AttendFn* attend_fn, Exec& exec, WriteMetadataFn* write) {
  World world(c.world());
  world.lay_out(c.step(), exec);
  world.poison(Poison::guard);
  write(world.shape(), world.inputs(), world.arena(), exec);
  attend_fn(world.args(), exec);
  exec.wait();
  return world.result();
}

Attention expected_of(const Case& c) {
  TokenValues tokens(sizes_of(c));
  return dense_attention(c.step(), sizes_of(c), tokens);
}

}  // namespace quire::attn::testing
