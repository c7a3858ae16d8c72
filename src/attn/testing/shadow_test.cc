// The shadow itself, and every mode through it: no element that a reader may read is left unwritten.
#include "attn/testing/shadow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "attn/sequence.h"
#include "attn/testing/case.h"
#include "base/cuda.h"

namespace quire::attn::testing {
namespace {

struct Writer {
  const char* name;
  WriteMetadataFn* write;
  Device device;  // that the metadata is for
  bool on_gpu = false;
};
void PrintTo(const Writer& writer, std::ostream* out) { *out << writer.name; }

// Every kind of layer that a mode has, with one padded sequence.
std::vector<Case> every_step() {
  const Case common{.form = Form::materialised, .heads = 2, .kv_heads = 1, .lengths = {17, 40, 33}, .captured = 4};
  std::vector<Case> cases;
  const auto add = [&](Mode mode, LayerKind kind = LayerKind::full) -> Case& {
    cases.push_back(common);
    cases.back().mode = mode;
    cases.back().kind = kind;
    if (mode == Mode::extend || mode == Mode::draft_extend) cases.back().extend = {17, 3, 20};
    if (mode == Mode::draft || mode == Mode::draft_tree) cases.back().draft_steps = 4;
    if (mode == Mode::draft_tree) cases.back().topk = 3;
    if (mode == Mode::verify || mode == Mode::verify_tree) cases.back().draft_tokens = 6;
    if (kind == LayerKind::local) cases.back().chunk = 16;
    if (kind == LayerKind::encoder) cases.back().encoder = {20, 1, 0};
    if (kind == LayerKind::window) {
      cases.back().window = 10;
      cases.back().window_pool = true;
    }
    return cases.back();
  };
  for (const Mode mode : {Mode::decode, Mode::extend, Mode::draft, Mode::draft_tree, Mode::verify, Mode::verify_tree,
                          Mode::draft_extend}) {
    add(mode);
    if (mode != Mode::draft_tree) add(mode, LayerKind::window);
    if (mode != Mode::decode && mode != Mode::extend) continue;
    add(mode, LayerKind::local);
    add(mode, LayerKind::encoder);
  }
  for (int32_t step = 1; step < 3; ++step) {
    add(Mode::draft).draft_step = step;
    add(Mode::draft_tree).draft_step = step;
  }
  return cases;
}

class Shadowed : public ::testing::TestWithParam<Writer> {
 protected:
  void SetUp() override {
    if (!GetParam().on_gpu) return;
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_.emplace();
    on_gpu_.emplace(ExecOptions{.threads = 1, .stream = &*stream_});
  }

  WorldSpec world_of(const Case& c) const {
    WorldSpec spec = c.world();
    spec.limits.device = GetParam().device;
    if (GetParam().on_gpu) spec.place = Place::pinned;
    return spec;
  }
  Exec& exec() { return on_gpu_ ? *on_gpu_ : exec_; }
  void write(World& world) {
    GetParam().write(world.shape(), world.inputs(), world.arena(), exec());
    exec().wait();
  }

 private:
  Exec exec_{{.threads = 1}};
  std::optional<quire::cuda::Stream> stream_;
  std::optional<Exec> on_gpu_;
};

TEST_P(Shadowed, EveryStepReadsOnlyWhatWasWritten) {
  for (Case c : every_step())
    for (const int32_t page_size : {1, 16}) {
      c.page_size = page_size;
      SCOPED_TRACE(to_string(c));
      World world(world_of(c));
      world.lay_out(c.step(), exec());
      world.poison(Poison::out_of_range);
      const Shadow shadow(world.arena(), [&] { write(world); });
      attend_shadowed(world.args(), world.shape(), c.kind, shadow);
      const Result result = world.result();
      const Attention expected = world.expected();
      for (size_t i = 0; i < expected.out.size(); ++i) ASSERT_NEAR(result.out[i], expected.out[i], 1e-5f) << i;
      for (size_t i = 0; i < expected.lse.size(); ++i)
        ASSERT_TRUE(result.lse[i] == expected.lse[i] || std::abs(result.lse[i] - expected.lse[i]) < 1e-4f) << i;
    }
}

TEST_P(Shadowed, LongSequencesAreDividedAsTheRuleSays) {
  for (Case c : every_step()) {
    c.lengths = {40, 1300, 700};
    c.threads = 3;
    if (c.chunk) c.chunk = 832;
    if (!c.encoder.empty()) c.encoder = {20, 1500, 0};
    SCOPED_TRACE(to_string(c));
    World world(world_of(c));
    world.lay_out(c.step(), exec());
    const Shadow shadow(world.arena(), [&] { write(world); });
    EXPECT_NO_THROW(attend_shadowed(world.args(), world.shape(), c.kind, shadow));
  }
}

// The writer's output, then one element taken back: the shadow names it.
TEST_P(Shadowed, AnUnwrittenElementIsNamed) {
  const Case c{.form = Form::materialised, .lengths = {17, 40}, .captured = 3};
  World world(world_of(c));
  world.lay_out(c.step(), exec());
  int pass = 0;
  const Shadow shadow(world.arena(), [&] {
    const int32_t before = world.arena().counts(Buf::decode_cu_seqlens_k)[0];
    write(world);
    world.arena().counts(Buf::decode_cu_seqlens_k)[0] = before;
    ++pass;
  });
  EXPECT_EQ(pass, 2);
  EXPECT_FALSE(shadow.written(Buf::decode_cu_seqlens_k, 0, 0));
  EXPECT_TRUE(shadow.written(Buf::decode_cu_seqlens_k, 0, 1));
  try {
    attend_shadowed(world.args(), world.shape(), LayerKind::full, shadow);
    FAIL() << "an unwritten element was read";
  } catch (const UnwrittenRead& error) {
    EXPECT_NE(std::string(error.what()).find("decode.cu_seqlens_k[0][0]"), std::string::npos) << error.what();
  }
}

// For each declared buffer some step fails by its name when its write is taken back: the shadow reads them all.
TEST_P(Shadowed, EveryDeclaredBufferIsRead) {
  std::vector<bool> caught(kBufferCount);
  for (const Case& c : every_step()) {
    World world(world_of(c));
    world.lay_out(c.step(), exec());
    for (const BufferSpec& buffer : kBuffers) {
      if (caught[static_cast<size_t>(buffer.id)] || !is_used(buffer, world.shape(), GetParam().device)) continue;
      const Shadow shadow(world.arena(), [&] {
        const std::span<int32_t> words = world.arena().words(buffer.id);
        const std::vector<int32_t> before(words.begin(), words.end());
        write(world);
        std::copy(before.begin(), before.end(), words.begin());
      });
      try {
        attend_shadowed(world.args(), world.shape(), c.kind, shadow);
      } catch (const UnwrittenRead& error) {
        EXPECT_EQ(std::string(error.what()).find(cat(to_string(buffer.id), "[")), 0u) << error.what();
        caught[static_cast<size_t>(buffer.id)] = true;
      }
    }
  }
  for (const BufferSpec& buffer : kBuffers)
    EXPECT_EQ(caught[static_cast<size_t>(buffer.id)],
              buffer.role != Role::kernel && is_read_on(buffer, GetParam().device))
        << to_string(buffer.id);
}

struct Lie {
  Buf id;
  int64_t row;
  int64_t column;
  int32_t by;
};

// An element that was written, but wrong.
TEST_P(Shadowed, DisagreementsAreRefused) {
  const Case c{
      .mode = Mode::verify_tree, .form = Form::materialised, .lengths = {17, 40}, .captured = 3, .draft_tokens = 4};
  for (const Lie& lie : {Lie{Buf::verify_tree_prefix_cu_seqlens_k, 0, 1, 1},
                         {Buf::verify_tree_prefix_cu_seqlens_k, 0, 0, 1},
                         {Buf::verify_tree_prefix_cu_seqlens_q, 0, 0, 1},
                         {Buf::verify_tree_prefix_cu_seqlens_q, 0, 3, 1000},
                         {Buf::verify_tree_prefix_cache_seqlens, 0, 1, -1},
                         {Buf::verify_tree_prefix_live_count, 0, 0, 9},
                         {Buf::verify_tree_prefix_request_row, 0, 1, 1},
                         {Buf::verify_tree_prefix_first_page, 0, 0, 1},
                         {Buf::verify_tree_prefix_page_table, 1, 2, 1 << 20},
                         {Buf::verify_tree_prefix_page_table, 2, 0, 1},
                         {Buf::verify_tree_prefix_cu_items, 0, 1, 1},
                         {Buf::verify_tree_prefix_cu_splits, 0, 2, 1},
                         {Buf::verify_tree_branch_cache_seqlens, 0, 0, -1},
                         {Buf::verify_tree_branch_cu_seqlens_q, 0, 1, 1},
                         {Buf::verify_tree_branch_cu_seqlens_k, 0, 5, 1},
                         {Buf::verify_tree_branch_page_table, 0, 0, 1 << 20},
                         {Buf::split_arrivals, 0, 3, 1},
                         {Buf::split_next_tile, 0, 0, 1}}) {
    if (!is_read_on(spec(lie.id), GetParam().device)) continue;
    SCOPED_TRACE(cat(to_string(lie.id), "[", lie.row, "][", lie.column, "] is wrong by ", lie.by));
    World world(world_of(c));
    world.lay_out(c.step(), exec());
    const Shadow shadow(world.arena(), [&] {
      write(world);
      world.arena().words(lie.id)[lie.row * world.arena().shape(lie.id).columns + lie.column] += lie.by;
    });
    EXPECT_THROW(attend_shadowed(world.args(), world.shape(), LayerKind::full, shadow), CheckError);
  }
}

TEST(Shadow, RefusesElementsOutsideABuffer) {
  const MetadataArena arena({.batch = 2, .context = 64, .page_size = PageSize(16)});
  const Shadow shadow(arena, [] {});
  EXPECT_THROW(shadow.read(Buf::decode_cache_seqlens, 0, 0), UnwrittenRead);
  EXPECT_THROW(shadow.read(Buf::decode_cache_seqlens, 0, 2), CheckError);
  EXPECT_THROW(shadow.read(Buf::decode_cache_seqlens, 1, 0), CheckError);
}

TEST(Shadow, RefusesBuffersThatItDoesNotSee) {
  const MetadataArena arena({.batch = 2, .context = 64, .page_size = PageSize(16), .threads = 2});
  const Shadow shadow(arena, [] {});
  EXPECT_THROW(shadow.read(Buf::split_next_tile, 0, 0), CheckError);    // of another device
  EXPECT_THROW(shadow.read(Buf::decode_page_table, 0, 0), CheckError);  // of another form
  EXPECT_THROW(shadow.read(Buf::work_partial_max, 0, 0), CheckError);   // the kernels' own
}

const Writer kWriters[] = {{"ref", ref::write_metadata, Device::cpu},
                           {"ref_for_cuda", ref::write_metadata, Device::cuda},
                           {"cpu", cpu::write_metadata, Device::cpu},
                           {"cuda", cuda::write_metadata, Device::cuda, true}};
INSTANTIATE_TEST_SUITE_P(Writers, Shadowed, ::testing::ValuesIn(kWriters),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::attn::testing
