// Runs of dense tiles on vectors, for any SIMD type: one chain of fused products over the inputs for each output, R
// rows and N vectors of columns at a time, so that enough chains are under way.
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include "ops/matmul_epilogue.h"

namespace quire::ops::cpu {
namespace {

template <class S, Dtype T>
class DenseTiles {
 public:
  static void run(const TileRun& run, const ActivationRows& in, RowRange rows, std::byte* scratch) {
    auto* kept = reinterpret_cast<float*>(scratch);
    // A few tiles at a time for all rows, so that they stay in cache.
    for (int64_t tile = 0; tile < run.count; tile += kTilesAtOnce) {
      const int64_t end = tile + kTilesAtOnce < run.count ? tile + kTilesAtOnce : run.count;
      for_rows<kMostRows>(rows, [&]<int R>(int64_t row) {
        vectors<R, kSums / R>(run, in, {row, row - rows.first, kept}, tile * kVectors, end * kVectors);
      });
    }
  }

 private:
  using F = typename S::F;
  static constexpr int kSums = S::kRegisters / 2;
  static constexpr int kMostRows = kSums / 2;
  static constexpr int64_t kTilesAtOnce = 8;
  static constexpr int64_t kVectors = kTileColumns / S::kWidth;  // of a tile

  struct RowPlace {
    int64_t row;
    int64_t swept;  // its number in the sweep
    float* kept;
  };

  // Calls body.operator()<R>(row) for groups of R rows: as many as possible of Most, then of half of it, down to 1.
  template <int Most, class Body>
  static void for_rows(RowRange rows, const Body& body) {
    int64_t row = rows.first;
    for (; row + Most <= rows.end; row += Most) body.template operator()<Most>(row);
    if constexpr (Most > 1) for_rows<Most / 2>({row, rows.end}, body);
  }

  // Vectors [first, end) of the run, N at a time while there are so many.
  template <int R, int N>
  static void vectors(const TileRun& run, const ActivationRows& in, const RowPlace& place, int64_t first, int64_t end) {
    for (; first + N <= end; first += N) products<R, N>(run, in, place, first);
    if constexpr (N > 1) vectors<R, N / 2>(run, in, place, first, end);
  }

  static const std::byte* weights_of(const TileRun& run, int64_t vector) {
    return run.tiles + vector / kVectors * run.stride + vector % kVectors * S::kWidth * size_of(T);
  }

  template <int R, int N>
  [[gnu::noinline]] static void products(const TileRun& run, const ActivationRows& in, const RowPlace& at,
                                         int64_t first) {
    const std::byte* weights[N];
    for (int n = 0; n < N; ++n) weights[n] = weights_of(run, first + n);
    const float* x = in.f32 + at.row * in.dim;
    F sums[R][N];
    for (auto& row : sums)
      for (F& sum : row) sum = S::zero();
    for (int64_t k = 0; k < run.inputs; ++k) {
      F w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = S::template load_as<T>(weights[n] + k * kTileColumns * size_of(T));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[r][n] = S::fma(S::set1(x[r * in.dim + k]), w[n], sums[r][n]);
    }
    Place place;
    for (int n = 0; n < N; ++n) {
      find_place(run.target, (first + n) / kVectors, at.kept, place);
      const int column = static_cast<int>((first + n) % kVectors * S::kWidth);
      for (int r = 0; r < R; ++r) put<S>(place, at.row + r, at.swept + r, column, sums[r][n]);
    }
  }
};

template <class S>
TilesFn* dense_tiles(BlockType type) {
  switch (type) {
    case BlockType::f32:
      return DenseTiles<S, Dtype::f32>::run;
    case BlockType::f16:
      return DenseTiles<S, Dtype::f16>::run;
    case BlockType::bf16:
      return DenseTiles<S, Dtype::bf16>::run;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace quire::ops::cpu
