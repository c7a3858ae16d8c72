// The preparation of a step on a GPU: the writer's time as a node of a captured graph, and the host's time for all it
// has to do, one upload of the inputs and one launch. Then the making of all buffers.
#include <cstring>
#include <optional>

#include "arena_line.h"
#include "attn/step_upload.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "bench.h"
#include "gpu_table.h"
#include "timing.h"
#include "tree.h"

namespace quire::bench {
namespace {

using attn::Form;
using attn::Mode;

constexpr int kGpuMetadataRounds = 51, kQuickGpuMetadataRounds = 5;
constexpr int32_t kWritersInGraph = 32;  // so that a graph's start is spread over them
constexpr int32_t kStepsInARow = 3;      // launched before the host waits: so many copies of the inputs there are
constexpr int32_t kKeys = 4096, kExtendTokens = 16, kEncoderTokens = 512;
constexpr int32_t kMostQueries = 16;  // of a request, in any mode

constexpr attn::Limits kLimits{.batch = 32,
                               .context = 16384,
                               .page_size = PageSize(1),
                               .topk = 4,
                               .draft_steps = 4,
                               .draft_tokens = 8,
                               .chunk = 2048,
                               .encoder_context = kEncoderTokens,
                               .heads = 32,
                               .kv_heads = 8,
                               .device = Device::cuda,
                               .form = Form::materialised};

struct GpuStep {
  const char* name;
  Mode mode;
  bool local = false, encoder = false;
  Form form = Form::in_place;
};
constexpr GpuStep kGpuSteps[] = {{.name = "decode", .mode = Mode::decode},
                                 {.name = "local", .mode = Mode::decode, .local = true},
                                 {.name = "encoder", .mode = Mode::decode, .encoder = true},
                                 {.name = "extend", .mode = Mode::extend},
                                 {.name = "draft", .mode = Mode::draft},
                                 {.name = "draft_tree", .mode = Mode::draft_tree},
                                 {.name = "verify", .mode = Mode::verify},
                                 {.name = "verify_tree", .mode = Mode::verify_tree},
                                 {.name = "decode", .mode = Mode::decode, .form = Form::materialised},
                                 {.name = "verify_tree", .mode = Mode::verify_tree, .form = Form::materialised}};

class GpuMetadataWorld {
 public:
  explicit GpuMetadataWorld(Exec& exec)
      : exec_(exec),
        table_(std::vector<int32_t>(kLimits.batch, kLimits.text_pages() + kLimits.encoder_pages()), kLimits.page_size,
               *exec.stream()),
        arena_(kLimits, Place::device),
        host_(kLimits),
        upload_(kLimits, kStepsInARow, exec) {
    fill_inputs();
  }

  attn::StepShape shape(const GpuStep& step) const {
    return {.mode = step.mode,
            .form = step.form,
            .captured = kLimits.batch,
            .query_rows = kLimits.batch * kMostQueries,
            .local = step.local,
            .encoder = step.encoder,
            .table = table_.view()};
  }
  void check(const attn::StepShape& shape) const { attn::check_step(shape, host_.inputs(), kLimits); }
  void write(const attn::StepShape& shape) { attn::write_metadata(shape, upload_.inputs(), arena_, exec_); }
  // Of inputs that have been fetched.
  void write_again(const attn::StepShape& shape) {
    attn::StepInputs inputs = upload_.inputs();
    inputs.source = {};
    attn::write_metadata(shape, inputs, arena_, exec_);
  }
  void upload() {
    std::memcpy(upload_.next().memory().data(), host_.memory().data(), host_.memory().size());
    upload_.send();
  }

 private:
  void fill_inputs() {
    host_.live() = kLimits.batch;
    for (int32_t i = 0; i < kLimits.batch; ++i) {
      host_.rows()[i] = {i + 1};
      host_.lengths()[i] = {kKeys - i};
      host_.extend_lengths()[i] = {kExtendTokens};
      host_.encoder_lengths()[i] = {kEncoderTokens - i};
      fill_tree_mask(host_.tree_mask() + i * kLimits.draft_tokens * kLimits.draft_tokens, kLimits.draft_tokens);
    }
    for (int32_t i = 0; i < kLimits.batch * kLimits.topk * kLimits.draft_steps; ++i) host_.draft_slots()[i] = {i + 1};
  }

  Exec& exec_;
  GpuTable table_;
  attn::MetadataArena arena_;
  attn::StepInputBuffers host_;
  attn::StepUpload upload_;
};

// Medians in microseconds.
struct Times {
  double writer, host;
};

Times times_of(const attn::StepShape& shape, GpuMetadataWorld& world, int rounds, Exec& exec) {
  Graph many, one;
  exec.begin_capture(many);
  for (int32_t i = 0; i < kWritersInGraph; ++i) world.write_again(shape);
  exec.end_capture();
  exec.begin_capture(one);
  world.write(shape);
  exec.end_capture();
  world.upload();
  one.replay(exec);  // also fetches what the others read
  many.replay(exec);
  exec.wait();
  std::vector<double> writer, host;
  for (int round = 0; round < rounds; ++round) {
    writer.push_back(exec.stream()->seconds_of([&] { many.replay(exec); }) / kWritersInGraph);
    host.push_back(seconds_of([&] {
                     for (int32_t step = 0; step < kStepsInARow; ++step) {
                       world.upload();
                       one.replay(exec);
                     }
                   }) /
                   kStepsInARow);
    exec.wait();
  }
  return {median(writer) * 1e6, median(host) * 1e6};
}

constexpr attn::Limits gpu_arena_limits() {
  attn::Limits limits = kArenaLimits;
  limits.device = Device::cuda;
  return limits;
}

// Arenas die after the clock was read.
template <class Where>
double us_to_create(Where&& where, int rounds) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    std::optional<attn::MetadataArena> arena;
    seconds.push_back(seconds_of([&] { arena.emplace(gpu_arena_limits(), where); }));
  }
  return median(seconds) * 1e6;
}

Result gpu_result(const std::string& name, double us) {
  return {.name = name, .median_us = us, .limit_us = {}, .gbps = {}, .tflops = {}, .device = "cuda"};
}

void add_arena_results(const BenchOptions& options, int rounds, std::vector<Result>& results) {
  const std::string cold = arena_name() + "/cold", pooled = arena_name() + "/pool";
  if (cold.find(options.filter) != std::string::npos)
    results.push_back(gpu_result(cold, us_to_create(Place::device, rounds)));
  if (pooled.find(options.filter) == std::string::npos) return;
  MemoryPool pool(attn::MetadataArena::bytes_for(gpu_arena_limits()) + 256, Place::device);
  results.push_back(gpu_result(pooled, us_to_create(pool, rounds)));
}

}  // namespace

Report bench_gpu_metadata(const BenchOptions& options) {
  cuda::Stream stream;
  Exec exec(ExecOptions{.threads = 1, .stream = &stream});
  GpuMetadataWorld world(exec);
  Report report{.machine = LimitSampler(exec, {}).limits(), .command = "", .results = {}};
  report.gpu = {.name = cuda::device_name()};
  const int rounds = options.repeat ? options.repeat : options.quick ? kQuickGpuMetadataRounds : kGpuMetadataRounds;
  for (const GpuStep& step : kGpuSteps) {
    const std::string name = cat("metadata/", step.name, "/batch=", kLimits.batch,
                                 step.form == Form::materialised ? "/form=materialised" : "");
    if (name.find(options.filter) == std::string::npos) continue;
    const attn::StepShape shape = world.shape(step);
    world.check(shape);
    const Times times = times_of(shape, world, rounds, exec);
    report.results.push_back(gpu_result(name + "/writer", times.writer));
    report.results.push_back(gpu_result(name + "/host", times.host));
  }
  add_arena_results(options, rounds, report.results);
  check(!report.results.empty(), "no line of the benchmark has \"", options.filter, "\" in its name");
  return report;
}

}  // namespace quire::bench
