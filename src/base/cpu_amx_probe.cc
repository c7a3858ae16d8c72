#include "base/cpu_amx_probe.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace quire {
namespace {

constexpr int kRows = 16, kColumns = 16, kDepth = 32;

// The 64 bytes that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Small integers only, so that every product and sum is exact in any order.
int left(int row, int k) { return (row * 3 + k * 5) % 13 - 6; }
int right(int k, int column) { return (k * 7 + column * 2) % 11 - 5; }

uint16_t exact_bf16(int value) {
  const auto wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace

bool amx_product_is_right() {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 3; ++tile) {
    config.rows[tile] = kRows;
    config.row_bytes[tile] = 64;
  }
  alignas(64) uint16_t a[kRows][kDepth];
  alignas(64) uint16_t b[kDepth / 2][kColumns][2];  // pairs of k side by side, as the instruction wants them
  alignas(64) float c[kRows][kColumns] = {};
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kDepth; ++k) a[row][k] = exact_bf16(left(row, k));
  for (int k = 0; k < kDepth; ++k)
    for (int column = 0; column < kColumns; ++column) b[k / 2][column][k % 2] = exact_bf16(right(k, column));

  // GCC 12 declares 8 of the configuration's bytes, and none of a loaded tile's, as read; without this barrier it
  // may leave the rest unwritten.
  asm volatile("" : : "r"(&config), "r"(&a), "r"(&b), "r"(&c) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, c, 64);
  _tile_release();
  asm volatile("" : : "r"(&c) : "memory");

  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kColumns; ++column) {
      int sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += left(row, k) * right(k, column);
      if (c[row][column] != static_cast<float>(sum)) return false;
    }
  return true;
}

}  // namespace quire

#else
namespace quire {
bool amx_product_is_right() { return false; }
}  // namespace quire
#endif
