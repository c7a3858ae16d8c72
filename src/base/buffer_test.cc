#include "base/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

size_t resident_pages(const Buffer& buffer) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((buffer.size() + page - 1) / page);
  EXPECT_EQ(mincore(buffer.data(), buffer.size(), resident.data()), 0);
  return static_cast<size_t>(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; }));
}

TEST(Buffer, TakesAddressSpaceAndTouchesNothing) {
  const Buffer buffer(size_t{1} << 30);
  ASSERT_EQ(buffer.size(), size_t{1} << 30);
  EXPECT_EQ(resident_pages(buffer), 0u);
  buffer.data()[buffer.size() - 1] = std::byte{1};
  EXPECT_EQ(resident_pages(buffer), 1u);
}

TEST(Buffer, IsAlignedWhateverItsSize) {
  for (size_t bytes : {1, 63, 4097}) {
    const Buffer buffer(bytes, Place::host_huge_pages);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    EXPECT_EQ(buffer.bytes().size(), bytes);
    std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{7});
  }
}

TEST(Buffer, EmptyOnesHoldNothing) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).size(), 0u);
}

TEST(Buffer, MovingHandsOverTheMemory) {
  Buffer first(4096);
  std::byte* const memory = first.data();
  memory[5] = std::byte{42};
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is what is tested
  EXPECT_EQ(first.size(), 0u);
  Buffer third(64);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.size(), 4096u);
  EXPECT_EQ(third.data()[5], std::byte{42});
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  Buffer& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.data(), memory);
}

TEST(Buffer, RefusalNamesTheSize) {
  const size_t impossible = size_t{1} << 60;
  try {
    const Buffer buffer(impossible);
    ADD_FAILURE() << "mapped " << buffer.size();
  } catch (const CheckError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(impossible)), std::string::npos) << error.what();
  }
}

TEST(MemoryPool, PiecesLieApartAndComeBackTogether) {
  MemoryPool pool(1024, Place::host);
  {
    const Buffer one(1, pool);
    Buffer other(300, pool);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(other.data()) - reinterpret_cast<uintptr_t>(one.data()), 256u);
    EXPECT_EQ(other.size(), 300u);
    EXPECT_EQ(pool.left(), 256u);
    Buffer moved(std::move(other));
    moved = Buffer();
    EXPECT_EQ(pool.left(), 256u) << "one piece is still out";
    EXPECT_THROW(Buffer(257, pool), CheckError);
  }
  EXPECT_EQ(pool.left(), 1024u);
  EXPECT_EQ(Buffer(1024, pool).size(), 1024u);
}

TEST(MemoryPool, ABufferOfNothingTakesNothing) {
  MemoryPool pool(256, Place::host);
  const Buffer nothing(0, pool);
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_EQ(pool.left(), 256u);
}

}  // namespace
}  // namespace quire
