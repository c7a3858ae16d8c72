#include "attn/gpu_choice.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "attn/cpu_choice.h"
#include "attn/gpu_sizes.h"

namespace quire::attn {
namespace {

bool is_half(Dtype type) { return type == Dtype::bf16 || type == Dtype::f16; }
// Queries of 16 bits over keys and values like them, or of 8 bits, which are widened on their way.
bool has_narrow_types(const AttendArgs& args) {
  return is_half(args.q.type) && (args.kv.type == args.q.type || args.kv.type == Dtype::f8e4m3);
}
bool is_hopper(const GpuDevice& device) { return device.capability / 10 == 9; }
bool is_multiple(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// --- decode

// (query row, head) pairs of a kv head that a sequence has at most.
int64_t packed_rows(const AttendArgs& args) {
  const int64_t queries = args.keys.most_queries > 0 ? args.keys.most_queries : args.q.rows;
  return queries * (args.q.heads / args.kv.kv_heads);
}

// Copied are 16-byte pieces of K and V at 32-bit distances, 4 bytes of queries at a time, and four columns of the
// output.
bool has_decode_strides(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  const int64_t piece = 16 / size_of(kv.type);
  const int64_t most_stride = std::numeric_limits<int32_t>::max() / size_of(kv.type);
  return kv.key_stride <= most_stride && kv.value_stride <= most_stride && is_multiple(kv.keys, 16) &&
         is_multiple(kv.values, 16) && kv.key_stride % piece == 0 && kv.value_stride % piece == 0 &&
         is_multiple(args.q.data, 4) && args.q.row_stride % 2 == 0 && is_multiple(args.out.data, 16) &&
         args.out.row_stride % 4 == 0;
}

bool is_for_decode(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  return has_narrow_types(args) && !kv.latent() && kv.key_dim == kv.value_dim &&
         (kv.key_dim == 64 || kv.key_dim == 128) && args.q.heads / kv.kv_heads <= kMostDecodeGroup &&
         kv.kv_heads <= kMostSplitBlocks && args.keys.set != Set::local && has_decode_strides(args);
}

// Rows that a block takes against the same keys: tiles of 8 that a warp takes, warps that take the same keys.
struct DecodeRows {
  int32_t row_tiles, team;
};

// As few as there are. Of what becomes f16 on its way, four tiles would be too much in registers.
DecodeRows decode_rows(int64_t rows, bool is_narrow) {
  constexpr int32_t kRows = DecodeSizes::kRowsInTeam;
  if (rows <= 8) return {1, 1};
  if (rows <= kRows) return {2, 1};
  if (rows <= 2 * kRows) return is_narrow ? DecodeRows{2, 2} : DecodeRows{4, 1};
  return {2, 4};
}

// Those with which a row's bits are the same: without a team.
DecodeRows fixed_decode_rows(int64_t rows, bool is_narrow) {
  if (rows <= 8) return {1, 1};
  return {is_narrow ? 2 : 4, 1};
}

// As many bytes under way as the sequences leave room for; 0: there is no room for the fewest stages.
int32_t decode_stages(const DecodeSizes& sizes, int32_t batch, bool is_fixed, size_t room) {
  for (const int32_t stages : {sizes.most_stages(), DecodeSizes::kFewestStages})
    if (sizes.shared_bytes(stages, batch, is_fixed, 0) <= room) return stages;
  return 0;
}

// Where sums have a place of their own, loads go on while the warps meet.
int32_t decode_sums_rows(const DecodeSizes& sizes, const GpuChoice& choice, int32_t batch, size_t room) {
  const int32_t rows = choice.split_rows;
  return sizes.row_tiles == 1 && sizes.shared_bytes(choice.stages, batch, choice.is_fixed, rows) <= room ? rows : 0;
}

std::optional<GpuChoice> decode_choice(const AttendArgs& args, const GpuDevice& device) {
  if (!is_for_decode(args)) return {};
  const kv::LayerKv& kv = args.kv;
  const bool is_narrow = !is_half(kv.type), is_fixed = args.deterministic;
  const int64_t rows = packed_rows(args);
  const auto [row_tiles, team] = is_fixed ? fixed_decode_rows(rows, is_narrow) : decode_rows(rows, is_narrow);
  const DecodeSizes sizes{.element = static_cast<int32_t>(size_of(kv.type)), .row_tiles = row_tiles, .dim = kv.key_dim};
  const auto shared_room = static_cast<size_t>(device.shared_bytes / sizes.blocks() - DecodeSizes::kDeclared);
  const int32_t batch = args.arena->limits().batch;
  const int32_t most = std::min(device.processors * sizes.blocks(), kMostSplitBlocks);
  GpuChoice choice{.kernel = GpuKernel::decode,
                   .blocks = std::max(1, most / kv.kv_heads) * kv.kv_heads,
                   .row_tiles = row_tiles,
                   .team = team,
                   .stages = decode_stages(sizes, batch, is_fixed, shared_room),
                   .is_fixed = is_fixed};
  choice.is_one_tile = rows <= choice.tile_rows();
  choice.split_rows = static_cast<int32_t>(std::min<int64_t>(rows, choice.tile_rows()));
  choice.sums_rows = decode_sums_rows(sizes, choice, batch, shared_room);
  const int64_t room = args.arena->shape(Buf::split_partial_out).rows;
  choice.slots_of_worker = static_cast<int32_t>(room / (int64_t{choice.split_rows} * choice.blocks));
  constexpr int32_t kLeastSlots = 2;  // a worker leaves one of a tile that others began, one of a tile that others end
  if (choice.stages == 0 || choice.slots_of_worker < kLeastSlots) return {};
  return choice;
}

bool may_have_many_keys(const AttendArgs& args) {
  constexpr int32_t kManyKeys = 2048;
  const Limits& limits = args.arena->limits();
  return std::max(limits.context, limits.encoder_context) > kManyKeys;
}

// As many queries as one tile has room for. Of an extend, prefill's tiles would be nearly empty; that counts where keys
// are many.
std::optional<GpuChoice> decode_choice_of_few(const AttendArgs& args, const GpuDevice& device) {
  const bool is_extend = args.keys.most_queries == 0;
  if (packed_rows(args) > kMostSplitRows || (is_extend && !may_have_many_keys(args))) return {};
  return decode_choice(args, device);
}

// --- decode by clusters

// 16-byte pieces of keys, values and queries are loaded.
bool has_cluster_strides(const AttendArgs& args) {
  return has_decode_strides(args) && is_multiple(args.q.data, 16) && args.q.row_stride % 8 == 0;
}

// Sequences, each as often as it may have tiles of (query, head) pairs.
struct ClusterTiles {
  int64_t sequences;
  int32_t of_each;
};
ClusterTiles cluster_tiles(const AttendArgs& args) {
  if (args.keys.most_queries == 1) return {args.q.rows, 1};
  const int64_t pairs = int64_t{args.keys.most_queries} * (args.q.heads / args.kv.kv_heads);
  return {args.keys.most_sequences, static_cast<int32_t>((pairs + kMostClusterRows - 1) / kMostClusterRows)};
}

// A cluster's blocks share one sequence's keys, and of several sequences one may be much longer than the others: so
// even the longest has but a few rounds. As many blocks as it fills, or the device has room for, which is two on each
// multiprocessor; four where they have room, for more of them share what comes before and after the keys.
std::optional<GpuChoice> cluster_choice(const AttendArgs& args, const GpuDevice& device) {
  const bool are_queries_bounded = args.keys.most_queries > 0 && !args.keys.branch_lengths;
  if (!is_hopper(device) || !are_queries_bounded || !is_for_decode(args) || !is_half(args.kv.type) ||
      args.q.heads / args.kv.kv_heads > kMostClusterRows || !has_cluster_strides(args))
    return {};
  const auto [sequences, tiles] = cluster_tiles(args);
  const int64_t clusters = sequences * tiles * args.kv.kv_heads, room = 2 * device.processors;
  if (sequences > args.arena->limits().batch) return {};
  int32_t cluster = kFewestClusterBlocks;
  while (cluster < kMostClusterBlocks && 2 * cluster * clusters <= room &&
         (cluster < 4 || cluster * kClusterRoundKeys < args.keys.most_keys))
    cluster *= 2;
  if (cluster * clusters > room || args.keys.most_keys > kMostClusterRounds * cluster * kClusterRoundKeys) return {};
  return GpuChoice{.kernel = GpuKernel::decode_cluster,
                   .blocks = static_cast<int32_t>(clusters * cluster),
                   .cluster = cluster,
                   .row_tiles = tiles};
}

// Clusters whose blocks take the parts of a fixed cut, of one sequence.
std::optional<GpuChoice> parts_choice(const AttendArgs& args, const GpuDevice& device) {
  if (args.q.rows != 1) return {};
  std::optional<GpuChoice> choice = cluster_choice(args, device);
  if (choice) choice->kernel = GpuKernel::decode_parts;
  return choice;
}

// --- decode of many sequences

// Its stages are as many on every device: 192 KiB, and where warps meet.
bool has_room_for_many(int32_t dim, const GpuDevice& device) {
  constexpr int32_t kDeclared = 1024;
  const DecodeSizes sizes{.element = 2, .row_tiles = 1, .dim = dim};
  return ManySizes::warps(dim) * ManySizes::kStages * sizes.stage_bytes() + kDeclared <= device.shared_bytes;
}

// Whether most blocks have something to do, where each has as many whole pairs as any other. Of heads of 64 stream-K
// loses more than idle blocks do.
bool fills_blocks(int64_t pairs, int32_t dim, int32_t blocks) {
  const int64_t each = (pairs + blocks - 1) / blocks, busy = (pairs + each - 1) / each;
  return pairs >= blocks && (dim == 64 || busy * 8 >= int64_t{blocks} * 7);
}

// As many warps for a sequence and kv head as there are for all of them together.
std::optional<GpuChoice> many_choice(const AttendArgs& args, const GpuDevice& device) {
  const bool is_one_query = args.keys.most_queries == 1 && !args.keys.branch_lengths && args.window < 0;
  const int64_t pairs = args.q.rows * args.kv.kv_heads;
  const int32_t dim = args.kv.key_dim;
  if (!is_one_query || !is_for_decode(args) || !is_half(args.kv.type) || !ManySizes::knows(dim) ||
      args.q.heads / args.kv.kv_heads > ManySizes::kMostGroup || args.keys.set == Set::encoder ||
      args.keys.most_keys > ManySizes::most_context(dim) || !fills_blocks(pairs, dim, device.processors) ||
      !has_room_for_many(dim, device))
    return {};
  int32_t team = ManySizes::warps(dim);
  while (team > 1 && pairs * team > int64_t{device.processors} * ManySizes::warps(dim)) team /= 2;
  return GpuChoice{.kernel = GpuKernel::decode_many, .blocks = device.processors, .team = team};
}

// --- latent

// 16-byte pieces of keys and queries are copied, and of outputs written.
bool has_latent_strides(const AttendArgs& args) {
  const int64_t piece = 16 / size_of(args.kv.type);
  return is_multiple(args.kv.keys, 16) && args.kv.key_stride % piece == 0 && is_multiple(args.q.data, 16) &&
         args.q.row_stride % 8 == 0 && is_multiple(args.out.data, 16) && args.out.row_stride % 8 == 0;
}

bool is_for_latent(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  return has_narrow_types(args) && kv.latent() && kv.key_dim == kLatentKeyDim && kv.value_dim == kLatentValueDim &&
         kv.kv_heads == 1 && args.scale > 0 && has_latent_strides(args);
}

// Thread blocks, one for each multiprocessor, that have room for two splits each.
int32_t latent_most_blocks(const AttendArgs& args, const GpuDevice& device) {
  const int64_t room = args.arena->shape(Buf::split_partial_out).rows / (2 * latent_split_rows(args));
  return static_cast<int32_t>(std::min<int64_t>({device.processors, room, kMostSplitBlocks}));
}

// A worker has as many blocks of rows as a sequence with the most queries; where these are many, or only the step knows
// them, two, which load for each other.
std::optional<GpuChoice> latent_choice(const AttendArgs& args, const GpuDevice& device) {
  const bool begins_as_expected = device.reserved_shared == kLatentSharedBase;
  if (!is_hopper(device) || !begins_as_expected || !is_for_latent(args)) return {};
  const int32_t most = latent_most_blocks(args, device), page = args.keys.page_size.tokens();
  const int64_t all = (packed_rows(args) + kLatentRows - 1) / kLatentRows;
  const bool splits = args.keys.set != Set::local && args.arena->limits().batch <= kLatentMostSequences && most > 1;
  const bool are_few = splits && args.keys.most_queries > 0 && all <= std::min(kLatentMostRowBlocks, most);
  const bool is_even = device.processors % 2 == 0;
  const bool in_boxes = page >= kLatentLeastBox && is_half(args.kv.type) && !args.keys.branch_lengths;
  const auto row_blocks = static_cast<int32_t>(are_few ? all : all > 1 && is_even ? 2 : 1);
  return GpuChoice{.kernel = GpuKernel::latent,
                   .blocks = splits ? most / row_blocks * row_blocks : device.processors,
                   .box = in_boxes ? std::min(page, kLatentKeys) : 0,
                   .row_blocks = row_blocks,
                   .pair = row_blocks % 2 == 0 && is_even ? 2 : 1,
                   .splits_keys = splits,
                   .deals_tiles = !are_few};
}

// --- prefill

bool has_prefill_dims(const kv::LayerKv& kv) {
  if (kv.key_dim == 192) return kv.value_dim == 128;
  return kv.key_dim == kv.value_dim && (kv.key_dim == 64 || kv.key_dim == 96 || kv.key_dim == 128 || kv.key_dim == 256);
}

// 16-byte pieces are copied, so rows must begin at multiples of 16 bytes.
bool has_prefill_strides(const AttendArgs& args) {
  const auto aligned = [](Dtype type, const void* pointer, int64_t stride) {
    return is_multiple(pointer, 16) && stride % (16 / std::min<int64_t>(2, size_of(type))) == 0;
  };
  return aligned(args.kv.type, args.kv.keys, args.kv.key_stride) &&
         aligned(args.kv.type, args.kv.values, args.kv.value_stride) &&
         aligned(args.q.type, args.q.data, args.q.row_stride) &&
         aligned(args.out.type, args.out.data, args.out.row_stride);
}

bool is_for_prefill(const AttendArgs& args) {
  const kv::LayerKv& kv = args.kv;
  const bool is_for_rows = !args.keys.branch_lengths || prefill_has_trees(kv.key_dim);
  return has_narrow_types(args) && !kv.latent() && has_prefill_dims(kv) && is_for_rows && args.scale > 0 &&
         has_prefill_strides(args);
}

// Whether keys may be so many, and tiles are so few, that one long sequence among others would end long after them: how
// many there are only the step knows. Prompts have a kernel that does not ask, nor for branches.
bool may_split_prefill(const AttendArgs& args, const GpuDevice& device) {
  if (args.keys.branch_lengths) return true;
  constexpr int32_t kManyTiles = 16;  // of each multiprocessor
  const int64_t sequences = std::min<int64_t>(args.q.rows, args.arena->limits().batch);
  const int64_t tiles = (args.q.rows * (args.q.heads / args.kv.kv_heads) / kPrefillRows + sequences) * args.kv.kv_heads;
  return may_have_many_keys(args) && tiles < kManyTiles * device.processors && args.keys.set != Set::local;
}

std::optional<GpuChoice> prefill_choice(const AttendArgs& args, const GpuDevice& device) {
  const bool begins_as_expected = device.reserved_shared == kPrefillSharedBase;
  if (!is_hopper(device) || !begins_as_expected || !is_for_prefill(args)) return {};
  const kv::LayerKv& kv = args.kv;
  const int32_t page = args.keys.page_size.tokens();
  const bool in_boxes = page >= kPrefillLeastBox && is_half(kv.type) && !args.keys.branch_lengths;
  return GpuChoice{.kernel = GpuKernel::prefill,
                   .blocks = device.processors,
                   .box = in_boxes ? std::min(page, prefill_keys(kv.key_dim, kv.value_dim, false)) : 0,
                   .splits_keys = may_split_prefill(args, device)};
}

// --- general

Problem problem_of(const AttendArgs& args) {
  return {.query_type = args.q.type,
          .kv_type = args.kv.type,
          .heads = args.q.heads,
          .kv_heads = args.kv.kv_heads,
          .key_dim = args.kv.key_dim,
          .value_dim = args.kv.value_dim};
}

GpuChoice general_choice(const AttendArgs& args, const GpuDevice& device) {
  const kv::LayerKv& kv = args.kv;
  const int32_t slot = general_slot(kv.key_dim, kv.value_dim, kv.latent());
  const size_t needed = general_shared_bytes(kv.key_dim, slot) + kGeneralDeclared;
  check(needed <= static_cast<size_t>(device.shared_bytes), "no kernel for ", problem_of(args), " on ", device,
        ": the general one needs ", needed, " bytes of shared memory");
  return {.kernel = GpuKernel::general,
          .why = "no kernel on tensor cores is for these types, dims, strides, this kind of layer or this device"};
}

// Addresses that nobody follows, at multiples of 4096.
std::byte* nowhere(int32_t number) { return reinterpret_cast<std::byte*>(uintptr_t{4096} * (number + 1)); }

std::array<std::atomic<int64_t>, kGpuKernels.size()> launches{};

}  // namespace

std::string to_string(const GpuDevice& device) {
  return cat("a GPU of compute capability ", device.capability / 10, ".", device.capability % 10, " with ",
             device.processors, " multiprocessors, ", device.shared_bytes, " bytes of shared memory a block and ",
             device.reserved_shared, " reserved");
}

const char* to_string(GpuKernel kernel) {
  constexpr const char* kNames[] = {"general",     "decode", "decode_cluster", "decode_parts",
                                    "decode_many", "latent", "prefill"};
  static_assert(std::size(kNames) == kGpuKernels.size());
  return kNames[static_cast<size_t>(kernel)];
}

std::string to_string(const GpuChoice& choice) {
  std::string text = to_string(choice.kernel);
  if (choice.kernel == GpuKernel::general) return text;
  text += cat(", ", choice.blocks, " blocks, ");
  text += choice.box ? cat("boxes of ", choice.box, " slots") : "row by row";
  if (choice.kernel == GpuKernel::latent) {
    text += cat(choice.splits_keys ? ", keys split" : "", choice.deals_tiles ? ", tiles dealt" : "", ", ",
                choice.row_blocks, " blocks of rows");
    if (choice.pair > 1) text += ", in pairs";
  }
  if (choice.kernel == GpuKernel::prefill && choice.splits_keys) text += ", keys split";
  if (choice.kernel == GpuKernel::decode_cluster || choice.kernel == GpuKernel::decode_parts)
    text += cat(", clusters of ", choice.cluster);
  if (choice.kernel == GpuKernel::decode_cluster && choice.row_tiles > 1)
    text += cat(", ", choice.row_tiles, " tiles of rows");
  if (choice.kernel == GpuKernel::decode_many) text += cat(", teams of ", choice.team);
  if (choice.kernel == GpuKernel::decode)
    text += cat(", ", choice.row_tiles * 8, " rows a warp, teams of ", choice.team, ", ", choice.stages, " stages",
                choice.is_fixed ? ", fixed parts" : "");
  return text;
}

int32_t latent_split_rows(const AttendArgs& args) {
  return static_cast<int32_t>(std::min<int64_t>(packed_rows(args), kLatentRows));
}

GpuChoice choose_gpu(const AttendArgs& args, const GpuDevice& device) {
  struct Candidate {
    std::optional<GpuChoice> (*choice_of)(const AttendArgs&, const GpuDevice&);
    const char* why;
  };
  constexpr Candidate kOfOneReduction[] = {
      {parts_choice, "it is deterministic: one query of one sequence, whose keys are split at fixed positions"},
      {decode_choice, "it is deterministic: keys are split at fixed positions"}};
  constexpr Candidate kAny[] = {
      {cluster_choice, "few queries of each of few sequences, and no long context: what counts is latency"},
      {many_choice, "one query of each of many sequences, and no long context: nobody's keys need be split"},
      {decode_choice_of_few, "few queries of each sequence, so their keys are split over the whole machine"},
      {latent_choice, "latent keys"},
      {prefill_choice, "many queries of each sequence, or of dims that decode is not for"},
      {decode_choice, "many queries of each sequence, but prefill is not for them"}};
  for (const Candidate& candidate : args.deterministic ? std::span<const Candidate>(kOfOneReduction) : kAny)
    if (std::optional<GpuChoice> choice = candidate.choice_of(args, device)) {
      choice->why = candidate.why;
      return *choice;
    }
  return general_choice(args, device);
}

GpuChoice choose_gpu(const GpuProblem& problem, const GpuDevice& device) {
  const auto& [query_type, kv_type, heads, kv_heads, key_dim, value_dim] = problem.shapes;
  const bool is_verify = problem.mode == Mode::verify || problem.mode == Mode::verify_tree;
  const MetadataArena arena({.batch = problem.batch,
                             .context = problem.context,
                             .page_size = PageSize(problem.page_size),
                             .draft_tokens = is_verify ? problem.queries : 0,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .key_dim = key_dim,
                             .value_dim = value_dim,
                             .device = Device::cuda});
  const int64_t rows = int64_t{problem.batch} * (problem.mode == Mode::decode ? 1 : problem.queries);
  const StepShape shape{.mode = problem.mode,
                        .captured = problem.batch,
                        .query_rows = static_cast<int32_t>(rows),
                        .table = {.pages = reinterpret_cast<const PageId*>(nowhere(0)),
                                  .stride = arena.limits().text_pages(),
                                  .rows = problem.batch + 1,
                                  .width = arena.limits().text_pages(),
                                  .page_size = arena.limits().page_size,
                                  .pool_pages = 1}};
  return choose_gpu({.keys = key_view(arena, shape, LayerKind::full),
                     .arena = &arena,
                     .kv = {.keys = nowhere(1),
                            .values = nowhere(problem.is_latent ? 1 : 2),
                            .type = kv_type,
                            .kv_heads = kv_heads,
                            .key_dim = key_dim,
                            .value_dim = value_dim,
                            .key_stride = int64_t{kv_heads} * key_dim,
                            .value_stride = int64_t{kv_heads} * (problem.is_latent ? key_dim : value_dim),
                            .key_scale = 1,
                            .value_scale = 1,
                            .slots = 1},
                     .q = {nowhere(3), query_type, rows, heads, key_dim, int64_t{heads} * key_dim},
                     .out = {nowhere(4), query_type, rows, heads, value_dim, int64_t{heads} * value_dim},
                     .scale = 1 / std::sqrt(static_cast<float>(key_dim)),
                     .deterministic = problem.is_deterministic},
                    device);
}

std::optional<std::string> slow_attention(const Problem& shapes, bool is_deterministic, const GpuDevice& device) {
  constexpr int32_t kQueries = 512;
  GpuProblem problem{.shapes = shapes, .is_deterministic = is_deterministic};
  const GpuChoice decode = choose_gpu(problem, device);
  problem.mode = Mode::extend;
  problem.queries = kQueries;
  const GpuChoice prompts = choose_gpu(problem, device);
  const bool is_slow_decode = decode.kernel == GpuKernel::general,
             are_slow_prompts = prompts.kernel == GpuKernel::general;
  if (!is_slow_decode && !are_slow_prompts) return {};
  return cat("the general kernel, which is slow, attends ",
             is_slow_decode && are_slow_prompts ? "for all rows"
             : is_slow_decode                   ? "for tokens"
                                                : "for prompts",
             ": ", shapes, is_deterministic ? ", deterministic: " : ": ", (is_slow_decode ? decode : prompts).why);
}

std::vector<int32_t> decode_contexts(AttendArgs args, const GpuDevice& device) {
  constexpr int32_t kContexts[] = {8192, 4096, 2048, 1024};
  const int32_t longest = args.arena->limits().context, drafts = args.keys.most_keys - longest;
  std::vector<int32_t> contexts = {longest};
  for (GpuChoice last = choose_gpu(args, device); const int32_t context : kContexts) {
    if (context >= longest) continue;
    args.keys.most_keys = context + drafts;
    const GpuChoice choice = choose_gpu(args, device);
    if (!(choice == last)) contexts.push_back(context);
    last = choice;
  }
  std::reverse(contexts.begin(), contexts.end());
  return contexts;
}

int64_t launches_of(GpuKernel kernel) { return launches[static_cast<size_t>(kernel)]; }
void count_launch(GpuKernel kernel) { ++launches[static_cast<size_t>(kernel)]; }

}  // namespace quire::attn
