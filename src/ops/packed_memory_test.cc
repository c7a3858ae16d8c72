#include "ops/packed_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quire::ops {
namespace {

bool aligned(const std::byte* address) { return reinterpret_cast<uintptr_t>(address) % 64 == 0; }

TEST(PackedMemory, PiecesOfManySizesAreAlignedZeroedAndApart) {
  std::vector<PackedMemory> all;
  for (size_t bytes : {1u, 63u, 64u, 65u, 1000u, 3u << 20, 9u << 20, 7u << 20, 100u}) {
    all.emplace_back(bytes);
    EXPECT_EQ(all.back().size(), bytes);
    EXPECT_TRUE(aligned(all.back().data()));
    const std::byte* data = all.back().data();
    EXPECT_TRUE(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(all.back().data(), bytes, static_cast<std::byte>(all.size()));
  }
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(std::all_of(all[i].data(), all[i].data() + all[i].size(),
                            [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
}

TEST(PackedMemory, SmallOnesMadeOneAfterTheOtherAreNeighbours) {
  const PackedMemory first(100), second(100);
  EXPECT_EQ(second.data(), first.data() + 128);
}

TEST(PackedMemory, OutlivesItsNeighbours) {
  PackedMemory kept;
  {
    const PackedMemory gone(5000);
    PackedMemory other(5000);
    kept = std::move(other);
  }
  std::fill_n(kept.data(), kept.size(), std::byte{7});
  const PackedMemory later(5000);
  EXPECT_TRUE(later.data() >= kept.data() + kept.size() || later.data() + later.size() <= kept.data());
  EXPECT_EQ(kept.data()[4999], std::byte{7});
}

}  // namespace
}  // namespace quire::ops
