#include "engine/runner.h"

#include <algorithm>
#include <vector>

#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/device_array.h"

namespace quire::engine {
namespace {

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

// Of the inputs, where a GPU computes: the host fills one while two steps are in flight. Page ids that a step brings
// for the mirror: most bring a few, one that begins with a long cached prefix more.
constexpr int32_t kInputCopies = 3, kJournalPages = 1024;

attn::Limits step_limits(const model::ModelConfig& config, const SchedulerLimits& limits, const Exec& exec) {
  const bool has_mirror = exec.device() == Device::cuda;
  return model::attention_limits(config, {.batch = limits.running,
                                          .context = limits.context,
                                          .page_size = limits.page_size,
                                          .threads = exec.threads(),
                                          .query_rows = limits.rows(),
                                          .wanted_rows = limits.wanted_rows(),
                                          .journal_pages = has_mirror ? kJournalPages : 0,
                                          .device = exec.device()});
}

}  // namespace

Runner::Runner(const model::Model& model, const SchedulerLimits& limits, Dtype kv_type, kv::RequestTable& table,
               Exec& exec, ops::DeviceSampler* sampler, bool deterministic, const model::FeatureProjection* features)
    : table_(table),
      exec_(exec),
      store_(model::kv_layout(model.config(), limits.pages + 1, limits.page_size, kv_type),
             place_of(exec.device(), Place::host_huge_pages)),
      arena_(step_limits(model.config(), limits, exec), place_of(exec.device())),
      upload_(arena_.limits(), kInputCopies, exec, sampler ? sampler->drawn_tokens() : DrawnTokens{}),
      forward_(model, arena_.limits(), kv_type, deterministic, features),
      sampler_(sampler),
      extend_captured_(0) {
  if (exec.device() == Device::cuda) {
    table_.keep_journal();
    mirror_.emplace(table_.view());
  }
  capture();
}

void Runner::capture() {
  const attn::Limits& limits = arena_.limits();
  for (const int32_t size : padded_sizes(limits.batch, exec_.device()))
    capture(decode_graphs_[size], forward_.decode_contexts(decode_shape(size, limits.context), arena_, store_, exec_),
            [&](int context) { return decode_shape(size, context); });
  if (exec_.device() == Device::cpu) return;
  std::vector<int> sizes;
  for (const int size : {16, 64, 1 * kGpuRowTile, 2 * kGpuRowTile, 3 * kGpuRowTile, 4 * kGpuRowTile, 5 * kGpuRowTile,
                         6 * kGpuRowTile, 8 * kGpuRowTile})
    if (size <= limits.query_rows) sizes.push_back(size);
  if (sizes.empty()) return;
  capture(extend_graphs_, sizes, [&](int rows) { return extend_shape(limits.batch, rows); });
  extend_captured_ = sizes.back();
}

void Runner::capture(Graphs& graphs, const std::vector<int>& sizes,
                     const std::function<attn::StepShape(int size)>& shape_of) {
  const auto record_all = [&](GraphSet& into, Part part) {
    into.capture(exec_, sizes, [&](int size) { record(shape_of(size), part); });
  };
  record_all(graphs.whole, Part::whole);
  if (sampler_) record_all(graphs.forward, Part::forward);
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
  const bool is_decode = step.mode == attn::Mode::decode;
  const Graphs& graphs = is_decode ? decode_graphs_.at(step.captured) : extend_graphs_;
  const int32_t size = is_decode ? step.context : step.query_rows;
  const attn::StepInputs sent = upload_.send();
  if (changes_table_) apply_journal(sent);
  if (is_decode || step.query_rows <= extend_captured_)
    (sampler_ && part == Part::forward ? graphs.forward : graphs.whole).replay(exec_, size);
  else
    record(step, part);
  const Rows<const float> logits = forward_.logits(), hidden = forward_.hidden();
  return {.logits = {logits.data, batch.with_logits(), logits.dim, logits.stride},
          .pooled = {hidden.row(batch.with_logits()), std::ssize(batch.pooled), hidden.dim, hidden.stride},
          .features = forward_.features()};
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
    const attn::Limits& limits = arena_.limits();
    const kv::JournalSpace space{.count = &inputs.journal_count(),
                                 .runs = {inputs.journal_runs(), static_cast<size_t>(limits.batch)},
                                 .pages = {inputs.journal_pages(), static_cast<size_t>(limits.journal_pages)}};
    const bool is_all = !mirror_ || table_.take_changes(space);
    changes_table_ = mirror_ && inputs.journal_count() > 0;
    if (is_all) return inputs;
    send_changes_ahead(inputs);
  }
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
  int32_t row = 0;
  for (int32_t b = 0; b < inputs.live(); ++b) {
    const Share& share = batch.shares[b];
    inputs.rows()[b] = share.row;
    inputs.lengths()[b] = {share.end()};
    inputs.extend_lengths()[b] = {share.count};
    for (int32_t position = share.position; position < share.end(); ++position, ++row) {
      const int32_t id = batch.token_ids[row];
      inputs.input_ids()[row] = id == kFutureToken ? future_token(share.row) : id;
      inputs.positions()[row] = position;
      inputs.slot_mapping()[row] = table_.slot(share.row, position);
    }
  }
  int32_t wanted = 0;
  for (const std::vector<WantedRow>* list : {&batch.drawn, &batch.scored, &batch.pooled})
    for (const WantedRow& each : *list) inputs.wanted_rows()[wanted++] = each.row;
  inputs.wanted_count() = wanted;
  inputs.logits_count() = batch.with_logits();
}

attn::StepShape Runner::shape(const Batch& batch) const {
  const auto live = static_cast<int32_t>(batch.shares.size());
  if (!batch.only_single_tokens()) {
    if (batch.rows() > extend_captured_) return extend_shape(live, batch.rows());
    return extend_shape(arena_.limits().batch, extend_graphs_.whole.padded_size(batch.rows()));
  }
  const auto& [padded, by_context] = *decode_graphs_.lower_bound(live);
  int32_t longest = 0;
  for (const Share& share : batch.shares) longest = std::max(longest, share.end());
  longest = std::min(longest, arena_.limits().context);  // check_step() says which is longer
  return decode_shape(padded, by_context.whole.padded_size(longest));
}

attn::StepShape Runner::decode_shape(int32_t sequences, int32_t context) const {
  return {.mode = attn::Mode::decode,
          .captured = sequences,
          .query_rows = sequences,
          .table = mirror_ ? mirror_->view() : table_.view(),
          .context = context};
}

attn::StepShape Runner::extend_shape(int32_t sequences, int32_t rows) const {
  return {.mode = attn::Mode::extend,
          .captured = sequences,
          .query_rows = rows,
          .table = mirror_ ? mirror_->view() : table_.view()};
}

}  // namespace quire::engine
