#include "inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "attn/sequence.h"
#include "attn/step.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/exec.h"
#include "base/json_fields.h"
#include "base/strict_json.h"
#include "commands.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "one_line_errors.h"
#include "read_input.h"
#include "session.h"

namespace quire {
namespace {

using attn::Buf;
using attn::Limits;
using attn::Mode;
using attn::StepShape;
using nlohmann::json;
using nlohmann::ordered_json;

// --- the declared table

int64_t bytes_of(attn::Shape shape) { return shape.rows * shape.columns * static_cast<int64_t>(sizeof(int32_t)); }

// Those that an arena of these limits has.
std::vector<attn::BufferSpec> held_buffers(const Limits& limits) {
  std::vector<attn::BufferSpec> held;
  for (const attn::BufferSpec& buffer : attn::kBuffers)
    if (is_held(buffer, limits)) held.push_back(buffer);
  return held;
}

int64_t declared_bytes(const Limits& limits) {
  int64_t total = 0;
  for (const attn::BufferSpec& buffer : held_buffers(limits)) total += bytes_of(buffer.shape(limits));
  return total;
}

ordered_json limits_json(const Limits& limits) {
  return {{"batch", limits.batch},
          {"context", limits.context},
          {"page_size", limits.page_size.tokens()},
          {"topk", limits.topk},
          {"draft_steps", limits.draft_steps},
          {"draft_tokens", limits.draft_tokens},
          {"chunk", limits.chunk},
          {"encoder_context", limits.encoder_context},
          {"heads", limits.heads},
          {"kv_heads", limits.kv_heads},
          {"key_dim", limits.key_dim},
          {"value_dim", limits.value_dim},
          {"threads", limits.threads},
          {"device", to_string(limits.device)},
          {"form", to_string(limits.form)}};
}

ordered_json buffer_json(const attn::BufferSpec& buffer, const Limits& limits) {
  const attn::Shape shape = buffer.shape(limits);
  return {{"set", to_string(buffer.set)},
          {"buffer", buffer.name},
          {"element", to_string(buffer.element)},
          {"shape", {shape.rows, shape.columns}},
          {"bytes", bytes_of(shape)},
          {"role", to_string(buffer.role)},
          {"on", to_string(buffer.on)}};
}

void print_metadata_json(const Limits& limits, size_t arena_bytes) {
  ordered_json buffers = ordered_json::array();
  for (const attn::BufferSpec& buffer : held_buffers(limits)) buffers.push_back(buffer_json(buffer, limits));
  const ordered_json all{{"limits", limits_json(limits)},
                         {"buffers", std::move(buffers)},
                         {"declared_bytes", declared_bytes(limits)},
                         {"arena_bytes", arena_bytes}};
  std::cout << all.dump(2) << '\n';
}

void print_metadata_table(const Limits& limits, size_t arena_bytes) {
  std::cout << to_string(limits) << "\n\n";
  constexpr const char* kLine = "%-19s %-24s %-7s %22s %14s  %-6s %s\n";
  std::printf(kLine, "set", "buffer", "element", "shape", "bytes", "role", "on");
  const std::vector<attn::BufferSpec> buffers = held_buffers(limits);
  for (const attn::BufferSpec& buffer : buffers) {
    const attn::Shape shape = buffer.shape(limits);
    std::printf(kLine, to_string(buffer.set), buffer.name, to_string(buffer.element),
                cat(shape.rows, " x ", shape.columns).c_str(), std::to_string(bytes_of(shape)).c_str(),
                to_string(buffer.role), to_string(buffer.on));
  }
  std::printf("\n%zu buffers, %lld bytes declared, one arena of %zu bytes, never filled\n", buffers.size(),
              static_cast<long long>(declared_bytes(limits)), arena_bytes);
}

// --- reading a step

constexpr size_t kMostFileBytes = size_t{64} << 20;
constexpr int kMostDepth = 4;  // the deepest key is a table: object, array, array, number
constexpr int32_t kMostCaptured = 1 << 16;
constexpr int32_t kMostNumber = std::numeric_limits<int32_t>::max() / 4;

std::vector<int32_t> to_numbers(const json& value, const std::string& name, int32_t least, int32_t most) {
  check(value.is_array(), name, " is not an array but ", value.type_name());
  std::vector<int32_t> numbers;
  numbers.reserve(value.size());
  for (const json& element : value)
    numbers.push_back(to_count(element, cat(name, "[", numbers.size(), "]"), least, most));
  return numbers;
}

// The keys of the input, each read with its type and bounds.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}

  bool has(const char* key) const { return object_.contains(key); }
  const json& at(const char* key) const { return field(object_, key); }
  std::string text(const char* key) const { return text_field(object_, key); }
  int32_t number(const char* key, int32_t least, int32_t most = kMostNumber) const {
    return count_field(object_, key, least, most);
  }
  int32_t number_or(const char* key, int32_t otherwise, int32_t least, int32_t most = kMostNumber) const {
    return has(key) ? number(key, least, most) : otherwise;
  }
  // Numbers without narrower bounds of their own: check_step() has the rules and says which is broken.
  std::vector<int32_t> numbers(const char* key) const { return to_numbers(at(key), key, -kMostNumber, kMostNumber); }
  std::vector<int32_t> numbers(const char* key, size_t count) const {
    std::vector<int32_t> found = numbers(key);
    check(found.size() == count, key, " has ", found.size(), " elements, not ", count);
    return found;
  }
  // [rows][columns], the columns of each row as many as it has
  std::vector<std::vector<int32_t>> rows(const char* key, int32_t least, int32_t most) const {
    std::vector<std::vector<int32_t>> all;
    for (const json& row : list_field(object_, key))
      all.push_back(to_numbers(row, cat(key, "[", all.size(), "]"), least, most));
    return all;
  }

 private:
  const json& object_;
};

// --- the request table

// The page whose slots, in order, `slots` are; none when they are not one page.
std::optional<PageId> whole_page(std::span<const int32_t> slots, PageSize size) {
  if (slots.front() % size.tokens() != 0) return {};
  for (size_t i = 1; i < slots.size(); ++i)
    if (slots[i] != slots[0] + static_cast<int32_t>(i)) return {};
  return size.page_of({slots.front()});
}

// A table made from token slots, and what its views point to.
struct Table {
  std::vector<PageId> pages;       // [rows, width]; entries past a row's own are the reserved page
  std::vector<int32_t> row_pages;  // [rows]
  int32_t width = 0;
  int32_t pool_pages = 1;

  kv::TableView view(PageSize size) const {
    return {.pages = pages.data(),
            .stride = width,
            .rows = static_cast<int32_t>(row_pages.size()),
            .width = width,
            .page_size = size,
            .pool_pages = pool_pages};
  }
  PageId* row(size_t index) { return pages.data() + index * static_cast<size_t>(width); }
};

Table empty_table(const std::vector<std::vector<int32_t>>& rows, PageSize size) {
  Table table;
  for (size_t r = 0; r < rows.size(); ++r) {
    check(rows[r].size() % static_cast<size_t>(size.tokens()) == 0, "request_table[", r, "] has ", rows[r].size(),
          " slots, which are not whole pages of ", size.tokens());
    table.row_pages.push_back(size.pages_for(static_cast<int64_t>(rows[r].size())));
    table.width = std::max(table.width, table.row_pages.back());
  }
  check(table.width > 0, "request_table has no slots");
  table.pages.assign(rows.size() * static_cast<size_t>(table.width), kv::kReservedPage);
  return table;
}

Table table_of_slots(const std::vector<std::vector<int32_t>>& rows, PageSize size) {
  Table table = empty_table(rows, size);
  const auto tokens = static_cast<size_t>(size.tokens());
  for (size_t r = 0; r < rows.size(); ++r)
    for (int32_t p = 0; p < table.row_pages[r]; ++p) {
      const size_t first = static_cast<size_t>(p) * tokens;
      const auto page = whole_page(std::span(rows[r]).subspan(first, tokens), size);
      check(page.has_value(), "request_table[", r, "]: the slots [", first, ", ", first + tokens,
            ") do not form a whole page of ", tokens);
      table.row(r)[p] = *page;
      table.pool_pages = std::max(table.pool_pages, page->value + 1);
    }
  return table;
}

// Where full_to_swa leads a page; slots that have left the window map to -1, their page to the reserved one.
PageId window_page(PageId page, std::span<const int32_t> full_to_swa, PageSize size) {
  const auto tokens = static_cast<size_t>(size.tokens());
  const size_t first = static_cast<size_t>(page.value) * tokens;
  check(first + tokens <= full_to_swa.size(), "full_to_swa has ", full_to_swa.size(), " entries, none for slot ",
        first + tokens - 1);
  const auto mapped = full_to_swa.subspan(first, tokens);
  if (std::all_of(mapped.begin(), mapped.end(), [](int32_t slot) { return slot == -1; })) return kv::kReservedPage;
  const auto found = mapped.front() < 0 ? std::nullopt : whole_page(mapped, size);
  check(found.has_value(), "full_to_swa: the entries [", first, ", ", first + tokens, ") do not form a whole page of ",
        tokens);
  return *found;
}

// Only the rows of the step's requests: the map need not know the others' slots.
Table window_table_of(Table table, std::span<const int32_t> request_rows, std::span<const int32_t> full_to_swa,
                      PageSize size) {
  for (const int32_t r : std::set<int32_t>(request_rows.begin(), request_rows.end())) {
    check(r >= 0 && static_cast<size_t>(r) < table.row_pages.size(), "request_rows names row ", r,
          ", request_table has ", table.row_pages.size());
    PageId* row = table.row(static_cast<size_t>(r));
    for (int32_t p = 0; p < table.row_pages[static_cast<size_t>(r)]; ++p) {
      row[p] = window_page(row[p], full_to_swa, size);
      table.pool_pages = std::max(table.pool_pages, row[p].value + 1);
    }
  }
  return table;
}

// --- the step

struct NamedMode {
  const char* name;
  Mode mode;
  bool local = false, encoder = false, window = false;  // a plain step with further kinds of layers
};
constexpr NamedMode kModes[] = {
    {"decode", Mode::decode},
    {"extend", Mode::extend},
    {"draft", Mode::draft},
    {"draft_tree", Mode::draft_tree},
    {"verify", Mode::verify},
    {"verify_tree", Mode::verify_tree},
    {"draft_extend", Mode::draft_extend},
    {.name = "local", .mode = Mode::decode, .local = true},
    {.name = "encoder", .mode = Mode::decode, .encoder = true},
    {.name = "window", .mode = Mode::decode, .window = true},
};

NamedMode mode_of(const Reader& in) {
  const std::string name = in.text("mode");
  const auto* found =
      std::find_if(std::begin(kModes), std::end(kModes), [&](const NamedMode& m) { return name == m.name; });
  std::string known;
  for (const NamedMode& m : kModes) known += cat(known.empty() ? "" : ", ", m.name);
  check(found != std::end(kModes), "mode \"", name, "\" is not one of ", known);
  NamedMode mode = *found;
  const bool has_layers = mode.local || mode.encoder || mode.window;
  if (has_layers && in.has("extend_lengths")) mode.mode = Mode::extend;
  return mode;
}

Limits limits_of(const Reader& in, const NamedMode& mode, int32_t live) {
  Limits limits{.batch = in.number_or("captured_batch", std::max(live, 1), 1, kMostCaptured),
                .context = in.number("context", 1),
                .page_size = PageSize(in.number("page_size", 1))};
  check(live <= limits.batch, "request_rows has ", live, " requests, above captured_batch ", limits.batch);
  if (attn::is_draft(mode.mode)) limits.draft_steps = in.number("num_steps", 1, attn::kMostDrafts);
  if (mode.mode == Mode::draft_tree) limits.topk = in.number("topk", 1, attn::kMostDrafts);
  if (mode.mode == Mode::verify || mode.mode == Mode::verify_tree)
    limits.draft_tokens = in.number("num_draft_tokens", 1, attn::kMostDrafts);
  if (mode.local) limits.chunk = in.number("chunk", 1);
  if (mode.encoder) limits.encoder_context = limits.context;
  limits.form = attn::Form::materialised;
  limits.check();
  return limits;
}

// Everything that the step's addresses point to.
struct GivenStep {
  Limits limits;
  Table table, window_table;
  attn::StepInputBuffers inputs;
  StepShape shape;
};

template <class T>
void fill(T* target, const std::vector<int32_t>& numbers) {
  std::transform(numbers.begin(), numbers.end(), target, [](int32_t number) { return T{number}; });
}

void fill_mask(const Reader& in, GivenStep& step, size_t live) {
  const auto nodes = static_cast<size_t>(step.limits.draft_tokens);
  const auto mask = in.rows("tree_mask", 0, 1);
  check(mask.size() == live * nodes, "tree_mask has ", mask.size(), " rows, not ", live * nodes);
  uint8_t* target = step.inputs.tree_mask();
  for (size_t row = 0; row < mask.size(); ++row) {
    check(mask[row].size() == nodes, "tree_mask[", row, "] has ", mask[row].size(), " elements, not ", nodes);
    target = std::transform(mask[row].begin(), mask[row].end(), target,
                            [](int32_t bit) { return static_cast<uint8_t>(bit); });
  }
}

void fill_inputs(const Reader& in, GivenStep& step, const std::vector<int32_t>& request_rows) {
  const size_t live = request_rows.size();
  step.inputs.live() = static_cast<int32_t>(live);
  fill(step.inputs.rows(), request_rows);
  fill(step.inputs.lengths(), in.numbers("lengths", live));
  if (attn::has_extend_lengths(step.shape.mode)) fill(step.inputs.extend_lengths(), in.numbers("extend_lengths", live));
  if (step.shape.encoder) fill(step.inputs.encoder_lengths(), in.numbers("encoder_lengths", live));
  if (step.shape.mode == Mode::verify_tree) fill_mask(in, step, live);
  if (step.shape.mode != Mode::draft_tree) return;
  const std::vector<int32_t> slots =
      in.numbers("draft_slots", live * static_cast<size_t>(step.limits.topk * step.limits.draft_steps));
  fill(step.inputs.draft_slots(), slots);
  // The pool is as large as what is named in it; it is not a part of the input.
  for (const int32_t slot : slots)
    step.shape.table.pool_pages =
        std::max(step.shape.table.pool_pages, step.limits.page_size.page_of({slot}).value + 1);
}

// Rows may differ in length, which the view of a whole table does not know.
void check_row_lengths(const GivenStep& step) {
  const attn::StepInputs inputs = step.inputs.inputs();
  const attn::StepView view{step.shape, inputs, step.limits};
  for (int32_t b = 0; b < view.live(); ++b) {
    const int32_t row = inputs.rows[b].value, needed = row_pages(view, b);
    const int32_t given = step.table.row_pages[static_cast<size_t>(row)];
    check(needed <= given, "request_table[", row, "] has ", given, " pages, request ", b, " of length ",
          inputs.lengths[b].value, " needs ", needed);
  }
}

std::unique_ptr<GivenStep> read_step(const Reader& in) {
  const NamedMode mode = mode_of(in);
  const std::vector<int32_t> request_rows = in.numbers("request_rows");
  const Limits limits =
      limits_of(in, mode, static_cast<int32_t>(std::min<size_t>(request_rows.size(), kMostCaptured + 1)));
  const PageSize size = limits.page_size;
  Table table = table_of_slots(in.rows("request_table", 0, kMostNumber), size);
  Table window_table;
  if (mode.window) window_table = window_table_of(table, request_rows, in.numbers("full_to_swa"), size);
  auto step = std::make_unique<GivenStep>(GivenStep{
      .limits = limits,
      .table = std::move(table),
      .window_table = std::move(window_table),
      .inputs = attn::StepInputBuffers(limits),
      .shape = {.mode = mode.mode,
                .form = attn::Form::materialised,
                .captured = limits.batch,
                .query_rows = 0,
                .draft_step = attn::is_draft(mode.mode) ? in.number_or("step", 0, 0) : 0,
                .local = mode.local,
                .encoder = mode.encoder,
                .table = {.pages = nullptr, .stride = 0, .rows = 0, .width = 0, .page_size = size, .pool_pages = 0}}});
  step->shape.table = step->table.view(size);
  if (mode.window) step->shape.window_table = step->window_table.view(size);
  fill_inputs(in, *step, request_rows);
  step->shape.query_rows = std::numeric_limits<int32_t>::max();  // nobody attends
  check_step(step->shape, step->inputs.inputs(), limits);
  check_row_lengths(*step);
  return step;
}

// --- printing a step

// quire's own additions to the sets, which kernels outside it do not know.
bool is_own(std::string_view name) {
  return name == "request_row" || name == "first_page" || name == "live_count" || name == "cu_items" ||
         name == "cu_splits";
}

// The buffer of each set that has one element for each row of its table.
Buf lengths_of(attn::Set set) {
  switch (set) {
    case attn::Set::local:
      return Buf::local_local_seqused_k;
    case attn::Set::encoder:
      return Buf::encoder_encoder_lens_int32;
    case attn::Set::draft_branch:
      return Buf::draft_branch_cache_seqlens;
    case attn::Set::verify_tree_branch:
      return Buf::verify_tree_branch_cache_seqlens;
    default:
      return attn::sequence_set(set).cache_seqlens;
  }
}

class Printer {
 public:
  Printer(const GivenStep& step, const attn::MetadataArena& arena)
      : step_(step), arena_(arena), inputs_(step.inputs.inputs()) {}

  // One line a buffer: readable by people, and JSON.
  void print(std::ostream& out) const {
    out << "{\"sets\": {";
    const char* separator = "\n";
    for (int set = 0; set <= static_cast<int>(attn::Set::split); ++set) {
      const std::string buffers = set_text(static_cast<attn::Set>(set));
      if (buffers.empty()) continue;
      out << separator << "  \"" << to_string(static_cast<attn::Set>(set)) << "\": {" << buffers << "\n  }";
      separator = ",\n";
    }
    out << "\n}}\n";
  }

 private:
  std::string set_text(attn::Set set) const {
    std::string text;
    for (const attn::BufferSpec& buffer : attn::kBuffers) {
      if (buffer.set != set || is_own(buffer.name) || !is_used(buffer, step_.shape, step_.limits.device)) continue;
      text += cat(text.empty() ? "\n    \"" : ",\n    \"", buffer.name, "\": ", values(buffer).dump());
    }
    return text;
  }

  json values(const attn::BufferSpec& buffer) const {
    if (buffer.element == attn::Element::count) return row(buffer, plane_row(buffer));
    const attn::BufferSpec& lengths = attn::spec(lengths_of(buffer.set));
    json table = json::array();
    for (int64_t r = 0; r < readable(lengths, plane_row(lengths)); ++r) table.push_back(row(buffer, r));
    return table;
  }

  // Which row of a buffer of counts is printed: that of the draft step, where it has one for each.
  int64_t plane_row(const attn::BufferSpec& buffer) const {
    return attn::is_draft(step_.shape.mode) && arena_.shape(buffer.id).rows > 1 ? step_.shape.draft_step : 0;
  }

  int64_t readable(const attn::BufferSpec& buffer, int64_t r) const {
    return attn::readable(buffer, step_.shape, inputs_, step_.limits, r, step_.shape.draft_step);
  }

  json row(const attn::BufferSpec& buffer, int64_t r) const {
    const int32_t* first = arena_.words(buffer.id).data() + r * arena_.shape(buffer.id).columns;
    return std::vector<int32_t>(first, first + readable(buffer, r));
  }

  const GivenStep& step_;
  const attn::MetadataArena& arena_;
  attn::StepInputs inputs_;
};

void print_step(const std::string& path) {
  const json parsed = parse_strict_json(read_input(path, kMostFileBytes), kMostDepth);
  const std::unique_ptr<GivenStep> step = read_step(Reader(parsed));
  const attn::MetadataArena arena(step->limits);
  Exec exec(ExecOptions{.threads = 1});
  write_metadata(step->shape, step->inputs.inputs(), arena, exec);
  std::ostringstream text;
  Printer(*step, arena).print(text);
  std::cout << text.str();
}

// --- the command line

struct LimitOptions {
  int32_t page_size = 16;
  Limits limits{.batch = 64,
                .context = 32768,
                .page_size = PageSize(16),
                .topk = 4,
                .draft_steps = 5,
                .draft_tokens = 16,
                .chunk = 8192,
                .encoder_context = 1536,
                .heads = 32,
                .kv_heads = 8,
                .threads = 0};
  std::string device = "cpu", form = "in_place";
  bool json = false;
};

void add_limit_options(CLI::App& app, LimitOptions& options) {
  Limits& limits = options.limits;
  const auto add = [&](const char* name, int32_t& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str();
  };
  add("--batch", limits.batch, "most requests in a step");
  add("-c,--context-length", limits.context, "most committed tokens of a request");
  add("--page-size", options.page_size, "tokens in a page: 1, 16, 32, 64 or 128");
  add("--topk", limits.topk, "branches of a draft tree");
  add("--draft-steps", limits.draft_steps, "draft tokens on a branch");
  add("--draft-tokens", limits.draft_tokens, "nodes verified for a request, the root included");
  add("--chunk", limits.chunk, "tokens in a chunk of local layers; 0: none");
  add("--encoder-context", limits.encoder_context, "most encoder keys of a request; 0: none");
  add("--heads", limits.heads, "query heads");
  add("--kv-heads", limits.kv_heads, "key and value heads");
  add("--key-dim", limits.key_dim, "elements of a key");
  add("--value-dim", limits.value_dim, "elements of a value");
  add_threads_option(app, limits.threads);
  app.add_option("--device", options.device, "where attention runs: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--form", options.form, "of the steps: in_place, or materialised for both")
      ->check(CLI::IsMember({"in_place", "materialised"}))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print JSON");
}

void exit_with(int code) {
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

int inspect_metadata(const Limits& limits, bool json) {
  return with_one_line_errors("inspect metadata", [&] {
    const size_t bytes = attn::MetadataArena::bytes_for(limits);
    if (json)
      print_metadata_json(limits, bytes);
    else
      print_metadata_table(limits, bytes);
  });
}

int inspect_step(const std::string& path) {
  return with_one_line_errors("inspect step", [&] { print_step(path); });
}

void add_inspect(CLI::App& app) {
  CLI::App* inspect = app.add_subcommand("inspect", "show the step metadata, a model's files, or its logits");
  inspect->require_subcommand(1);

  const auto options = std::make_shared<LimitOptions>();
  CLI::App* metadata = inspect->add_subcommand("metadata", "the buffers of an arena, their shapes and bytes");
  add_limit_options(*metadata, *options);
  metadata->callback([options] {
    options->limits.device = options->device == "cuda" ? Device::cuda : Device::cpu;
    options->limits.form = options->form == "materialised" ? attn::Form::materialised : attn::Form::in_place;
    const auto fill_in = [&] {
      options->limits.page_size = PageSize(options->page_size);
      if (options->limits.threads == 0) options->limits.threads = usable_cores();
    };
    exit_with(with_one_line_errors("inspect metadata", fill_in));
    exit_with(inspect_metadata(options->limits, options->json));
  });

  const auto path = std::make_shared<std::string>();
  CLI::App* step = inspect->add_subcommand("step", "the materialised metadata of one step given as JSON");
  step->add_option("FILE", *path, "the step; -: standard input")->required();
  step->callback([path] { exit_with(inspect_step(*path)); });

  add_inspect_attention(*inspect);
  add_inspect_logits(*inspect);
  add_inspect_model(*inspect);
}

}  // namespace quire
