#include "engine/runner.h"

#include <algorithm>
#include <vector>

#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/device_array.h"

namespace quire::engine {
namespace {

// Of the inputs, where a GPU computes: the host fills one while two steps are in flight. Page ids that a step brings
// for the mirror: most bring a few, one that begins with a long cached prefix more.
constexpr int32_t kInputCopies = 3, kJournalPages = 1024;

// Of those that drafts are verified for together: where there are more, prompts' graphs do as well.
constexpr int32_t kMostVerifiedSequences = 64;

attn::Limits step_limits(const model::ModelConfig& config, const SchedulerLimits& limits, const Exec& exec) {
  const bool has_mirror = exec.device() == Device::cuda;
  return model::attention_limits(config, {.batch = limits.running,
                                          .context = limits.context,
                                          .page_size = limits.page_size,
                                          .draft_tokens = limits.verifies_trees() ? 1 + limits.drafts : 0,
                                          .threads = exec.threads(),
                                          .query_rows = limits.rows(),
                                          .wanted_rows = limits.wanted_rows(),
                                          .journal_pages = has_mirror ? kJournalPages : 0,
                                          .device = exec.device()});
}

}  // namespace

// Powers of two, and the most itself. On a GPU products take as long for a padded row as for a live one: closer
// above 16.
std::vector<int> padded_sizes(int32_t most, Device device) {
  const auto after = [&](int size) {
    if (device == Device::cpu || size < 16) return size * 2;
    return size + (size < 32 ? 8 : size < 64 ? 16 : size < 256 ? 32 : 64);
  };
  std::vector<int> sizes;
  for (int size = 1; size < most; size = after(size)) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

Runner::Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, kv::RequestTable& table,
               Exec& exec, ops::DeviceSampler* sampler, bool deterministic, const model::FeatureProjection* features)
    : table_(table),
      exec_(exec),
      store_(model::kv_layout(model.config(), limits.pages + 1, limits.page_size, kv_type),
             place_of(exec.device(), Place::host_huge_pages)),
      arena_(step_limits(model.config(), limits, exec), place_of(exec.device())),
      upload_(arena_.limits(), kInputCopies, exec, sampler ? sampler->drawn_tokens() : DrawnTokens{}),
      forward_(model, arena_.limits(), kv_type, deterministic, features,
               exec.device() == Device::cpu ? &feature_rows_ : nullptr),
      sampler_(sampler),
      verified_rows_(exec.device() == Device::cuda ? limits.drafts + 1 : 1),
      draft_rows_(limits.draft_rows()),
      extend_captured_(0),
      chunk_captured_(0) {
  if (exec.device() == Device::cuda) {
    table_.keep_journal();
    mirror_.emplace(table_.view());
  }
  capture(limits.prefill_chunk);
}

void Runner::capture(int32_t prefill_chunk) {
  const attn::Limits& limits = arena_.limits();
  for (const int32_t size : padded_sizes(limits.batch, exec_.device()))
    capture(decode_graphs_[size], forward_.decode_contexts(decode_shape(size, limits.context), arena_, store_, exec_),
            [&](int context) { return decode_shape(size, context); });
  if (exec_.device() == Device::cpu) return;
  capture(chain_graphs_);
  if (limits.draft_tokens > 0) capture(tree_graphs_);
  std::vector<int> sizes;
  for (const int size : {16, 64, 1 * kGpuRowTile, 2 * kGpuRowTile, 3 * kGpuRowTile, 4 * kGpuRowTile, 5 * kGpuRowTile,
                         6 * kGpuRowTile, 8 * kGpuRowTile})
    if (size <= limits.query_rows) sizes.push_back(size);
  if (sizes.empty()) return;
  capture(extend_graphs_, sizes, [&](int rows) { return extend_shape(limits.batch, rows); });
  extend_captured_ = sizes.back();
  if (prefill_chunk <= extend_captured_ || prefill_chunk >= limits.context) return;  // no prompt has so many
  capture(chunk_graphs_, {prefill_chunk}, [&](int rows) { return extend_shape(1, rows); });
  chunk_captured_ = prefill_chunk;
}

void Runner::capture(Graphs& graphs, const std::vector<int>& sizes,
                     const std::function<attn::StepShape(int size)>& shape_of) {
  capture(graphs.whole, sizes, shape_of, Part::whole);
  if (sampler_) capture(graphs.forward, sizes, shape_of, Part::forward);
}

void Runner::capture(GraphSet& graphs, const std::vector<int>& sizes,
                     const std::function<attn::StepShape(int size)>& shape_of, Part part) {
  graphs.capture(exec_, sizes, [&](int size) { record(shape_of(size), part); });
}

// Rows in powers of two, and as many as there may be at most.
void Runner::capture(VerifyGraphs& verification) {
  if (verified_rows_ == 1) return;
  const int32_t context = arena_.limits().context;
  const auto shape_of = verification.shape;
  for (int32_t sequences = 1; sequences <= std::min(kMostVerifiedSequences, 2 * arena_.limits().batch - 1);
       sequences *= 2) {
    const int32_t captured = std::min(sequences, arena_.limits().batch);
    const int32_t most = std::min(captured * verified_rows_, captured + draft_rows_);
    for (int32_t doubled = 2 * sequences, rows = 0; rows < most; doubled *= 2) {
      rows = std::min(doubled, most);
      capture(
          verification.graphs[captured][rows],
          forward_.decode_contexts((this->*shape_of)(captured, rows, context), arena_, store_, exec_),
          [&](int longest) { return (this->*shape_of)(captured, rows, longest); }, Part::whole);
    }
  }
}

uint32_t Runner::prepare(const Batch& batch) {
  check_room(batch);
  const attn::StepInputBuffers& inputs = next_inputs();
  try {
    fill(batch, inputs);
    attn::check_step(shape(batch), inputs.inputs(), arena_.limits());
  } catch (...) {
    abandon();
    throw;
  }
  return upload_.next_number();
}

// The table's changes in these inputs may not have been sent: all of it will be.
void Runner::abandon() {
  upload_.forget();
  if (mirror_) table_.keep_journal();
}

Runner::Outputs Runner::compute(const Batch& batch, Part part) {
  const attn::StepShape step = shape(batch);
  feature_rows_ = batch.is_followed() ? batch.rows() : 0;
  const attn::StepInputs sent = upload_.send();
  if (changes_table_) apply_journal(sent);
  if (const GraphSet* const graphs = graphs_of(step, part))
    graphs->replay(exec_, step.context ? step.context : step.query_rows);
  else
    record(step, part);
  const Rows<const float> logits = forward_.logits(), hidden = forward_.hidden();
  return {.logits = {logits.data, batch.with_logits(), logits.dim, logits.stride},
          .pooled = {hidden.row(batch.with_logits()), std::ssize(batch.pooled), hidden.dim, hidden.stride},
          .features = forward_.features()};
}

// Null: there are none of that shape.
const GraphSet* Runner::graphs_of(const attn::StepShape& shape, Part part) const {
  if (shape.sequence_rows > 0)
    return &(shape.ragged ? tree_graphs_ : chain_graphs_).graphs.at(shape.captured).at(shape.query_rows);
  if (shape.ragged) return nullptr;
  const bool is_decode = shape.mode == attn::Mode::decode;
  const bool is_long = !is_decode && shape.query_rows > extend_captured_;
  if (is_long && (shape.captured > 1 || shape.query_rows != chunk_captured_)) return nullptr;
  const Graphs& graphs = is_decode ? decode_graphs_.at(shape.captured) : is_long ? chunk_graphs_ : extend_graphs_;
  return sampler_ && part == Part::forward ? &graphs.forward : &graphs.whole;
}

// Runs it now, or puts it into a graph.
void Runner::record(const attn::StepShape& step, Part part) {
  forward_.run(step, upload_.inputs(), arena_, store_, exec_);
  if (sampler_ && part == Part::whole) sample(step.query_rows);
}

void Runner::sample(const Batch& batch) { sample(std::max(1, batch.with_logits())); }

void Runner::sample(int32_t most_rows) {
  Rows<const float> logits = forward_.logits();
  logits.rows = std::min<int64_t>(logits.rows, most_rows);
  sampler_->launch(logits, upload_.inputs().number, upload_.inputs().logits_count);
}

// --- the mirror of the request table

// A launch of its own before the step's graph, from the host's memory: most steps of few sequences need no page, and so
// have none.
void Runner::apply_journal(const attn::StepInputs& sent) {
  kv::apply_journal({.count = sent.journal_count,
                     .runs = sent.journal_runs,
                     .pages = sent.journal_pages,
                     .most_runs = arena_.limits().batch,
                     .mirror = mirror_->pages(),
                     .stride = mirror_->view().stride},
                    exec_);
}

// To be filled, with the table's changes in them.
const attn::StepInputBuffers& Runner::next_inputs() {
  for (;;) {
    const attn::StepInputBuffers& inputs = upload_.next();
    if (take_changes(inputs)) return inputs;
    send_changes_ahead(inputs);
  }
}

// False: some are left.
bool Runner::take_changes(const attn::StepInputBuffers& inputs) {
  if (!mirror_) return true;
  const attn::Limits& limits = arena_.limits();
  const kv::JournalSpace space{.count = &inputs.journal_count(),
                               .runs = {inputs.journal_runs(), static_cast<size_t>(limits.batch)},
                               .pages = {inputs.journal_pages(), static_cast<size_t>(limits.journal_pages)}};
  const bool is_all = table_.take_changes(space);
  changes_table_ = inputs.journal_count() > 0;
  return is_all;
}

// In a step of nobody.
void Runner::send_changes_ahead(const attn::StepInputBuffers& inputs) {
  for (int32_t* count : {&inputs.live(), &inputs.query_rows(), &inputs.wanted_count(), &inputs.logits_count()})
    *count = 0;
  const attn::StepShape nobody = decode_shape(1, arena_.limits().context);
  attn::check_step(nobody, inputs.inputs(), arena_.limits());
  apply_journal(upload_.send());
  attn::write_metadata(nobody, upload_.inputs(), arena_, exec_);  // whose turn it is now
}

// --- one step

void Runner::check_room(const Batch& batch) const {
  const attn::Limits& limits = arena_.limits();
  check(batch.rows() <= limits.query_rows && std::ssize(batch.shares) <= limits.batch &&
            batch.wanted_rows() <= limits.wanted_rows,
        "a step of ", batch.rows(), " rows of ", batch.shares.size(), " requests, ", batch.wanted_rows(),
        " wanted; up to ", limits.query_rows, " of ", limits.batch, " have room, ", limits.wanted_rows, " wanted");
}

void Runner::fill(const Batch& batch, const attn::StepInputBuffers& inputs) const {
  inputs.live() = static_cast<int32_t>(batch.shares.size());
  inputs.query_rows() = batch.rows();
  const bool trees = batch.has_trees();
  int32_t row = 0;
  for (int32_t b = 0; b < inputs.live(); ++b) {
    const Share& share = batch.shares[b];
    inputs.rows()[b] = share.row;
    inputs.lengths()[b] = {trees ? share.position : share.end()};
    inputs.extend_lengths()[b] = {share.count};
    if (trees) fill_tree(batch, share, inputs);
    for (int32_t position = share.position; position < share.end(); ++position, ++row) {
      const int32_t id = batch.token_ids[row];
      inputs.input_ids()[row] = id == kFutureToken ? future_token(share.row) : id;
      if (!trees) inputs.positions()[row] = position;
      inputs.slot_mapping()[row] = table_.slot(share.row, position);
    }
  }
  if (const std::span<float> reach = forward_.logit_reach(); !reach.empty()) fill_reach(batch, reach);
  int32_t wanted = 0;
  for (const std::vector<WantedRow>* list : {&batch.drawn, &batch.scored, &batch.pooled})
    for (const WantedRow& each : *list) inputs.wanted_rows()[wanted++] = each.row;
  inputs.wanted_count() = wanted;
  inputs.logits_count() = batch.with_logits();
}

// Of rows with logits. Those of a prompt that are scored are as precise as they are for draws: so a token is as likely
// as it was when it was generated.
void Runner::fill_reach(const Batch& batch, std::span<float> reach) {
  size_t row = 0;
  for (const std::vector<WantedRow>* list : {&batch.drawn, &batch.scored})
    for (const WantedRow& wanted : *list) {
      const std::shared_ptr<const Request>& request = batch.shares[wanted.share].request;
      reach[row++] = request ? logit_reach(*request) : ops::kUsualReach;
    }
}

// Which nodes each of a share's rows sees, itself included, and how deep it lies.
void Runner::fill_tree(const Batch& batch, const Share& share, const attn::StepInputBuffers& inputs) const {
  check(share.count == 1 + share.drafts, "request ", share.id, " has ", share.count, " rows in a step of trees, and ",
        share.drafts, " drafts");
  const int32_t most = arena_.limits().draft_tokens, first = share.first_row;
  check(share.count <= most, "a tree of ", share.count, " rows, up to ", most, " have room");
  for (int32_t node = 0; node < share.count; ++node) {
    uint8_t* const sees = inputs.tree_mask() + int64_t{first + node} * most;
    int32_t& position = inputs.positions()[first + node];
    if (node == 0) {
      std::fill_n(sees, most, uint8_t{0});
      position = share.position;
    } else {
      const int32_t parent = first + batch.drawn[share.drawn.begin + node].follows;
      std::copy_n(inputs.tree_mask() + int64_t{parent} * most, most, sees);
      position = inputs.positions()[parent] + 1;
    }
    sees[node] = 1;
  }
}

void Runner::keep_path(const Batch& batch, const StepResults& results) {
  std::vector<TokenSlot> from, to;
  for (const Share& share : batch.shares) {
    if (!share.branches) continue;
    const std::vector<int32_t> rows = walked_rows(share, results);
    for (int32_t depth = 0; depth < std::ssize(rows); ++depth) {
      if (rows[depth] == depth) continue;
      from.push_back(table_.slot(share.row, share.position + rows[depth]));
      to.push_back(table_.slot(share.row, share.position + depth));
    }
  }
  if (!from.empty()) store_.copy_slots(from, to, exec_);
}

attn::StepShape Runner::shape(const Batch& batch) const {
  const auto live = static_cast<int32_t>(batch.shares.size());
  if (batch.has_trees()) {
    attn::StepShape shape = tree_shape(live, batch.rows(), 0);
    shape.sequence_rows = 0;  // it is not recorded
    return recorded_shape(batch, tree_graphs_).value_or(shape);
  }
  if (!batch.only_single_tokens()) {
    if (const std::optional<attn::StepShape> shape = recorded_shape(batch, chain_graphs_)) return *shape;
    if (batch.rows() > extend_captured_) return extend_shape(live, batch.rows());
    return extend_shape(arena_.limits().batch, extend_graphs_.whole.padded_size(batch.rows()));
  }
  const auto& [padded, by_context] = *decode_graphs_.lower_bound(live);
  return decode_shape(padded, by_context.whole.padded_size(longest_of(batch)));
}

// None: it has more sequences, rows of one or rows of all than are recorded, or is cut.
std::optional<attn::StepShape> Runner::recorded_shape(const Batch& batch, const VerifyGraphs& verification) const {
  const auto has_many = [&](const Share& share) { return share.count > verified_rows_; };
  if (batch.is_cut() || std::any_of(batch.shares.begin(), batch.shares.end(), has_many)) return {};
  const auto of_sequences = verification.graphs.lower_bound(static_cast<int32_t>(batch.shares.size()));
  if (of_sequences == verification.graphs.end()) return {};
  const auto of_rows = of_sequences->second.lower_bound(batch.rows());
  if (of_rows == of_sequences->second.end()) return {};
  return (this->*verification.shape)(of_sequences->first, of_rows->first,
                                     of_rows->second.padded_size(longest_of(batch)));
}

// check_step() says which is longer than may be.
int32_t Runner::longest_of(const Batch& batch) const {
  int32_t longest = 0;
  for (const Share& share : batch.shares) longest = std::max(longest, share.end());
  return std::min(longest, arena_.limits().context);
}

attn::StepShape Runner::decode_shape(int32_t sequences, int32_t context) const {
  return {.mode = attn::Mode::decode,
          .captured = sequences,
          .query_rows = sequences,
          .table = table_view(),
          .context = context};
}

attn::StepShape Runner::verify_shape(int32_t sequences, int32_t rows, int32_t context) const {
  attn::StepShape shape = extend_shape(sequences, rows);
  shape.sequence_rows = std::min(rows, verified_rows_);
  shape.context = context;
  return shape;
}

attn::StepShape Runner::tree_shape(int32_t sequences, int32_t rows, int32_t context) const {
  return {.mode = attn::Mode::verify_tree,
          .captured = sequences,
          .query_rows = rows,
          .sequence_rows = std::min(rows, verified_rows_),
          .ragged = true,
          .table = table_view(),
          .context = context};
}

attn::StepShape Runner::extend_shape(int32_t sequences, int32_t rows) const {
  return {.mode = attn::Mode::extend, .captured = sequences, .query_rows = rows, .table = table_view()};
}

}  // namespace quire::engine
