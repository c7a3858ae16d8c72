// The tile instructions, one function each, on eight tiles of up to 16 rows x 64 bytes. Include only from sources
// compiled for AVX-512 and AMX, and run only where best_isa() is Isa::amx.
//
// Written as assembly because the compilers' own functions do not tell the optimiser which memory a tile load reads:
// stores that fill a tile's source, or most of a configuration, may be dropped as dead.
#pragma once
#include <cstdint>

namespace quire::simd::amx {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

// The shapes of the tiles, palette 1; as it is made, all eight are 16 x 64 bytes.
struct alignas(64) Config {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64);

// Needed on a thread before its first tile instruction, and again after release().
inline void configure(const Config& config = {}) { asm volatile("ldtilecfg %0" ::"m"(config)); }

// Frees the tiles, so that the kernel need not save 8 KB at every switch of threads.
inline void release() { asm volatile("tilerelease" ::: "memory"); }

template <int Tile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
inline void load(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
inline void store(void* rows, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(Tile) : "memory");
}
// c += a b, for a [16, 32] bf16 and b [16 pairs of k, 16] pairs of bf16.
template <int C, int A, int B>
inline void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// c += a b in 32-bit integers, for signed bytes a [rows, k] and unsigned bytes b [groups of four k, 16] of four.
template <int C, int A, int B>
inline void dot_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace
}  // namespace quire::simd::amx
