// A check that cannot fail is not one. For each declared buffer: undo its write, before anybody reads, and see the
// proof notice. The poison shows in the fast kernel's output, the shadow throws by name; which of them must notice what
// is written down below.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "attn/attend_cpu.h"
#include "attn/testing/case.h"
#include "attn/testing/report_kernels.h"
#include "attn/testing/shadow.h"
#include "base/buffer.h"
#include "base/cuda.h"
#include "gpu_problems.h"
#include "watchdog.h"

namespace quire::attn::testing {
namespace {

// Only then does a block of prefill take a tile by the counter: each request has one or more for each kv head.
Case more_tiles_than_blocks() {
  constexpr int32_t kRequests = 200;
  return {.mode = Mode::extend,
          .lengths = std::vector<int32_t>(kRequests, 3),
          .extend = std::vector<int32_t>(kRequests, 2)};
}

// The step that reads the most of a set. It has more live sequences than the poison says, so that a count that was not
// written loses some.
Case step_using(const BufferSpec& buffer) {
  Case c{.heads = 2, .kv_heads = 1, .lengths = {17, 40, 33, 9, 21, 50, 12}, .captured = 8};
  switch (buffer.set) {
    case Set::decode:
      if (buffer.id != Buf::decode_page_table_draft_decode) return c;
      c.mode = Mode::draft;
      c.draft_steps = 4;
      c.draft_step = 2;
      return c;
    case Set::local:
      c.mode = Mode::extend;
      c.kind = LayerKind::local;
      c.extend = {17, 3, 20, 1, 4, 18, 2};
      c.chunk = 16;
      return c;
    case Set::draft_prefix:
    case Set::draft_branch:
      c.mode = Mode::draft_tree;
      c.topk = 3;
      c.draft_steps = 4;
      c.draft_step = 2;
      return c;
    case Set::verify:
      c.mode = Mode::verify;
      c.draft_tokens = 6;
      return c;
    case Set::verify_tree_prefix:
    case Set::verify_tree_branch:
      c.mode = Mode::verify_tree;
      c.draft_tokens = 6;
      return c;
    case Set::window:
      c.mode = Mode::verify_tree;
      c.draft_tokens = 6;
      c.kind = LayerKind::window;
      c.window = 10;
      c.window_pool = true;
      return c;
    case Set::encoder:
      c.kind = LayerKind::encoder;
      c.encoder = {20, 1, 70, 3, 33, 0, 16};
      return c;
    case Set::extend:
    case Set::draft_extend:
      c.mode = buffer.set == Set::extend ? Mode::extend : Mode::draft_extend;
      c.extend = {17, 3, 20, 1, 4, 18, 2};
      return c;
    case Set::split:
      if (buffer.id == Buf::split_next_tile) return more_tiles_than_blocks();
      c.lengths = {2600};  // long enough for every kernel
      c.captured = 2;
      return c;
    case Set::work:  // one sequence long enough to be split
      c.lengths = {1300};
      c.captured = 2;
      c.threads = 2;
      return c;
  }
  return c;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Buffers that the fast kernel either does not read (key prefix sums and the trivial query counts of branches are for
// kernels outside quire) or reads safely whatever they hold (a uniform cu_splits means that nothing was split, and then
// one tile walks all its keys); and the division of work, which sends the kernel outside all memory when it is not
// written. Only the shadow guards these.
bool is_for_the_shadow_alone(const BufferSpec& buffer) {
  const std::string name = buffer.name;
  const bool is_branch = buffer.set == Set::draft_branch || buffer.set == Set::verify_tree_branch;
  return ends_with(name, "cu_seqlens_k") || (is_branch && name == "cu_seqlens_q") || name == "cu_items" ||
         name == "cu_splits";
}

// Of what blocks leave for each other, all that split keys over several of them read the arrivals, and prefill its
// tiles' counter. Clusters know the row of a sequence's query, where it has one.
bool is_read_by(GpuKernel kernel, const BufferSpec& buffer) {
  const bool is_cluster = kernel == GpuKernel::decode_cluster || kernel == GpuKernel::decode_parts;
  if (ends_with(buffer.name, "cu_seqlens_q")) return kernel != GpuKernel::decode_cluster || buffer.set == Set::verify;
  if (buffer.id == Buf::split_arrivals) return kernel != GpuKernel::general && !is_cluster;
  return buffer.id != Buf::split_next_tile || kernel == GpuKernel::prefill;
}

struct Mutated {
  const BufferSpec& buffer;
};
void PrintTo(const Mutated& mutated, std::ostream* out) { *out << to_string(mutated.buffer.id); }

class Buffer : public ::testing::TestWithParam<Mutated> {
 protected:
  const BufferSpec& buffer() const { return GetParam().buffer; }

  // As the writer writes; mutated: as one that does not know the buffer, which afterwards holds what it held before.
  template <class Writer>
  void write(const MetadataArena& arena, bool is_mutated, const Writer& writer) const {
    if (!is_mutated) return writer();
    const std::span<int32_t> words = arena.words(buffer().id);
    const std::vector<int32_t> before(words.begin(), words.end());
    writer();
    std::ranges::copy(before, words.begin());
  }

  // The step's bits, the buffer written or not.
  std::string poisoned_bits(bool is_mutated) {
    Case c = step_using(buffer());
    c.form = buffer().role == Role::table ? Form::materialised : Form::in_place;
    World world(c.world());
    world.lay_out(c.step(), exec_);
    world.poison(Poison::guard);
    const bool is_partial =
        buffer().role == Role::kernel;  // written by the first half of the kernel, read by the second
    write(world.arena(), is_mutated && !is_partial,
          [&] { write_metadata(world.shape(), world.inputs(), world.arena(), exec_); });
    write(world.arena(), is_mutated && is_partial, [&] { cpu::attend_items(world.args(), exec_); });
    cpu::combine_splits(world.args(), exec_);
    const Result result = world.result();
    std::string bits;
    for (int64_t row = 0; row < result.rows; ++row) bits += row_bits(result, row);
    return bits;
  }

  // The step on a GPU, of a problem that its own kernels take.
  Case step_on_gpu(const GpuProblem& problem) const {
    Case c = problem.applied_to(step_using(buffer()));
    c.form = buffer().role == Role::table ? Form::materialised : Form::in_place;
    return c;
  }

  // Its bits there, in the world that it was laid out in. Of counts of arrivals none may pass by chance.
  std::vector<std::byte> bytes_on_gpu(const Case& c, World& world, Exec& exec, bool is_mutated) const {
    world.poison(Poison::guard);
    if (buffer().id == Buf::split_arrivals) std::ranges::fill(world.arena().words(buffer().id), 0x7f7f7f7f);
    const Launches launches;
    const quire::testing::Watchdog watchdog(kGpuTimeLimit, to_string(c));
    write(world.arena(), is_mutated, [&] {
      write_metadata(world.shape(), world.inputs(), world.arena(), exec);
      if (is_mutated) exec.wait();
    });
    attend(world.args(), exec);
    exec.wait();
    launches.expect_only(expected_kernel(c.world().sizes, c.step()), 1);
    return world.result().out_bytes;
  }

  // What the shadow says of the step; empty: nothing.
  std::string shadow_says(bool is_mutated) {
    Case c = step_using(buffer());
    c.form = Form::materialised;
    World world(c.world());
    world.lay_out(c.step(), exec_);
    world.poison(Poison::out_of_range);
    const Shadow shadow(world.arena(), [&] {
      write(world.arena(), is_mutated, [&] { write_metadata(world.shape(), world.inputs(), world.arena(), exec_); });
    });
    try {
      attend_shadowed(world.args(), world.shape(), c.kind, shadow);
    } catch (const UnwrittenRead& error) {
      return error.what();
    }
    return "";
  }

  Exec exec_{{.threads = 1}};
};

TEST_P(Buffer, IsMissedWhenNotWritten) {
  if (buffer().on == On::cuda) GTEST_SKIP() << "of a GPU alone; the shadow's tests have it";
  if (buffer().role != Role::kernel) {
    EXPECT_EQ(shadow_says(false), "");
    const std::string said = shadow_says(true);
    EXPECT_EQ(said.find(cat(to_string(buffer().id), "[")), 0u) << "the shadow says: " << said;
  }
  if (is_for_the_shadow_alone(buffer())) return;
  const std::string whole = poisoned_bits(false);
  EXPECT_TRUE(poisoned_bits(false) == whole) << "the poison shows although everything was written";
  EXPECT_FALSE(poisoned_bits(true) == whole) << "the poison does not show";
}

TEST_P(Buffer, IsMissedOnAGpuWhenNotWritten) {
  if (!has_gpu()) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  // A GPU's partial results are written and read in one launch, so their writes cannot be undone in between; the poison
  // stands for them.
  if (buffer().role == Role::kernel) GTEST_SKIP() << "written by the kernel itself";
  if (buffer().on == On::cpu || is_for_the_shadow_alone(buffer())) GTEST_SKIP() << "no kernel of the GPU reads it";
  quire::cuda::Stream stream;
  Exec exec(ExecOptions{.threads = 1, .stream = &stream});
  for (const GpuProblem& problem : kGpuProblems) {
    SCOPED_TRACE(problem.name);
    const Case c = step_on_gpu(problem);
    if (!is_read_by(expected_kernel(c.world().sizes, c.step()), buffer())) continue;
    World world(c.world());
    world.lay_out(c.step(), exec);
    const std::vector<std::byte> whole = bytes_on_gpu(c, world, exec, false);
    EXPECT_TRUE(bytes_on_gpu(c, world, exec, false) == whole) << "the poison shows although everything was written";
    EXPECT_FALSE(bytes_on_gpu(c, world, exec, true) == whole) << "the poison does not show";
  }
}

std::string test_name(const ::testing::TestParamInfo<Mutated>& test) {
  std::string name = to_string(test.param.buffer.id);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::vector<Mutated> every_buffer() {
  std::vector<Mutated> buffers;
  buffers.reserve(kBuffers.size());
  for (const BufferSpec& buffer : kBuffers) buffers.push_back({buffer});
  return buffers;
}

INSTANTIATE_TEST_SUITE_P(mutation, Buffer, ::testing::ValuesIn(every_buffer()), test_name);

}  // namespace

}  // namespace quire::attn::testing
