#include "ops/philox.h"
#include "ops/sample.h"

namespace quire::ops {
namespace {

constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

}  // namespace

double uniform(uint64_t seed, uint64_t position) {
  const auto random = philox4x32({low(position), high(position), 0, 0}, {low(seed), high(seed)});
  const uint64_t bits = (uint64_t{random[0]} << 32 | random[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace quire::ops
