#include "attn/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "attn/cpu_choice.h"
#include "base/testing/expect_refused.h"

namespace quire::attn {
namespace {

Limits some_limits() {
  return {.batch = 5,
          .context = 100,
          .page_size = PageSize(16),
          .topk = 3,
          .draft_steps = 4,
          .draft_tokens = 7,
          .chunk = 32,
          .encoder_context = 40,
          .heads = 8,
          .kv_heads = 2,
          .threads = 4};
}

TEST(Metadata, EveryBufferHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kBufferCount; ++i) {
    EXPECT_EQ(static_cast<int>(kBuffers[i].id), i);
    EXPECT_TRUE(names.insert(to_string(kBuffers[i].id)).second) << to_string(kBuffers[i].id);
  }
  EXPECT_EQ(to_string(Buf::draft_branch_page_table), "draft.branch.page_table");
  EXPECT_EQ(to_string(Buf::verify_tree_prefix_cu_seqlens_k), "verify_tree.prefix.cu_seqlens_k");
  EXPECT_EQ(to_string(Buf::local_local_seqused_k), "local.local_seqused_k");
}

TEST(Metadata, ShapesFollowTheLimits) {
  const Limits limits = some_limits();
  const auto expect_shape = [&](Buf id, int64_t rows, int64_t columns) {
    EXPECT_EQ(spec(id).shape(limits).rows, rows) << to_string(id);
    EXPECT_EQ(spec(id).shape(limits).columns, columns) << to_string(id);
  };
  EXPECT_EQ(limits.text_tokens(), 107);  // the context, and room for verification at its end
  EXPECT_EQ(limits.planes(), 3);
  expect_shape(Buf::decode_cache_seqlens, 3, 5);
  expect_shape(Buf::decode_page_table, 5, 7);
  expect_shape(Buf::verify_cu_seqlens_k, 1, 6);
  expect_shape(Buf::draft_branch_page_table, 15, 4);
  expect_shape(Buf::verify_tree_branch_page_table, 35, 7);
  expect_shape(Buf::local_local_block_table, 20, 2);
  expect_shape(Buf::encoder_encoder_page_table, 5, 3);
}

TEST(Metadata, DraftStepsAloneAlsoNeedRoomPastTheContext) {
  Limits limits = some_limits();
  limits.draft_steps = 9;
  EXPECT_EQ(limits.text_tokens(), 109);
}

void expect_buffers_apart(const MetadataArena& arena) {
  std::vector<std::pair<const std::byte*, const std::byte*>> extents;
  for (const BufferSpec& buffer : kBuffers) {
    ASSERT_EQ(arena.has(buffer.id), is_held(buffer, arena.limits())) << to_string(buffer.id);
    if (!arena.has(buffer.id)) continue;
    const std::span<std::byte> bytes = std::as_writable_bytes(arena.words(buffer.id));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.at(buffer.id)) % 64, 0u) << to_string(buffer.id);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), arena.shape(buffer.id).rows * arena.shape(buffer.id).columns * 4);
    extents.emplace_back(bytes.data(), bytes.data() + bytes.size());
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) EXPECT_LE(extents[i - 1].second, extents[i].first);
  EXPECT_LE(static_cast<size_t>(extents.back().second - extents.front().first), arena.bytes());
}

TEST(Metadata, BuffersAreAlignedAndDoNotOverlap) {
  for (const int page_size : {1, 16, 32, 64, 128})
    for (const Device device : {Device::cpu, Device::cuda})
      for (const Form form : {Form::in_place, Form::materialised}) {
        Limits limits = some_limits();
        limits.page_size = PageSize(page_size);
        limits.chunk = 128;
        limits.device = device;
        limits.form = form;
        SCOPED_TRACE(to_string(limits));
        expect_buffers_apart(MetadataArena(limits));
      }
}

// --- an arena has what its device's kernels read in its form

TEST(Metadata, EveryBufferIsHeldByTheArenasOfItsReaders) {
  for (const BufferSpec& buffer : kBuffers)
    for (const Device device : {Device::cpu, Device::cuda})
      for (const Form form : {Form::in_place, Form::materialised}) {
        Limits limits = some_limits();
        limits.device = device;
        limits.form = form;
        const bool of_other_device = buffer.set == (device == Device::cpu ? Set::split : Set::work) ||
                                     (device == Device::cuda && buffer.on == On::cpu);
        EXPECT_EQ(is_held(buffer, limits),
                  !of_other_device && (buffer.role != Role::table || form == Form::materialised))
            << to_string(buffer.id) << " for " << to_string(limits);
      }
  EXPECT_EQ(spec(Buf::window_cu_splits).on, On::cpu);
  EXPECT_EQ(spec(Buf::split_next_tile).role, Role::step);
}

// A GPU keeps no partial results of a CPU's threads: 17.5 of 17.57 GB were.
TEST(Metadata, AGpusArenaIsSmallWhateverTheThreads) {
  Limits limits{.batch = 160,
                .context = 131072,
                .page_size = PageSize(16),
                .topk = 4,
                .draft_steps = 4,
                .draft_tokens = 8,
                .heads = 32,
                .kv_heads = 8,
                .threads = 16};
  EXPECT_GT(MetadataArena::bytes_for(limits), 17.4e9);
  limits.device = Device::cuda;
  EXPECT_LT(MetadataArena::bytes_for(limits), 20e6);
  limits.form = Form::materialised;
  EXPECT_LT(MetadataArena::bytes_for(limits), 65e6);
}

// Steps in place read the request table itself: no arena for them has copies of it.
TEST(Metadata, AnArenaInPlaceDoesNotGrowWithTheContext) {
  for (const Device device : {Device::cpu, Device::cuda}) {
    Limits limits{.batch = 256, .context = 1 << 20, .page_size = PageSize(1), .device = device};
    const size_t in_place = MetadataArena::bytes_for(limits);
    EXPECT_LT(in_place, 2e7);
    limits.context = 1024;
    EXPECT_EQ(MetadataArena::bytes_for(limits), in_place);
    limits.context = 1 << 20;
    limits.form = Form::materialised;
    EXPECT_GT(MetadataArena::bytes_for(limits), 8.5e9);
  }
}

TEST(Metadata, ABufferThatTheArenaDoesNotHaveIsRefused) {
  Limits limits = some_limits();
  const MetadataArena of_cpu(limits);
  limits.device = Device::cuda;
  limits.form = Form::materialised;
  const MetadataArena of_gpu(limits);
  expect_refused([&] { of_cpu.counts(Buf::split_arrivals); }, "the arena has no buffer split.arrivals");
  expect_refused([&] { of_cpu.pages(Buf::verify_page_table); }, "on cpu, in_place");
  expect_refused([&] { of_gpu.floats(Buf::work_partial_out); }, "the arena has no buffer work.partial_out");
  expect_refused([&] { of_gpu.words(Buf::decode_cu_items); }, "on cuda, materialised");
  EXPECT_EQ(of_gpu.find(Buf::work_partial_out), nullptr);
  EXPECT_TRUE(of_gpu.has(Buf::verify_page_table));
}

TEST(Metadata, PartialRowsCoverEverySplit) {
  const Limits limits = some_limits();
  // 4 * 4 tiles of 64 positions x 8 heads, over the one range that 107 keys touch
  EXPECT_EQ(partial_rows(limits), 16 * 1 * 64 * 8);
  Limits encoder = limits;
  encoder.encoder_context = 1025;
  EXPECT_EQ(partial_rows(encoder), 16 * 3 * 64 * 8);
}

TEST(Metadata, LimitsThatMakeNoSenseAreRefused) {
  const auto refused = [](auto change, const std::string& part) {
    Limits limits = some_limits();
    change(limits);
    expect_refused([&] { limits.check(); }, part);
    expect_refused([&] { MetadataArena arena(limits); }, "page size 16");  // every refusal prints the limits
  };
  refused([](Limits& l) { l.batch = 0; }, "batch 0");
  refused([](Limits& l) { l.context = 0; }, "context 0");
  refused([](Limits& l) { l.topk = 0; }, "topk 0");
  refused([](Limits& l) { l.draft_steps = -1; }, "draft steps -1");
  refused([](Limits& l) { l.draft_tokens = kMostDrafts + 1; }, "draft tokens 1025");
  refused([](Limits& l) { l.chunk = 24; }, "chunk 24 is not a multiple of the page size 16");
  refused([](Limits& l) { l.encoder_context = -1; }, "encoder context -1");
  refused([](Limits& l) { l.heads = 0; }, "heads 0");
  refused([](Limits& l) { l.kv_heads = 3; }, "heads 8 is not a multiple of kv heads 3");
  refused([](Limits& l) { l.key_dim = 0; }, "key dim 0");
  refused([](Limits& l) { l.value_dim = 0; }, "value dim 0");
  refused([](Limits& l) { l.threads = 0; }, "threads 0");
  refused([](Limits& l) { l.batch = 1 << 20, l.context = 1 << 20; }, "text tokens each is more than 32 bits count");
  refused([](Limits& l) { l.batch = 1 << 20, l.encoder_context = 1 << 20; }, "encoder keys each");
  refused([](Limits& l) { l.batch = 1 << 20, l.topk = 1024, l.draft_steps = 2; }, "branch slots each");
  refused([](Limits& l) { l.batch = 1 << 20, l.draft_tokens = 64; }, "tree mask entries each");
  refused([](Limits& l) { l.context = 1 << 28, l.batch = 1, l.threads = 1 << 16, l.heads = 1 << 16; }, "fit no memory");
}

TEST(Metadata, WordsHaveNames) {
  EXPECT_STREQ(to_string(Element::slot), "slot");
  EXPECT_STREQ(to_string(Role::table), "table");
  EXPECT_STREQ(to_string(On::cuda), "cuda");
  EXPECT_STREQ(to_string(Form::in_place), "in_place");
  EXPECT_STREQ(to_string(Set::window), "window");
}

TEST(MetadataArena, OfAPoolIsLaidOutLikeOneOfItsOwn) {
  const Limits limits{.batch = 3, .context = 100, .page_size = PageSize(16), .draft_tokens = 4};
  const MetadataArena own(limits);
  MemoryPool pool(MetadataArena::bytes_for(limits) + 256, Place::host);
  const MetadataArena pooled(limits, pool);
  EXPECT_EQ(pooled.bytes(), own.bytes());
  EXPECT_EQ(MetadataArena::bytes_for(limits), own.bytes());
  for (const BufferSpec& buffer : kBuffers) {
    if (!own.has(buffer.id)) continue;
    EXPECT_EQ(pooled.at(buffer.id) - pooled.at(Buf{0}), own.at(buffer.id) - own.at(Buf{0})) << to_string(buffer.id);
  }
  EXPECT_THROW(MetadataArena(limits, pool), CheckError) << "no second one fits";
}

}  // namespace
}  // namespace quire::attn
