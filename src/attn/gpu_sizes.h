// Sizes of the GPU's kernels that decide which of them fits a problem and a device: read by the choice (gpu_choice.h),
// which no GPU need be there for, and by the kernels themselves.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::attn {

// general: (query row, head) pairs and keys of a tile, f32 all. `slot`: floats of a key and its value, unless that is
// the key's front.
inline constexpr int32_t kGeneralRows = 16, kGeneralKeys = 32;
inline constexpr int32_t kGeneralDeclared = 256;  // bytes beside these
// Odd: lanes that read different keys have banks of their own.
constexpr int32_t general_slot(int32_t key_dim, int32_t value_dim, bool is_latent) {
  return key_dim + (is_latent ? 0 : value_dim) + 1;
}
constexpr size_t general_shared_bytes(int32_t key_dim, int32_t slot) {
  const size_t queries = size_t{kGeneralRows} * key_dim, keys = size_t{kGeneralKeys} * slot;
  return (queries + keys + size_t{kGeneralRows} * kGeneralKeys + kGeneralRows) * sizeof(float);
}

// decode: `row_tiles` tiles of 8 query rows that a warp takes against keys of `element` bytes.
struct DecodeSizes {
  int32_t element, row_tiles, dim;

  constexpr bool is_narrow() const { return element == 1; }
  constexpr int32_t warps() const { return 8; }
  // Thread blocks that a multiprocessor has room for: what bounds 8-bit keys is how fast tiles are worked through, so
  // while the warps of one meet at a tile's end, the other's go on.
  constexpr int32_t blocks() const { return is_narrow() && row_tiles == 1 ? 2 : 1; }
  constexpr int32_t keys() const { return 16; }                                 // of a tile
  constexpr int32_t stage_bytes() const { return 2 * keys() * dim * element; }  // a tile's keys and values
  constexpr int32_t most_stages() const {
    return kMostStagesBytes / (blocks() * warps() * stage_bytes());
  }                                                             // of a warp
  constexpr int32_t round() const { return warps() * keys(); }  // keys that a block's warps take at once
  // Where the cut is fixed: what fours of columns of a warp's rows have added up to. Of 8 rows it is in registers.
  constexpr int32_t total_bytes() const { return row_tiles == 1 ? 0 : row_tiles * 8 * (dim / 4) * 24; }
  // Of the warps' sums where they meet, if they have a place of their own.
  constexpr int32_t sums_bytes(int32_t rows) const { return warps() * rows * dim * 4; }
  constexpr size_t shared_bytes(int32_t stages, int32_t batch, bool is_fixed, int32_t sums_rows) const {
    return size_t{1} * warps() * stages * stage_bytes() + (is_fixed ? total_bytes() : 0) + sums_bytes(sums_rows) +
           (size_t{1} * batch + 1) * kSequenceBytes;
  }

  static constexpr int32_t kMostStagesBytes = 192 * 1024;  // of the 227 KiB that a block of an H100 may have
  static constexpr int32_t kFewestStages = 2;
  static constexpr int32_t kSequenceBytes = 24;                   // what is known of a sequence
  static constexpr int32_t kMostStorageBytes = 4096;              // what a block's warps keep together
  static constexpr int32_t kDeclared = kMostStorageBytes + 2048;  // with what lies between and beside
  static constexpr int32_t kRowsInTeam = 16;                      // of each of its warps
};

inline constexpr int32_t kMostDecodeGroup = 128;  // query heads of a kv head

// decode_cluster: heads of a kv head, keys that a block has at once and how often at the longest context, blocks of a
// cluster: these send each other their sums, which compute-sanitizer does not take from a block alone.
inline constexpr int32_t kMostClusterRows = 8, kClusterRoundKeys = 256, kMostClusterRounds = 2;
inline constexpr int32_t kFewestClusterBlocks = 2, kMostClusterBlocks = 16;

// decode_many: stages of a warp, heads of a kv head; by the head dim the warps of a block, whose stages take as much
// memory with either, and the longest context that a team of warps takes alone: of keys twice as long half as many.
struct ManySizes {
  static constexpr int32_t kStages = 3, kMostGroup = 8, kMostWarps = 16;
  static constexpr bool knows(int32_t dim) { return dim == 64 || dim == 128; }
  static constexpr int32_t warps(int32_t dim) { return kMostWarps * 64 / dim; }
  static constexpr int32_t most_context(int32_t dim) { return dim == 64 ? 8192 : 2048; }
};

// latent: (query row, head) pairs of a thread block, and keys of a tile.
inline constexpr int32_t kLatentKeyDim = 576, kLatentValueDim = 512;
inline constexpr int32_t kLatentRows = 64, kLatentKeys = 64;
inline constexpr int32_t kLatentMostSequences = 36000;
inline constexpr int32_t kLatentMostRowBlocks =
    16;                                         // of a worker: with more of them, some multiprocessors would be idle
inline constexpr int32_t kLatentLeastBox = 64;  // slots: boxes of fewer cost TMA more time than it has
inline constexpr int32_t kLatentSharedBase = 1024;  // where its code takes its shared memory to begin

// prefill: (query row, head) pairs and keys of a tile, the least box, and where its code takes its shared memory to
// begin.
constexpr int32_t prefill_keys(int32_t key_dim, int32_t value_dim, bool is_widened) {
  return value_dim > 128 || (key_dim > 128 && is_widened) ? 64 : 128;
}
// Of these dims decode has trees.
constexpr bool prefill_has_trees(int32_t key_dim) { return key_dim != 64 && key_dim != 128; }
inline constexpr int32_t kPrefillRows = 128;  // at least
inline constexpr int32_t kPrefillLeastBox = 32;
inline constexpr int32_t kPrefillSharedBase = 1024;

}  // namespace quire::attn
