// One block on AMX's bf16 tiles: scores S = Q K^T and results O += P V, both as products of 16 x 32 by 32 x 16 tiles.
//
// K and V are repacked once a block into the tiles' right-hand form (pairs of k side by side); Q and P are left-hand
// rows as they lie. A tile's sum over its 32 k, and the order of tiles, are the same for every row, so bits depend on
// the row alone. Probabilities are rounded to bf16 for the product; their sum is taken before.
#include <immintrin.h>

#include "attn/amx_few_rows.h"
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

  static void load_queries(const Task& task, const WorkItem& item, TileState& t) {
    const size_t row_bytes = static_cast<size_t>(t.key_dim) * sizeof(bf16);
    for (int32_t r = 0; r < t.rows; ++r) {
      const RowPlace place = place_of(task, item, r);
      std::memcpy(t.q + static_cast<size_t>(r) * row_bytes, task.args.q.at(place.query, place.head), row_bytes);
    }
  }

  static void block(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, int64_t key_offset,
                    int64_t value_offset, Prefetch& next_keys, Prefetch& next_values) {
    if (end - first <= AmxFewRows::kMost)
      return AmxFewRows::block(t, first, end, keys, key_offset, value_offset, next_keys, next_values);
    pack_keys(t, keys, key_offset, next_keys);
    pack_values(t, keys, value_offset, next_values);
    // 32 rows go all the way before the next 32, so that their scores and results stay in L1; but the next rows' scores
    // are computed by the tile unit while the vector units turn these rows' scores into probabilities.
    Scores scores(t, first, min_of(first + kRowsAtOnce, end), keys);
    scores.finish();
    for (int32_t r = first; r < end; r += kRowsAtOnce) {
      const int32_t rows_end = min_of(r + kRowsAtOnce, end);
      const bool seen = scores.any();
      scores = Scores(t, rows_end, min_of(rows_end + kRowsAtOnce, end), keys);
      if (seen) attend_rows(t, r, rows_end, keys, scores);
      scores.finish();
    }
  }

  static void finish_range(TileState& t) {
    for (int32_t r = 0; r < t.rows; ++r) natural_order(t.o + r * t.value_dim, t.value_dim);
  }

 private:
  // The scores of up to 32 rows, in pieces of four tile products that can be issued between other work. The sums stay
  // in tiles 0 to 3 from one piece to the next: no other tile instruction may come between.
  class Scores {
   public:
    Scores(TileState& t, int32_t first, int32_t end, const BlockKeys& keys)
        : t_(&t), first_(first), rows_(end - first), steps_(t.key_dim / kDepth) {
      const int32_t seen = rows_ > 0 ? seen_by(t, first, end, keys).to : 0;
      pieces_ = seen > 0 ? (seen + 31) / 32 * steps_ : 0;
    }
    bool any() const { return pieces_ > 0; }

    // Called once for each of up to 32 rows of other work: issues this row's share.
    void advance() {
      ++calls_;
      while (done_ < pieces_ && done_ * kRowsAtOnce < pieces_ * calls_) issue();
    }
    void finish() {
      while (done_ < pieces_) issue();
    }

   private:
    void issue() {
      const int32_t tile = done_ / steps_ * 2, step = done_ % steps_;
      if (rows_ > 16)
        score_two(*t_, first_, tile, step, steps_);
      else
        score_one(*t_, first_, tile, step, steps_);
      ++done_;
    }

    TileState* t_;
    int32_t first_;
    int32_t rows_;
    int32_t steps_;   // of 32 dimensions
    int32_t pieces_;  // 32 keys x one step
    int32_t done_ = 0;
    int32_t calls_ = 0;
  };

  static void attend_rows(TileState& t, int32_t first, int32_t end, const BlockKeys& keys, Scores& next) {
    softmax_rows<S>(t, first, end, keys, [&](int32_t row, int i, S::F p) {
      put_bf16(t.s + row * kBlock, i, p);
      if (i == 0) next.advance();
    });
    next.finish();
    rescale(t, first, end);
    if (end - first == 32)
      accumulate_two(t, first);
    else if (end - first >= 16)
      accumulate_one(t, reinterpret_cast<std::byte*>(t.o + first * t.value_dim), first);
    if ((end - first) % 16 != 0) accumulate_rest(t, first + (end - first) / 16 * 16, end);
  }

  static std::byte* key_tile(const TileState& t, int32_t step, int32_t tile) {
    return t.keys + (step * kKeyTiles + tile) * kTileBytes;
  }
  static std::byte* value_tile(const TileState& t, int32_t step, int32_t tile) {
    return t.values + (step * (t.value_dim / 16) + tile) * kTileBytes;
  }

  // Tile (step, tile): row p holds dimensions 32 step + 2p and + 1 of keys 16 tile ... + 15.
  static void pack_keys(TileState& t, const BlockKeys& keys, int64_t offset, Prefetch& next) {
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
  static void pack_values(TileState& t, const BlockKeys& keys, int64_t offset, Prefetch& next) {
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

  // One step of 32 dimensions, for 32 rows and the keys of two tiles.
  static void score_two(TileState& t, int32_t first, int32_t tile, int32_t step, int32_t steps) {
    const int64_t q_stride = t.key_dim * int64_t{sizeof(bf16)};
    const std::byte* q = t.q + first * q_stride + step * kDepth * int64_t{sizeof(bf16)};
    if (step == 0) {
      amx::zero<0>();
      amx::zero<1>();
      amx::zero<2>();
      amx::zero<3>();
    }
    amx::load<4>(q, q_stride);
    amx::load<6>(key_tile(t, step, tile), 64);
    amx::dot_bf16<0, 4, 6>();
    amx::load<7>(key_tile(t, step, tile + 1), 64);
    amx::dot_bf16<1, 4, 7>();
    amx::load<5>(q + 16 * q_stride, q_stride);
    amx::dot_bf16<2, 5, 6>();
    amx::dot_bf16<3, 5, 7>();
    if (step + 1 < steps) return;
    float* s = t.s + first * kBlock + tile * 16;
    amx::store<0>(s, kScoreStride);
    amx::store<1>(s + 16, kScoreStride);
    amx::store<2>(s + 16 * kBlock, kScoreStride);
    amx::store<3>(s + 16 * kBlock + 16, kScoreStride);
  }

  // The same for up to 16 rows.
  static void score_one(TileState& t, int32_t first, int32_t tile, int32_t step, int32_t steps) {
    const int64_t q_stride = t.key_dim * int64_t{sizeof(bf16)};
    if (step == 0) {
      amx::zero<0>();
      amx::zero<1>();
    }
    amx::load<4>(t.q + first * q_stride + step * kDepth * int64_t{sizeof(bf16)}, q_stride);
    amx::load<6>(key_tile(t, step, tile), 64);
    amx::dot_bf16<0, 4, 6>();
    amx::load<7>(key_tile(t, step, tile + 1), 64);
    amx::dot_bf16<1, 4, 7>();
    if (step + 1 < steps) return;
    float* s = t.s + first * kBlock + tile * 16;
    amx::store<0>(s, kScoreStride);
    amx::store<1>(s + 16, kScoreStride);
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
  static void accumulate_two(TileState& t, int32_t first) {
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

  static void accumulate_one(TileState& t, std::byte* o, int32_t first) {
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
  static void accumulate_rest(TileState& t, int32_t first, int32_t end) {
    const size_t bytes = static_cast<size_t>(end - first) * static_cast<size_t>(t.value_dim) * sizeof(float);
    std::memcpy(t.stage, t.o + first * t.value_dim, bytes);
    accumulate_one(t, t.stage, first);
    std::memcpy(t.o + first * t.value_dim, t.stage, bytes);
  }
};

void run_amx_item(const Task& task, int64_t item, std::byte* scratch) {
  const FlushDenormals as_tiles_do;
  amx::configure();
  run_item<AmxEngine>(task, item, scratch);
  amx::release();
}

}  // namespace

Kernel amx_kernel() { return {run_amx_item, combine_sequence<simd::Avx512>}; }

}  // namespace quire::attn::cpu
