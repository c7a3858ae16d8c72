// How an instruction that adds dots of four bytes to 32 bits (VNNI, of 256 or 512 bits) is used for a block and R rows.
//
//   E   I, zero(), add(a, b), add_dot(sums, numbers, q): the four bytes at q, times those of every column, are added
//
// Include only from sources compiled for E.
#pragma once
#include <cstdint>

namespace quire::ops::cpu {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

// numbers[First] .. numbers[First + Count - 1], whose inputs lie at 4 * i of each row of q.
template <class E, int First, int Count, int R>
[[gnu::always_inline]] inline void add_dots_of_four(const typename E::I (&numbers)[8], const int8_t* q, int64_t stride,
                                                    typename E::I (&sums)[R]) {
  constexpr int kChains = R == 1 ? 2 : 1;  // a row alone has two, which wait less for each other's products
  const int8_t* rows[R];
  for (int r = 0; r < R; ++r) {
    rows[r] = q + r * stride;
    asm("" : "+r"(rows[r]));  // else GCC keeps every word's distance from q apart
  }
  typename E::I chains[R][kChains];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    chains[r][kChains - 1] = E::zero();
    chains[r][0] = sums[r];
  }
#pragma GCC unroll 8
  for (int i = First; i < First + Count; ++i)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) E::add_dot(chains[r][i % kChains], numbers[i], rows[r] + 4 * i);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sums[r] = kChains == 2 ? E::add(chains[r][0], chains[r][1 % kChains]) : chains[r][0];
}

}  // namespace
}  // namespace quire::ops::cpu
