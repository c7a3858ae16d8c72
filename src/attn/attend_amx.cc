// One block on AMX's bf16 tiles: scores S = Q K^T and results O += P V, both as products of 16 x 32 by 32 x 16 tiles.
//
// K and V are repacked once a block into the tiles' right-hand form (pairs of k side by side); Q and P are left-hand
// rows as they lie. A tile's sum over its 32 k, and the order of tiles, are the same for every row, so bits depend on
// the row alone. Probabilities are rounded to bf16 for the product; their sum is taken before.
#include <immintrin.h>

#include "attn/attend_softmax.h"
#include "attn/bf16_pairs.h"
#include "base/simd/amx.h"
#include "base/simd/avx512.h"

namespace quire::attn::cpu {
namespace {

namespace amx = simd::amx;

struct AmxEngine {
  using Simd = simd::Avx512;
  using S = Simd;
  static constexpr int kDepth = 32;  // k of one tile product
  static constexpr int kTileBytes = 1024;
  static constexpr int kRowsAtOnce = 32;  // two tiles of rows
  static constexpr int kKeyTiles = kBlock / 16;
  static constexpr int kKeySteps = kBlock / kDepth;
  static constexpr int64_t kScoreStride = kBlock * sizeof(float);

  static void load_queries(const Task& task, const Item& item, TileState& t) {
    const size_t row_bytes = static_cast<size_t>(t.key_dim) * sizeof(bf16);
    for (int32_t r = 0; r < t.rows; ++r) {
      const RowPlace place = place_of(task, item, r);
      std::memcpy(t.q + static_cast<size_t>(r) * row_bytes, task.args.q.at(place.query, place.head), row_bytes);
    }
  }

  static void block(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t key_offset,
                    int64_t value_offset, Ahead& next_keys, Ahead& next_values) {
    pack_keys(t, keys, key_offset, next_keys);
    pack_values(t, keys, value_offset, next_values);
    // 32 rows go all the way before the next 32: their scores and results stay in L1.
    for (int32_t r = first; r < end; r += kRowsAtOnce) attend_rows(t, r, min_of(r + kRowsAtOnce, end), keys);
  }

  static void finish_range(TileState& t) {
    for (int32_t r = 0; r < t.rows; ++r) natural_order(t.o + r * t.value_dim, t.value_dim);
  }

 private:
  static void attend_rows(TileState& t, int32_t first, int32_t end, const BlockKeys& keys) {
    const int32_t seen = seen_by(t, first, end, keys);
    if (seen <= 0) return;
    if (end - first > 16)
      score_two(t, first, seen);
    else
      score_one(t, first);
    softmax_rows<S>(t, first, end, keys, [&](int32_t row, int i, S::F p) {
      std::byte* out = reinterpret_cast<std::byte*>(t.s + row * kBlock) + i * sizeof(bf16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
    });
    rescale(t, first, end);
    if (end - first == 32)
      weigh_two(t, first);
    else if (end - first >= 16)
      weigh_one(t, reinterpret_cast<std::byte*>(t.o + first * t.value_dim), first);
    if ((end - first) % 16 != 0) weigh_rest(t, first + (end - first) / 16 * 16, end);
  }

  static std::byte* key_tile(const TileState& t, int32_t step, int32_t tile) {
    return t.keys + (step * kKeyTiles + tile) * kTileBytes;
  }
  static std::byte* value_tile(const TileState& t, int32_t step, int32_t tile) {
    return t.values + (step * (t.value_dim / 16) + tile) * kTileBytes;
  }

  // Tile (step, tile): row p holds dimensions 32 step + 2p and + 1 of keys 16 tile ... + 15.
  static void pack_keys(TileState& t, const BlockKeys& keys, int64_t offset, Ahead& next) {
    for (int32_t tile = 0; tile < kKeyTiles; ++tile) {
      for (int32_t step = 0; step * kDepth < t.key_dim; ++step) {
        S::Words pairs[16];
        S::load_words(pairs, keys.key + tile * 16, offset + step * 64, 16);
        std::byte* out = key_tile(t, step, tile);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 64, pairs[i]);
        next.fetch(16);
      }
    }
  }

  // Tile (step, tile): row p holds keys 32 step + 2p and + 1, of 16 dimensions in the order of bf16_pairs.h. Keys that
  // are not real are zeros: their probability is 0, but 0 times a stale NaN would be NaN.
  static void pack_values(TileState& t, const BlockKeys& keys, int64_t offset, Ahead& next) {
    alignas(64) static constexpr std::byte kZeros[1024] = {};
    const auto row_of = [&](int32_t j) { return j >= keys.begin && j < keys.end ? keys.value[j] + offset : kZeros; };
    for (int32_t j = 0; j < kBlock; j += 2) {
      const std::byte* first = row_of(j);
      const std::byte* second = row_of(j + 1);
      std::byte* out = value_tile(t, j / kDepth, 0) + j % kDepth / 2 * 64;
      for (int32_t i = 0; i < t.value_dim; i += 32, out += 2 * kTileBytes) {
        const __m512i a = _mm512_loadu_si512(first + i * 2), b = _mm512_loadu_si512(second + i * 2);
        _mm512_store_si512(out, even_pairs(a, b));
        _mm512_store_si512(out + kTileBytes, odd_pairs(a, b));
      }
      next.fetch(2 * t.value_dim * size_of(Dtype::bf16) / 64);
    }
  }

  // Keys of the block that some of the rows see: tiles of keys past them need no scores.
  static int32_t seen_by(const TileState& t, int32_t first, int32_t end, const BlockKeys& keys) {
    int32_t high = 0;
    for (int32_t r = first; r < end; ++r) high = max_of(high, t.high[r]);
    return min_of(high - keys.position, keys.end);
  }

  static void score_two(TileState& t, int32_t first, int32_t seen) {
    const int64_t q_stride = t.key_dim * int64_t{sizeof(bf16)};
    const std::byte* q0 = t.q + first * q_stride;
    const std::byte* q1 = q0 + 16 * q_stride;
    float* s0 = t.s + first * kBlock;
    float* s1 = s0 + 16 * kBlock;
    for (int32_t tile = 0; tile * 16 < seen; tile += 2) {
      amx::zero<0>();
      amx::zero<1>();
      amx::zero<2>();
      amx::zero<3>();
      for (int32_t step = 0; step * kDepth < t.key_dim; ++step) {
        const int64_t at = step * kDepth * int64_t{sizeof(bf16)};
        amx::load<4>(q0 + at, q_stride);
        amx::load<6>(key_tile(t, step, tile), 64);
        amx::dot_bf16<0, 4, 6>();
        amx::load<7>(key_tile(t, step, tile + 1), 64);
        amx::dot_bf16<1, 4, 7>();
        amx::load<5>(q1 + at, q_stride);
        amx::dot_bf16<2, 5, 6>();
        amx::dot_bf16<3, 5, 7>();
      }
      amx::store<0>(s0 + tile * 16, kScoreStride);
      amx::store<1>(s0 + tile * 16 + 16, kScoreStride);
      amx::store<2>(s1 + tile * 16, kScoreStride);
      amx::store<3>(s1 + tile * 16 + 16, kScoreStride);
    }
  }

  static void score_one(TileState& t, int32_t first) {
    const int64_t q_stride = t.key_dim * int64_t{sizeof(bf16)};
    const std::byte* q = t.q + first * q_stride;
    float* s = t.s + first * kBlock;
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
    for (int32_t step = 0; step * kDepth < t.key_dim; ++step) {
      amx::load<4>(q + step * kDepth * int64_t{sizeof(bf16)}, q_stride);
      amx::load<5>(key_tile(t, step, 0), 64);
      amx::dot_bf16<0, 4, 5>();
      amx::load<6>(key_tile(t, step, 1), 64);
      amx::dot_bf16<1, 4, 6>();
      amx::load<7>(key_tile(t, step, 2), 64);
      amx::dot_bf16<2, 4, 7>();
      amx::load<5>(key_tile(t, step, 3), 64);
      amx::dot_bf16<3, 4, 5>();
    }
    amx::store<0>(s, kScoreStride);
    amx::store<1>(s + 16, kScoreStride);
    amx::store<2>(s + 32, kScoreStride);
    amx::store<3>(s + 48, kScoreStride);
  }

  static void rescale(TileState& t, int32_t first, int32_t end) {
    for (int32_t r = first; r < end; ++r) {
      if (t.factor[r] == 1.0f) continue;
      const S::F factor = S::set1(t.factor[r]);
      float* o = t.o + r * t.value_dim;
      for (int32_t i = 0; i < t.value_dim; i += 16)
        S::store(o + i, t.factor[r] == 0.0f ? S::zero() : S::mul(S::load(o + i), factor));
    }
  }

  // The probabilities stay in tiles while the dimensions pass by.
  static void weigh_two(TileState& t, int32_t first) {
    static_assert(kKeySteps == 2);
    const int64_t o_stride = t.value_dim * int64_t{sizeof(float)};
    const std::byte* p = reinterpret_cast<const std::byte*>(t.s + first * kBlock);
    std::byte* o0 = reinterpret_cast<std::byte*>(t.o + first * t.value_dim);
    std::byte* o1 = o0 + 16 * o_stride;
    amx::load<4>(p, kScoreStride);
    amx::load<5>(p + 64, kScoreStride);
    amx::load<6>(p + 16 * kScoreStride, kScoreStride);
    amx::load<7>(p + 16 * kScoreStride + 64, kScoreStride);
    for (int32_t tile = 0; tile < t.value_dim / 16; ++tile) {
      amx::load<0>(o0 + tile * 64, o_stride);
      amx::load<2>(value_tile(t, 0, tile), 64);
      amx::dot_bf16<0, 4, 2>();
      amx::load<1>(o1 + tile * 64, o_stride);
      amx::dot_bf16<1, 6, 2>();
      amx::load<3>(value_tile(t, 1, tile), 64);
      amx::dot_bf16<0, 5, 3>();
      amx::dot_bf16<1, 7, 3>();
      amx::store<0>(o0 + tile * 64, o_stride);
      amx::store<1>(o1 + tile * 64, o_stride);
    }
  }

  static void weigh_one(TileState& t, std::byte* o, int32_t first) {
    const int64_t o_stride = t.value_dim * int64_t{sizeof(float)};
    const std::byte* p = reinterpret_cast<const std::byte*>(t.s + first * kBlock);
    amx::load<4>(p, kScoreStride);
    amx::load<5>(p + 64, kScoreStride);
    for (int32_t tile = 0; tile < t.value_dim / 16; ++tile) {
      amx::load<0>(o + tile * 64, o_stride);
      amx::load<2>(value_tile(t, 0, tile), 64);
      amx::dot_bf16<0, 4, 2>();
      amx::load<3>(value_tile(t, 1, tile), 64);
      amx::dot_bf16<0, 5, 3>();
      amx::store<0>(o + tile * 64, o_stride);
    }
  }

  // Fewer than 16 rows: a tile would also write rows that are not ours, so it works on a copy.
  static void weigh_rest(TileState& t, int32_t first, int32_t end) {
    const size_t bytes = static_cast<size_t>(end - first) * static_cast<size_t>(t.value_dim) * sizeof(float);
    std::memcpy(t.stage, t.o + first * t.value_dim, bytes);
    weigh_one(t, t.stage, first);
    std::memcpy(t.o + first * t.value_dim, t.stage, bytes);
  }
};

void run_amx_item(const Task& task, int64_t item, std::byte* scratch) {
  amx::configure();
  run_item<AmxEngine>(task, item, scratch);
  amx::release();
}

}  // namespace

Kernel amx_kernel() { return {run_amx_item, fold_parts<simd::Avx512>}; }

}  // namespace quire::attn::cpu
