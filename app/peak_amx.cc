#include "peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace quire::bench {
namespace {

// The 64 bytes that LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Six tiles of sums, and the two factors, whose bytes are those of `element`.
void load_tiles(uint16_t element) {
  const TileConfig config;
  alignas(64) uint16_t elements[16][32];
  for (auto& row : elements)
    for (uint16_t& at : row) at = element;
  // GCC 12 declares 8 of the configuration's bytes, and none of a loaded tile's, as read; without this barrier it
  // may leave the rest unwritten.
  asm volatile("" : : "r"(&config), "r"(&elements) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, elements, 64);
  _tile_loadd(7, elements, 64);
}

}  // namespace

double products_amx(int64_t rounds) {
  load_tiles(0x3f80);  // bf16 1: zeros may draw less power and flatter the clock
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  return 6.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}

double bytes_amx(int64_t rounds) {
  load_tiles(0x0101);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbusd(0, 6, 7);
    _tile_dpbusd(1, 6, 7);
    _tile_dpbusd(2, 6, 7);
    _tile_dpbusd(3, 6, 7);
    _tile_dpbusd(4, 6, 7);
    _tile_dpbusd(5, 6, 7);
  }
  _tile_release();
  return 6.0 * 2 * 16 * 16 * 64 * static_cast<double>(rounds);
}

}  // namespace quire::bench

#else
namespace quire::bench {
double products_amx(int64_t) { return 0; }
double bytes_amx(int64_t) { return 0; }
}  // namespace quire::bench
#endif
