// A step on the GPU costs the host one launch, in every mode: the calls of CUDA's runtime are counted.
// The arena lies in the device's own memory and is never filled, so that under compute-sanitizer's initcheck these
// steps show every element that is read and was not written.
#include "attn/step_upload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <vector>

#include "attn/attention.h"
#include "attn/testing/case.h"
#include "attn/testing/expect_near.h"
#include "attn/testing/report_kernels.h"
#include "attn/write_metadata.h"
#include "base/cuda.h"
#include "cuda_call_counter.h"
#include "gpu_problems.h"

namespace quire::attn::testing {
namespace {

using quire::testing::cuda_calls;
using quire::testing::CudaCalls;
using quire::testing::forget_cuda_calls;

constexpr int32_t kCopies = 3;

struct Uploaded {
  const char* name;
  Case c;
};
void PrintTo(const Uploaded& uploaded, std::ostream* out) { *out << uploaded.name; }

Case base_case(Mode mode) { return {.mode = mode, .lengths = {700, 40, 17}, .captured = 4, .place = Place::pinned}; }

std::vector<Uploaded> every_mode() {
  std::vector<Uploaded> all;
  const auto add = [&](const char* name, Mode mode) -> Case& {
    all.push_back({name, base_case(mode)});
    return all.back().c;
  };
  add("decode", Mode::decode);
  Case& narrow = add("decode_bf16", Mode::decode);
  narrow.query_type = narrow.kv_type = Dtype::bf16;
  Case& latent = add("latent_bf16", Mode::decode);
  latent.query_type = latent.kv_type = Dtype::bf16;
  latent.kv_heads = 1;
  latent.key_dim = 576;
  latent.value_dim = 512;
  latent.latent = true;
  Case& prefill = add("extend_bf16", Mode::extend);
  prefill.query_type = prefill.kv_type = Dtype::bf16;
  prefill.extend = {30, 40, 1};
  add("materialised", Mode::decode).form = Form::materialised;
  add("local", Mode::decode).kind = LayerKind::local;
  all.back().c.chunk = 64;
  add("encoder", Mode::decode).kind = LayerKind::encoder;
  all.back().c.encoder = {30, 0, 70};
  Case& window = add("window", Mode::decode);
  window.kind = LayerKind::window;
  window.window_pool = true;
  window.window = 20;
  add("extend", Mode::extend).extend = {30, 40, 1};
  add("draft_extend", Mode::draft_extend).extend = {3, 3, 3};
  add("draft", Mode::draft).draft_steps = 4;
  Case& draft_tree = add("draft_tree", Mode::draft_tree);
  draft_tree.topk = 3;
  draft_tree.draft_steps = 4;
  add("verify", Mode::verify).draft_tokens = 5;
  add("verify_tree", Mode::verify_tree).draft_tokens = 7;
  return all;
}

class OnGpu {
 public:
  Exec& exec() { return exec_; }

 private:
  quire::cuda::Stream stream_;
  Exec exec_{ExecOptions{.threads = 1, .stream = &stream_}};
};

const char* const kNoGpu = "this machine has no GPU, or quire was built without CUDA";

class EveryMode : public ::testing::TestWithParam<Uploaded> {};

TEST_P(EveryMode, IsOneGraph) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << kNoGpu;
  OnGpu gpu;
  Exec& exec = gpu.exec();
  const Case& c = GetParam().c;
  World world(c.world());
  world.lay_out(c.step(), exec);
  world.poison(Poison::guard);
  const MetadataArena arena(world.arena().limits(), Place::device);
  StepUpload upload(arena.limits(), kCopies, exec);
  const bool is_narrow = c.kv_type != Dtype::f32;
  const Launches launches;
  Graph graph;
  exec.begin_capture(graph);
  write_metadata(world.shape(), upload.inputs(), arena, exec);
  attend(world.args_with(arena), exec);
  exec.end_capture();
  launches.expect_only(is_narrow ? expected_kernel(c.world().sizes, c.step()) : GpuKernel::general, 1);
  const Attention expected = world.expected();
  const float tolerance = is_narrow ? kGpuTolerance : 2e-5f;
  for (int32_t step = 0; step < 2 * kCopies; ++step) {
    forget_cuda_calls();
    std::memcpy(upload.next().memory().data(), world.input_memory().data(), world.input_memory().size());
    upload.send();
    graph.replay(exec);
    const CudaCalls calls = cuda_calls();
    EXPECT_EQ(calls, (CudaCalls{{"cudaGraphLaunch", 1}})) << "step " << step;
    exec.wait();
    expect_near(world.result().out, expected.out, tolerance, "out");
    expect_near(world.result().lse, expected.lse, tolerance, "lse");
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, EveryMode, ::testing::ValuesIn(every_mode()),
                         [](const auto& test) { return test.param.name; });

// No inputs are overwritten before they have arrived, however far the host runs ahead.
TEST(StepUpload, TheHostMayRunAhead) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << kNoGpu;
  constexpr int32_t kSteps = 300;
  OnGpu gpu;
  Exec& exec = gpu.exec();
  const Case c = base_case(Mode::decode);
  World world(c.world());
  world.lay_out(c.step(), exec);
  const MetadataArena arena(world.arena().limits(), Place::device);
  const int32_t batch = world.shape().captured;
  const size_t bytes = batch * sizeof(int32_t);
  const quire::Buffer seen(kSteps * bytes, Place::pinned);
  StepUpload upload(arena.limits(), kCopies, exec);
  Graph graph;
  exec.begin_capture(graph);
  write_metadata(world.shape(), upload.inputs(), arena, exec);
  exec.end_capture();
  for (int32_t step = 0; step < kSteps; ++step) {
    const StepInputBuffers& inputs = upload.next();
    inputs.live() = batch;
    for (int32_t b = 0; b < batch; ++b) {
      inputs.rows()[b] = {1};
      inputs.lengths()[b] = {1 + step + b};
    }
    upload.send();
    graph.replay(exec);
    const auto* lengths = reinterpret_cast<const std::byte*>(arena.counts(Buf::decode_cache_seqlens));
    exec.stream()->copy(seen.data() + step * bytes, lengths, bytes);
  }
  exec.wait();
  const auto* lengths = reinterpret_cast<const int32_t*>(seen.data());
  for (int32_t step = 0; step < kSteps; ++step)
    for (int32_t b = 0; b < batch; ++b) ASSERT_EQ(lengths[step * batch + b], 1 + step + b) << "step " << step;
}

// --- tokens that the host does not know yet

// Steps of one shape, and what each finds in the device's memory.
class TokenSteps {
 public:
  TokenSteps(Mode mode, Exec& exec) : exec_(exec) {
    const std::vector<int32_t> newest = newest_tokens();
    exec.stream()->copy(newest_.data(), reinterpret_cast<const std::byte*>(newest.data()), newest_.size());
    const StepClock clock{};
    exec.stream()->copy(clock_.data(), reinterpret_cast<const std::byte*>(&clock), clock_.size());
    exec.wait();
    exec.begin_capture(graph_);
    write_metadata({.mode = mode, .captured = kRows, .query_rows = kRows, .table = table_.view()}, upload_.inputs(),
                   arena_, exec);
    exec.end_capture();
  }

  // As many of the ids as there are stand for live requests of one row each, every other one for what was drawn last.
  std::vector<int32_t> fill(int32_t step, int32_t live) {
    const StepInputBuffers& inputs = upload_.next();
    inputs.live() = inputs.query_rows() = inputs.wanted_count() = inputs.logits_count() = live;
    std::vector<int32_t> expected;
    for (int32_t i = 0; i < kRows; ++i) {
      inputs.rows()[i] = {1 + i};
      inputs.lengths()[i] = {5 + step};
      inputs.extend_lengths()[i] = {1};
      inputs.positions()[i] = step + i;
      inputs.slot_mapping()[i] = {step * i};
      inputs.wanted_rows()[i] = live - 1 - i;
      const bool is_drawn = (step + i) % 2;
      // Behind the live ones: no row of any request.
      inputs.input_ids()[i] = i >= live ? -1'000'000'000 : is_drawn ? future_token({1 + i}) : 100 * step + i;
      if (i < live) expected.push_back(is_drawn ? newest_tokens()[1 + i] : 100 * step + i);
    }
    return expected;
  }
  void send() { upload_.send(); }
  void forget() { upload_.forget(); }
  void replay() {
    graph_.replay(exec_);
    exec_.wait();
  }
  template <class T>
  std::vector<T> read(const T* from, int32_t count) {
    std::vector<T> seen(static_cast<size_t>(count));
    exec_.stream()->copy(reinterpret_cast<std::byte*>(seen.data()), reinterpret_cast<const std::byte*>(from),
                         seen.size() * sizeof(T));
    exec_.wait();
    return seen;
  }
  StepInputs inputs() const { return upload_.inputs(); }
  StepClock clock() { return read(reinterpret_cast<const StepClock*>(clock_.data()), 1)[0]; }

  static constexpr int32_t kRows = 1000;  // more than a block has threads

 private:
  static std::vector<int32_t> newest_tokens() {
    std::vector<int32_t> tokens;
    for (int32_t row = 0; row <= kRows; ++row) tokens.push_back(7000 + 3 * row);
    return tokens;
  }
  static constexpr Limits kLimits{.batch = kRows,
                                  .context = 256,
                                  .page_size = PageSize(16),
                                  .query_rows = kRows,
                                  .wanted_rows = kRows,
                                  .device = Device::cuda};
  Exec& exec_;
  kv::PagePool pool_{2, PageSize(16)};
  kv::RequestTable table_{pool_, kRows + 1, 256};
  MetadataArena arena_{kLimits, Place::device};
  quire::Buffer newest_{(kRows + 1) * sizeof(int32_t), Place::device}, clock_{sizeof(StepClock), Place::device};
  StepUpload upload_{kLimits,
                     kCopies,
                     exec_,
                     {.of_row = reinterpret_cast<const int32_t*>(newest_.data()),
                      .clock = reinterpret_cast<StepClock*>(clock_.data()),
                      .rows = kRows + 1}};
  Graph graph_;
};

class UploadedTokens : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (quire::cuda::devices() == 0) GTEST_SKIP() << kNoGpu;
  }
};

TEST_P(UploadedTokens, AreLookedUpByTheirRows) {
  OnGpu gpu;
  TokenSteps steps(GetParam(), gpu.exec());
  unsigned long long begun = 0;
  for (int32_t step = 0; step < 2 * kCopies + 1; ++step) {
    const int32_t live = step % 3 == 0 ? TokenSteps::kRows : 1 + 37 * step;
    const std::vector<int32_t> expected = steps.fill(step, live);
    steps.send();
    steps.replay();
    const StepInputs in = steps.inputs();
    EXPECT_EQ(steps.read(in.input_ids, live), expected) << "step " << step;
    EXPECT_EQ(steps.read(in.number, 1)[0], static_cast<uint32_t>(step + 1));
    EXPECT_EQ(steps.read(in.logits_count, 1)[0], live);
    const std::vector<int32_t> positions = steps.read(in.positions, live), wanted = steps.read(in.wanted_rows, live);
    const std::vector<TokenSlot> slots = steps.read(in.slot_mapping, live);
    for (int32_t i = 0; i < live; ++i) {
      ASSERT_EQ(positions[i], step + i) << "step " << step;
      ASSERT_EQ(slots[i].value, step * i) << "step " << step;
      ASSERT_EQ(wanted[i], live - 1 - i) << "step " << step;
    }
    EXPECT_GT(steps.clock().begun, begun);
    begun = steps.clock().begun;
  }
}

// A launch may fail after the inputs were sent: the device has not taken its turn, or it has.
TEST_P(UploadedTokens, OfAStepThatWasLostAreNotTakenForTheNext) {
  OnGpu gpu;
  TokenSteps steps(GetParam(), gpu.exec());
  for (int32_t step = 0; step < 12; ++step) {
    const std::vector<int32_t> expected = steps.fill(step, 50);
    steps.send();
    if (step % 4 == 1) {
      steps.forget();
      continue;
    }
    steps.replay();
    if (step % 4 == 3) steps.forget();
    EXPECT_EQ(steps.read(steps.inputs().input_ids, 50), expected) << "step " << step;
    EXPECT_EQ(steps.read(steps.inputs().number, 1)[0], static_cast<uint32_t>(step + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, UploadedTokens, ::testing::Values(Mode::decode, Mode::extend),
                         [](const auto& test) { return to_string(test.param); });

// A counter that counts nothing would find nothing wrong.
TEST(CudaCallCounter, Counts) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << kNoGpu;
  OnGpu gpu;
  forget_cuda_calls();
  gpu.exec().wait();
  EXPECT_EQ(cuda_calls(), (CudaCalls{{"cudaStreamSynchronize", 1}}));
}

// --- the page table's mirror

// A request table that changes while steps are in flight, and what each step saw of its mirror.
class MirroredSteps {
 public:
  explicit MirroredSteps(Exec& exec) : exec_(exec) {
    table_.keep_journal();
    StepShape shape{.mode = Mode::decode, .captured = kBatch, .query_rows = kBatch, .table = mirror_.view()};
    exec.begin_capture(graph_);
    write_metadata(shape, upload_.inputs(), arena_, exec);
    exec.end_capture();
  }

  kv::RequestTable& table() { return table_; }
  // Whether all changes were sent; the others are left for another step.
  bool step() {
    const StepInputBuffers& inputs = upload_.next();
    inputs.live() = 0;
    const bool all = table_.take_changes({.count = &inputs.journal_count(),
                                          .runs = {inputs.journal_runs(), kBatch},
                                          .pages = {inputs.journal_pages(), kJournalPages}});
    const StepInputs sent = upload_.send();
    kv::apply_journal({.count = sent.journal_count,
                       .runs = sent.journal_runs,
                       .pages = sent.journal_pages,
                       .most_runs = kBatch,
                       .mirror = mirror_.pages(),
                       .stride = mirror_.view().stride},
                      exec_);
    graph_.replay(exec_);
    return all;
  }
  // Copies the row's front as the steps so far have left it; to be read after a wait.
  const PageId* seen(RequestRow row, int32_t pages) {
    const quire::Buffer& copy = seen_.emplace_back(pages * sizeof(PageId), Place::pinned);
    exec_.stream()->copy(copy.data(),
                         reinterpret_cast<const std::byte*>(mirror_.pages() + row.value * mirror_.view().stride),
                         copy.size());
    return reinterpret_cast<const PageId*>(copy.data());
  }

  static constexpr int32_t kBatch = 8, kWidth = 32, kJournalPages = 10;

 private:
  static constexpr Limits kLimits{.batch = kBatch,
                                  .context = kWidth * 16,
                                  .page_size = PageSize(16),
                                  .journal_pages = kJournalPages,
                                  .device = Device::cuda};
  Exec& exec_;
  kv::PagePool pool_{200, PageSize(16)};
  kv::RequestTable table_{pool_, kBatch + 1, kWidth * 16};
  kv::PageTableMirror mirror_{table_.view()};
  MetadataArena arena_{kLimits, Place::device};
  StepUpload upload_{kLimits, kCopies, exec_};
  Graph graph_;
  std::vector<quire::Buffer> seen_;
};

// One row is closed and given again, with other pages, step after step, and nobody waits for the GPU.
TEST(PageTableMirror, StepsInFlightSeeTheTableOfTheirLaunch) {
  if (quire::cuda::devices() == 0) GTEST_SKIP() << kNoGpu;
  OnGpu gpu;
  MirroredSteps steps(gpu.exec());
  struct Expected {
    const PageId* seen;
    std::vector<PageId> pages;
  };
  std::vector<Expected> expected;
  size_t sent = 0;
  const RequestRow other = steps.table().open();
  for (int32_t step = 0; step < 100; ++step) {
    const RequestRow row = steps.table().open();
    const int32_t pages = 1 + step * 7 % MirroredSteps::kWidth;
    ASSERT_TRUE(steps.table().reserve(row, {pages * 16}));
    ASSERT_TRUE(steps.table().reserve(other, {(1 + step / 4) * 16}));  // so that the row's next pages are others
    for (bool all = false; !all; ++sent) {
      forget_cuda_calls();
      all = steps.step();
      EXPECT_EQ(cuda_calls()["cudaLaunchKernel"] + cuda_calls()["__cudaLaunchKernel"], 1);
      EXPECT_EQ(cuda_calls()["cudaGraphLaunch"], 1);
    }
    const auto held = steps.table().pages(row);
    expected.push_back({steps.seen(row, pages), {held.begin(), held.end()}});
    steps.table().close(row);
  }
  gpu.exec().wait();
  EXPECT_GT(sent, expected.size()) << "the room was never too small";
  for (size_t step = 0; step < expected.size(); ++step)
    for (size_t i = 0; i < expected[step].pages.size(); ++i)
      ASSERT_EQ(expected[step].seen[i], expected[step].pages[i]) << "step " << step << ", page " << i;
}

}  // namespace
}  // namespace quire::attn::testing
