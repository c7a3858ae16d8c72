#include <cstring>

#include "peak.h"

namespace quire::bench {

double products_plain(int64_t rounds) {
  constexpr int kSums = 32;  // enough chains in flight in any four-wide unit
  float sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = static_cast<float>(i);
  for (int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) sum = sum * 0.5f + 1.0f;
  }
  asm volatile("" : : "r"(sums) : "memory");
  return 2.0 * kSums * static_cast<double>(rounds);
}

uint64_t read_plain(const std::byte* data, size_t bytes) {
  constexpr size_t kSums = 16;  // 128 bytes a turn
  uint64_t sums[kSums] = {};
  for (size_t at = 0; at < bytes; at += sizeof(sums)) {
    uint64_t words[kSums];
    std::memcpy(words, data + at, sizeof(words));
    for (size_t i = 0; i < kSums; ++i) sums[i] += words[i];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace quire::bench
