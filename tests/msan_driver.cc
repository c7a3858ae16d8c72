// Every mode through kv and attn under MemorySanitizer: before each step the arena, the outputs, the tables, the inputs
// and all keys and values are marked as uninitialised again, so that whatever a step reads and did not write is
// reported, in the fast kernels too.
//
//   msan_driver                    all steps, then for each declared buffer a control: a run of its own in which that
//                                  buffer is not written, and which the sanitizer must end
//   msan_driver --without BUFFER   one such run
//
// No GoogleTest and no iostream: neither is instrumented, and reading what they wrote would be reported.
//
// AMX is left out. The sanitizer does not follow tile instructions, so it would see nothing of what they read.
#include <sanitizer/msan_interface.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/attend_cpu.h"
#include "attn/attention.h"
#include "attn/sequence.h"
#include "attn/write_metadata.h"
#include "kv/window_pool.h"

namespace quire::attn {
namespace {

constexpr int kReported = 77;  // exit status after a report
constexpr int32_t kCaptured = 4, kTopk = 3, kDraftSteps = 4, kNodes = 6, kChunk = 128, kWindow = 20;
constexpr int32_t kLengths[] = {17, 700, 1, 40};
constexpr int32_t kExtends[] = {17, 3, 1, 20};
constexpr int32_t kEncoders[] = {20, 1, 0, 600};
constexpr int32_t kContext = 700, kEncoderContext = 600;

struct Scene {
  Mode mode = Mode::decode;
  LayerKind kind = LayerKind::full;
  Form form = Form::in_place;
  int32_t page_size = 16;
  Dtype query_type = Dtype::f32;
  Dtype kv_type = Dtype::f32;
  bool latent = false;
  Device device = Device::cpu;  // cuda: what its kernels read, written and attended to by the reference
};

template <class T>
void forget(const T* array, int64_t count) {
  __msan_allocated_memory(array, static_cast<size_t>(count) * sizeof(T));
}

// --- one scene's memory, and its steps

class Stage {
 public:
  explicit Stage(const Scene& scene)
      : scene_(scene),
        limits_(limits_of(scene)),
        pool_(pages(), limits_.page_size),
        table_(pool_, kCaptured + 2, row_tokens()),
        store_(layout()),
        arena_(limits_),
        inputs_(limits_),
        queries_(bytes_of_rows(limits_.key_dim)),
        out_(bytes_of_rows(limits_.value_dim)),
        lse_(static_cast<size_t>(most_rows()) * limits_.heads * sizeof(float)) {
    if (scene.kind != LayerKind::window) return;
    window_ =
        std::make_unique<kv::WindowPool>(pages(), limits_.page_size, kCaptured + 2, row_tokens(), TokenCount{kWindow});
    window_store_ = std::make_unique<kv::KvStore>(layout());
  }

  // One step with the first `live` requests; `missing` is not written.
  void run(int32_t live, std::optional<Buf> missing, Exec& exec) {
    forget_everything();
    for (int32_t b = 0; b < live; ++b) open(b, exec);
    inputs_.live() = live;
    fill_queries(live);
    check_step(shape(), inputs_.inputs(), limits_);
    if (missing)
      write_and_attend_without(live, *missing, exec);
    else
      write_and_attend(live, exec);
    check_results();
    for (int32_t b = 0; b < live; ++b) {
      if (scene_.mode == Mode::verify_tree) accept(b, exec);
      close(b);
    }
  }

  // Key prefix sums, and the query counts of branches, which are all 1, are for kernels outside quire; the counters of
  // a GPU's blocks for kernels that do not run here.
  static bool is_read_by_kernels(Buf id) {
    if (spec(id).on == On::cuda) return false;
    const std::string name = spec(id).name;
    const bool is_branch = spec(id).set == Set::draft_branch || spec(id).set == Set::verify_tree_branch;
    return name.find("cu_seqlens_k") == std::string::npos && !(is_branch && name == "cu_seqlens_q");
  }

 private:
  static Limits limits_of(const Scene& scene) {
    return {.batch = kCaptured,
            .context = kContext,
            .page_size = PageSize(scene.page_size),
            .topk = kTopk,
            .draft_steps = kDraftSteps,
            .draft_tokens = kNodes,
            .chunk = scene.kind == LayerKind::local ? kChunk : 0,
            .encoder_context = scene.kind == LayerKind::encoder ? kEncoderContext : 0,
            .heads = scene.latent ? 3 : 4,
            .kv_heads = scene.latent ? 1 : 2,
            .key_dim = scene.latent ? 576 : 64,
            .value_dim = scene.latent ? 512 : 64,
            .threads = 2,
            .device = scene.device,
            .form = Form::materialised};
  }

  int32_t row_tokens() const { return (limits_.encoder_pages() + limits_.text_pages()) * limits_.page_size.tokens(); }
  // For every request's row and, in a draft tree, its slots outside of it.
  int32_t pages() const {
    return kCaptured * (limits_.page_size.pages_for(row_tokens()) + limits_.page_size.pages_for(kTopk * kDraftSteps)) +
           2;
  }
  int64_t most_rows() const { return int64_t{kCaptured} * std::max(kNodes, 24); }
  size_t bytes_of_rows(int32_t dim) const {
    return static_cast<size_t>(most_rows()) * limits_.heads * dim * sizeof(float);
  }

  kv::KvLayout layout() const {
    return {.layers = 1,
            .pages = pages(),
            .page_size = limits_.page_size,
            .type = scene_.kv_type,
            .kv_heads = limits_.kv_heads,
            .key_dim = limits_.key_dim,
            .value_dim = limits_.value_dim,
            .latent = scene_.latent};
  }

  StepShape shape() const {
    return {.mode = scene_.mode,
            .form = scene_.form,
            .captured = kCaptured,
            .query_rows = static_cast<int32_t>(most_rows()),
            .draft_step = is_draft(scene_.mode) ? limits_.planes() - 1 : 0,
            .local = scene_.kind == LayerKind::local,
            .encoder = scene_.kind == LayerKind::encoder,
            .table = table_.view(),
            .window_table = window_ ? std::optional(window_->table().view()) : std::nullopt};
  }

  int64_t query_rows(int32_t live) const {
    inputs_.live() = live;
    const StepShape now = shape();
    const StepInputs inputs = inputs_.inputs();
    const StepView view{now, inputs, limits_};
    int64_t rows = 0;
    for (int32_t b = 0; b < live; ++b) rows += queries(view, b);
    return rows;
  }

  // --- marking

  static void forget_store(const kv::KvStore& store) {
    const kv::LayerKv layer = store.layer(0);
    forget(layer.keys, layer.slots * layer.key_stride * size_of(layer.type));
    forget(layer.values, layer.slots * layer.value_stride * size_of(layer.type));
  }
  static void forget_table(const kv::TableView& view) { forget(view.pages, view.rows * view.stride); }

  void forget_everything() {
    for (const BufferSpec& buffer : kBuffers)
      if (arena_.has(buffer.id)) forget_buffer(buffer.id);
    forget(queries_.data(), std::ssize(queries_.bytes()));
    forget(out_.data(), std::ssize(out_.bytes()));
    forget(lse_.data(), std::ssize(lse_.bytes()));
    forget(inputs_.memory().data(), std::ssize(inputs_.memory().bytes()));
    forget_store(store_);
    forget_table(table_.view());
    if (!window_) return;
    forget_store(*window_store_);
    forget_table(window_->table().view());
  }

  // --- requests

  int32_t text_begin(int32_t b) const {
    if (scene_.kind != LayerKind::encoder) return 0;
    return limits_.page_size.pages_for(kEncoders[b]) * limits_.page_size.tokens();
  }
  // Tokens of the row that exist in this step, drafts included.
  int32_t text_tokens(int32_t b) const {
    switch (scene_.mode) {
      case Mode::draft:
        return kLengths[b] + limits_.planes();
      case Mode::verify:
      case Mode::verify_tree:
        return kLengths[b] + kNodes;
      default:
        return kLengths[b];
    }
  }

  void open(int32_t b, Exec& exec) {
    const RequestRow row = table_.open();
    fill_row(table_, store_, row, text_begin(b), text_tokens(b), exec);
    if (scene_.kind == LayerKind::encoder) store_slots(store_, slots_of(table_, row, 0, kEncoders[b]), exec);
    if (window_) {
      check(window_->open() == row, "both tables hand out the same rows");
      fill_row(window_->table(), *window_store_, row, 0, text_tokens(b), exec);
    }
    rows_[b] = row;
    inputs_.rows()[b] = row;
    inputs_.lengths()[b] = {kLengths[b]};
    inputs_.extend_lengths()[b] = {kExtends[b]};
    inputs_.encoder_lengths()[b] = {kEncoders[b]};
    // A comb: each node continues the node before last.
    for (int32_t node = 0; node < kNodes; ++node)
      for (int32_t other = 0; other < kNodes; ++other)
        inputs_.tree_mask()[(b * kNodes + node) * kNodes + other] = other <= node && (node - other) % 2 == 0;
    if (scene_.mode == Mode::draft_tree) open_drafts(b, exec);
  }

  void open_drafts(int32_t b, Exec& exec) {
    std::vector<PageId>& pages = draft_pages_[b];
    pages.resize(limits_.page_size.pages_for(kTopk * kDraftSteps));
    check(pool_.allocate(pages), "too few pages for drafts");
    std::vector<TokenSlot> slots;
    for (int32_t i = 0; i < kTopk * kDraftSteps; ++i)
      slots.push_back(limits_.page_size.slot(pages[i >> limits_.page_size.shift()], i & (scene_.page_size - 1)));
    std::copy(slots.begin(), slots.end(), inputs_.draft_slots() + b * kTopk * kDraftSteps);
    store_slots(store_, slots, exec);
  }

  // Every other node is accepted, and moves to where the text continues.
  void accept(int32_t b, Exec& exec) {
    std::vector<TokenSlot> from, to;
    for (int32_t i = 0; 2 * i < kNodes; ++i) {
      from.push_back(table_.slot(rows_[b], kLengths[b] + 2 * i));
      to.push_back(table_.slot(rows_[b], kLengths[b] + i));
    }
    store_.copy_slots(from, to, exec);
    const kv::LayerKv layer = store_.layer(0);
    const int64_t row_bytes = layer.key_stride * size_of(layer.type);
    for (const TokenSlot slot : to)
      __msan_check_mem_is_initialized(layer.keys + slot.value * row_bytes, static_cast<size_t>(row_bytes));
  }

  void close(int32_t b) {
    table_.close(rows_[b]);
    if (window_) window_->close(rows_[b]);
    for (const PageId page : draft_pages_[b]) pool_.release(page);
    draft_pages_[b].clear();
  }

  static std::vector<TokenSlot> slots_of(const kv::RequestTable& table, RequestRow row, int32_t first, int32_t count) {
    std::vector<TokenSlot> slots;
    for (int32_t i = 0; i < count; ++i) slots.push_back(table.slot(row, first + i));
    return slots;
  }

  void fill_row(kv::RequestTable& table, kv::KvStore& store, RequestRow row, int32_t first, int32_t tokens,
                Exec& exec) {
    check(table.reserve(row, {first + tokens}), "too few pages");
    store_slots(store, slots_of(table, row, first, tokens), exec);
  }

  static std::vector<float> numbers(size_t count) {
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i * 37 % 64) / 32 - 1;
    return numbers;
  }

  void store_slots(kv::KvStore& store, const std::vector<TokenSlot>& slots, Exec& exec) const {
    const auto count = static_cast<int32_t>(slots.size());
    const std::vector<float> values = numbers(slots.size() * limits_.kv_heads * limits_.key_dim);
    const auto rows_of = [&](int32_t dim) {
      return ConstHeadRows{.data = reinterpret_cast<const std::byte*>(values.data()),
                           .type = Dtype::f32,
                           .rows = count,
                           .heads = limits_.kv_heads,
                           .dim = dim,
                           .row_stride = int64_t{limits_.kv_heads} * dim};
    };
    kv::store_rows({.layer = store.layer(0),
                    .keys = rows_of(limits_.key_dim),
                    .values = rows_of(limits_.value_dim),
                    .slots = slots.data(),
                    .live_rows = &count},
                   exec);
  }

  // Queries of live rows only.
  void fill_queries(int32_t live) {
    const int64_t count = query_rows(live) * limits_.heads * limits_.key_dim;
    const std::vector<float> values = numbers(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) store_element(scene_.query_type, queries_.data(), i, values[i]);
  }

  // --- the step

  void forget_buffer(Buf id) const { forget(arena_.words(id).data(), std::ssize(arena_.words(id))); }

  void write_and_attend(int32_t live, Exec& exec) const {
    write(live, exec);
    check_readable();
    (scene_.device == Device::cuda ? ref::attend : cpu::attend)(args(), exec);
  }

  // What kernels read must be noticed by itself; what only others would read, by asking for it. Partial results are
  // written by the first half of the kernel and read by the second.
  void write_and_attend_without(int32_t live, Buf missing, Exec& exec) const {
    write(live, exec);
    forget_buffer(missing);
    if (!is_read_by_kernels(missing)) check_readable();
    if (scene_.device == Device::cuda) return;
    cpu::attend_items(args(), exec);
    if (spec(missing).role == Role::kernel) forget_buffer(missing);
    cpu::combine_splits(args(), exec);
  }

  void write(int32_t live, Exec& exec) const {
    (scene_.device == Device::cuda ? ref::write_metadata : cpu::write_metadata)(shape(), inputs_.inputs(), arena_,
                                                                                exec);
    if (scene_.mode == Mode::draft_tree) follow(live, exec);
  }

  void follow(int32_t live, Exec& exec) const {
    std::vector<int32_t> parents;
    for (int32_t row = 0; row < live * kTopk; ++row) parents.push_back((row * 5 + 1) % kTopk);
    for (int32_t step = 0; step + 1 < limits_.planes(); ++step)
      follow_parents(shape(), inputs_.inputs(), arena_, step, parents.data(), exec);
  }

  AttendArgs args() const {
    return {.keys = key_view(arena_, shape(), scene_.kind),
            .arena = &arena_,
            .kv = window_ ? window_store_->layer(0) : store_.layer(0),
            .q = {.data = queries_.data(),
                  .type = scene_.query_type,
                  .rows = most_rows(),
                  .heads = limits_.heads,
                  .dim = limits_.key_dim,
                  .row_stride = int64_t{limits_.heads} * limits_.key_dim},
            .out = {.data = out_.data(),
                    .type = scene_.query_type,
                    .rows = most_rows(),
                    .heads = limits_.heads,
                    .dim = limits_.value_dim,
                    .row_stride = int64_t{limits_.heads} * limits_.value_dim},
            .lse = reinterpret_cast<float*>(lse_.data()),
            .scale = 0.125f,
            .window = scene_.kind == LayerKind::window ? kWindow : -1};
  }

  // Everything that a reader of the step may read.
  void check_readable() const {
    for (const BufferSpec& buffer : kBuffers) {
      if (!arena_.has(buffer.id)) continue;
      const Shape size = arena_.shape(buffer.id);
      for (int64_t row = 0; row < size.rows; ++row) {
        const int64_t count = readable(buffer, shape(), inputs_.inputs(), limits_, row);
        if (count > 0)
          __msan_check_mem_is_initialized(arena_.words(buffer.id).data() + row * size.columns,
                                          static_cast<size_t>(count) * sizeof(int32_t));
      }
    }
  }

  // Padded rows are written too.
  void check_results() const {
    const size_t elements = static_cast<size_t>(most_rows()) * limits_.heads * limits_.value_dim;
    __msan_check_mem_is_initialized(out_.data(), elements * size_of(scene_.query_type));
    __msan_check_mem_is_initialized(lse_.data(), lse_.size());
  }

  Scene scene_;
  Limits limits_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::KvStore store_;
  std::unique_ptr<kv::WindowPool> window_;
  std::unique_ptr<kv::KvStore> window_store_;
  MetadataArena arena_;
  StepInputBuffers inputs_;
  Buffer queries_, out_, lse_;
  RequestRow rows_[kCaptured];
  std::vector<PageId> draft_pages_[kCaptured];
};

// --- all steps

constexpr Mode kModes[] = {Mode::decode, Mode::extend,      Mode::draft,       Mode::draft_tree,
                           Mode::verify, Mode::verify_tree, Mode::draft_extend};

// The instruction sets of this machine that the sanitizer follows, ascending.
std::vector<Isa> followed_isas() {
  std::vector<Isa> isas = available_isas();
  isas.erase(std::remove(isas.begin(), isas.end(), Isa::amx), isas.end());
  return isas;
}

bool has_layers(Mode mode, LayerKind kind) {
  if (kind == LayerKind::full) return true;
  if (kind == LayerKind::window) return mode != Mode::draft_tree;
  return mode == Mode::decode || mode == Mode::extend;
}

std::vector<Scene> every_scene() {
  std::vector<Scene> scenes;
  for (const Mode mode : kModes)
    for (const LayerKind kind : {LayerKind::full, LayerKind::local, LayerKind::window, LayerKind::encoder}) {
      if (!has_layers(mode, kind)) continue;
      for (const Form form : {Form::in_place, Form::materialised})
        for (const int32_t page_size : {1, 16, 32, 64, 128})
          scenes.push_back({.mode = mode, .kind = kind, .form = form, .page_size = page_size});
    }
  for (const Dtype query_type : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const Dtype kv_type : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
      for (const Mode mode : {Mode::decode, Mode::extend, Mode::verify_tree})
        scenes.push_back({.mode = mode, .query_type = query_type, .kv_type = kv_type});
  for (const Mode mode : kModes) scenes.push_back({.mode = mode, .kv_type = Dtype::bf16, .latent = true});
  for (const Mode mode : kModes)
    for (const Form form : {Form::in_place, Form::materialised})
      scenes.push_back({.mode = mode, .form = form, .device = Device::cuda});
  return scenes;
}

int run_all_steps(Exec& exec) {
  int steps = 0;
  for (const Scene& scene : every_scene()) {
    Stage stage(scene);
    for (const int32_t live : {0, kCaptured - 1, kCaptured}) {
      stage.run(live, std::nullopt, exec);
      ++steps;
    }
  }
  return steps;
}

// --- the controls

Scene scene_using(const BufferSpec& buffer) {
  Scene scene;
  const bool is_for_outside = !Stage::is_read_by_kernels(buffer.id);
  if (buffer.role == Role::table || is_for_outside) scene.form = Form::materialised;
  if (buffer.on == On::cuda) scene.device = Device::cuda;
  switch (buffer.set) {
    case Set::decode:
      if (buffer.id == Buf::decode_page_table_draft_decode) scene.mode = Mode::draft;
      break;
    case Set::local:
      scene.kind = LayerKind::local;
      break;
    case Set::draft_prefix:
    case Set::draft_branch:
      scene.mode = Mode::draft_tree;
      break;
    case Set::verify:
      scene.mode = Mode::verify;
      break;
    case Set::verify_tree_prefix:
    case Set::verify_tree_branch:
      scene.mode = Mode::verify_tree;
      break;
    case Set::encoder:
      scene.kind = LayerKind::encoder;
      break;
    case Set::extend:
      scene.mode = Mode::extend;
      break;
    case Set::draft_extend:
      scene.mode = Mode::draft_extend;
      break;
    case Set::window:
      scene.mode = Mode::verify_tree;
      scene.kind = LayerKind::window;
      break;
    case Set::work:  // the longest request is split
    case Set::split:
      break;
  }
  return scene;
}

// Does not return when the sanitizer notices.
int run_without(const std::string& name) {
  for (const BufferSpec& buffer : kBuffers) {
    if (to_string(buffer.id) != name) continue;
    Exec exec({.threads = 1, .isa = followed_isas().back()});
    Stage stage(scene_using(buffer));
    stage.run(kCaptured - 1, std::nullopt, exec);  // in which nothing may be noticed
    std::printf("whole\n");
    std::fflush(stdout);
    stage.run(kCaptured - 1, buffer.id, exec);
    return 0;
  }
  std::printf("no buffer is called %s\n", name.c_str());
  return 2;
}

// Runs this program again; true if it noticed the missing buffer, and only that.
bool control_is_caught(const std::string& name) {
  int output[2];
  if (pipe(output) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], STDOUT_FILENO);
    if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
    setenv("MSAN_OPTIONS", "symbolize=0:exitcode=77", 1);
    execl("/proc/self/exe", "msan_driver", "--without", name.c_str(), nullptr);
    _exit(1);
  }
  close(output[1]);
  char text[64] = {};
  const ssize_t length = read(output[0], text, sizeof(text) - 1);
  close(output[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const bool was_whole = length > 0 && std::strcmp(text, "whole\n") == 0;
  return was_whole && WIFEXITED(status) && WEXITSTATUS(status) == kReported;
}

int run_all() {
  int steps = 0, controls = 0, missed = 0;
  for (const Isa isa : followed_isas()) {
    Exec exec({.threads = 2, .isa = isa});
    const int taken = run_all_steps(exec);
    std::printf("%s: %d steps\n", to_string(isa), taken);
    std::fflush(stdout);
    steps += taken;
  }
  for (const BufferSpec& buffer : kBuffers) {
    if (buffer.on == On::cuda && buffer.role == Role::kernel) continue;  // written by no one here
    const std::string name = to_string(buffer.id);
    ++controls;
    if (control_is_caught(name)) continue;
    std::printf("not noticed when it is not written: %s\n", name.c_str());
    ++missed;
  }
  std::printf("MemorySanitizer: %d steps without a report, %d of %d controls noticed\n", steps, controls - missed,
              controls);
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace quire::attn

int main(int count, char** arguments) {
  if (count == 3 && std::strcmp(arguments[1], "--without") == 0) return quire::attn::run_without(arguments[2]);
  return quire::attn::run_all();
}
