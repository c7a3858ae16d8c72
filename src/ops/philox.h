// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): a random function of counter and key without state, made of ten
// rounds of 32-bit multiplications; and the numbers that tokens are drawn by.
#pragma once
#include <array>
#include <cstdint>

namespace quire::ops {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// The 64 random bits of (seed, position): words 0 and 1 for counter (position, 0) and key seed, low halves first.
constexpr uint64_t random_bits(uint64_t seed, uint64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto words = philox4x32({low(position), high(position), 0, 0}, {low(seed), high(seed)});
  return uint64_t{words[0]} << 32 | words[1];
}

}  // namespace quire::ops
