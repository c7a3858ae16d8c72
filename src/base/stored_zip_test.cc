#include "base/stored_zip.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>

#include "base/testing/expect_refused.h"
#include "base/testing/torch_file_bytes.h"

namespace quire {
namespace {

std::vector<ZipEntry> read_zip(const std::string& bytes) { return read_stored_zip(std::as_bytes(std::span(bytes))); }

std::string text_of(const ZipEntry& entry) {
  return {reinterpret_cast<const char*>(entry.data.data()), entry.data.size()};
}

class StoredZip : public testing::Test {
 protected:
  StoredZip() {
    zip_.entry("b", "second").entry("a", "first one").entry("empty", "");
    good_ = zip_.str();
  }
  // The file with a number changed.
  template <class T>
  void refuse(size_t at, std::type_identity_t<T> number, const std::string& part) const {
    std::string bytes = good_;
    put<T>(bytes, at, number);
    expect_refused([&] { read_zip(bytes); }, part);
  }

  ZipBytes zip_;
  std::string good_;
};

TEST_F(StoredZip, HasItsEntriesByName) {
  const std::vector<ZipEntry> entries = read_zip(good_);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(text_of(entries[0]), "first one");
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(text_of(entries[1]), "second");
  EXPECT_EQ(reinterpret_cast<const char*>(entries[1].data.data()), good_.data() + zip_.places[0].data);
  EXPECT_EQ(entries[2].data.size(), 0u);
}

TEST_F(StoredZip, WithAndWithoutZip64) {
  for (const bool zip64 : {false, true})
    for (const bool sizes_elsewhere : {false, true}) {
      ZipBytes zip;
      zip.zip64 = zip64;
      zip.sizes_elsewhere = sizes_elsewhere;
      const std::string bytes = zip.entry("x", "data").entry("y", "more").str();
      const std::vector<ZipEntry> entries = read_zip(bytes);
      ASSERT_EQ(entries.size(), 2u);
      EXPECT_EQ(text_of(entries[1]), "more");
    }
  EXPECT_TRUE(read_zip(ZipBytes().str()).empty());
}

// Numbers too large for the old end stand in the other alone.
TEST_F(StoredZip, TheOldEndMayLeaveNumbersToTheOther) {
  std::string bytes = good_;
  put<uint32_t>(bytes, zip_.end + 12, 0xffffffff);
  put<uint32_t>(bytes, zip_.end + 16, 0xffffffff);
  put<uint16_t>(bytes, zip_.end + 8, 0xffff);
  put<uint16_t>(bytes, zip_.end + 10, 0xffff);
  EXPECT_EQ(read_zip(bytes).size(), 3u);
}

TEST_F(StoredZip, EveryCutIsSeen) {
  for (size_t size = 0; size < good_.size(); ++size)
    expect_refused([&] { read_zip(good_.substr(0, size)); }, size < 22 ? "too few for a zip file" : "");
  expect_refused([&] { read_zip(good_ + "x"); }, "has no directory at its end");
}

TEST_F(StoredZip, EndsThatAreNotTrue) {
  refuse<uint32_t>(zip_.end, 0, "no directory at its end");
  refuse<uint16_t>(zip_.end + 4, 1, "is a part of a zip file of several");
  refuse<uint16_t>(zip_.end + 8, 2, "is a part of a zip file of several");
  refuse<uint16_t>(zip_.end + 20, 1, "a comment of 1 bytes");
  refuse<uint32_t>(zip_.end + 12, 7, "two ends of its directory");
  refuse<uint32_t>(zip_.end + 16, 7, "two ends of its directory");
  refuse<uint32_t>(zip_.end64, 0, "has no zip64 end of the directory");
  refuse<uint64_t>(zip_.end64 + 4, std::numeric_limits<uint64_t>::max(), "bytes, not 44");
  refuse<uint32_t>(zip_.end64 + 16, 1, "is a part of a zip file of several");
  refuse<uint64_t>(zip_.end64 + 24, 2, "is a part of a zip file of several");
  refuse<uint64_t>(zip_.end64 + 40, std::numeric_limits<uint64_t>::max(), "two ends of its directory");
  refuse<uint64_t>(zip_.end64 + 64, 1, "says that its zip64 end of the directory is at byte 1,");
  refuse<uint32_t>(zip_.end64 + 56, 0, "which does not end at byte");  // no locator: nothing explains the gap
}

TEST_F(StoredZip, DirectoriesThatAreNotThere) {
  ZipBytes zip;
  zip.zip64 = false;
  const std::string good = zip.entry("a", "data").str();
  const auto refuse_end = [&](size_t field, uint32_t number, const std::string& part) {
    std::string bytes = good;
    put<uint32_t>(bytes, zip.end + field, number);
    expect_refused([&] { read_zip(bytes); }, part);
  };
  refuse_end(12, 0xffffffff, "has a directory of 4294967295 bytes");
  refuse_end(16, 0xffffffff, "bytes at byte 4294967295, which does not end at byte");
  refuse_end(12, static_cast<uint32_t>(zip.end - zip.directory - 1), "which does not end at byte");
  refuse_end(8, 0x00020002, "has 1 entries in its directory, and says 2");
  std::string huge = good;
  put<uint16_t>(huge, zip.end + 8, 0xffff);
  put<uint16_t>(huge, zip.end + 10, 0xffff);
  expect_refused([&] { read_zip(huge); }, "says 65535");
}

TEST_F(StoredZip, EntriesThatAreNotTrue) {
  const size_t listed = zip_.places[1].listed;
  refuse<uint32_t>(listed, 0, "has no entry of the directory where one must be");
  refuse<uint16_t>(listed + 8, 0x809, "entry \"a\": is encrypted");
  refuse<uint16_t>(listed + 8, 0x2000, "entry \"a\": has flags 8192");
  refuse<uint16_t>(listed + 10, 8, "entry \"a\": is compressed (method 8)");
  refuse<uint32_t>(listed + 20, 8, "entry \"a\": is stored, and takes 8 bytes for 9");
  refuse<uint16_t>(listed + 28, 0xffff, "the name of an entry of 65535 bytes");
  refuse<uint16_t>(listed + 30, 0xffff, "extra fields of an entry of 65535 bytes");
  refuse<uint16_t>(listed + 32, 0xffff, "the comment of an entry of 65535 bytes");
  refuse<uint16_t>(listed + 34, 1, "another part of a zip file");
  refuse<uint32_t>(listed + 42, 0xffffffff, "entry \"a\": has its header at byte 4294967295, and the entries end at");
  refuse<uint32_t>(listed + 42, static_cast<uint32_t>(zip_.places[0].header), "overlap");
  refuse<uint32_t>(listed + 42, static_cast<uint32_t>(zip_.places[1].header + 1), "has no header where one must be");
  refuse<uint8_t>(listed + 46, 'b', "entry \"b\": has another name in its header, \"a\"");
}

TEST_F(StoredZip, SizesThatAreNotTrue) {
  std::string bytes = good_;
  for (const size_t field : {20, 24}) put<uint32_t>(bytes, zip_.places[0].listed + field, 100);
  expect_refused([&] { read_zip(bytes); }, "entry \"a\": begins at byte");
  for (const size_t field : {20, 24}) put<uint32_t>(bytes, zip_.places[0].listed + field, 0x7fffffff);
  expect_refused([&] { read_zip(bytes); }, "entry \"b\": has 2147483647 bytes from byte 64 on, and the entries end at");
  refuse<uint32_t>(zip_.places[0].header + 18, 5, "entry \"b\": has 5 bytes by its header, and 6 by the directory");
  refuse<uint16_t>(zip_.places[0].header + 8, 8, "entry \"b\": is compressed (method 8)");
  refuse<uint16_t>(zip_.places[0].header + 28, 0xffff, "extra fields of the header of 65535 bytes");
  refuse<uint16_t>(zip_.places[0].header + 26, 0xffff, "the name in the header of 65535 bytes");
}

TEST_F(StoredZip, Zip64FieldsThatAreNotTrue) {
  ZipBytes zip;
  zip.sizes_elsewhere = true;
  const std::string good = zip.entry("a", "data").str();
  const size_t field = zip.places[0].listed + 47;
  const auto change = [&](size_t at, auto number, const std::string& part) {
    std::string bytes = good;
    put<decltype(number)>(bytes, at, number);
    expect_refused([&] { read_zip(bytes); }, part);
  };
  constexpr auto kMost = std::numeric_limits<uint64_t>::max();
  change(field, uint16_t{9}, "has its header at byte 4294967295");  // another field: nothing has the numbers
  change(field + 2, uint16_t{8}, "zip64 field of 8 bytes at byte 8 goes past the end");
  change(field + 2, uint16_t{25}, "extra field of 25 bytes at byte 4 goes past the end, 24 are left");
  change(field + 4, kMost, "takes 4 bytes for 18446744073709551615");
  change(field + 20, kMost, "has its header at byte 18446744073709551615");
  std::string bytes = good;
  for (const size_t i : {4, 12}) put<uint64_t>(bytes, field + i, kMost);
  expect_refused([&] { read_zip(bytes); }, "has 18446744073709551615 bytes from byte");
}

TEST_F(StoredZip, NamesThatOccurTwice) {
  ZipBytes zip;
  expect_refused([&] { read_zip(zip.entry("a", "1").entry("a", "2").str()); }, "has two entries \"a\"");
}

// Whatever bytes change, it is read or refused, and what is read lies in the file.
TEST_F(StoredZip, AnyDamage) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good_;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      for (const ZipEntry& entry : read_zip(bytes)) {
        const auto* begin = reinterpret_cast<const char*>(entry.data.data());
        EXPECT_GE(begin, bytes.data());
        EXPECT_LE(begin + entry.data.size(), bytes.data() + bytes.size());
      }
    } catch (const CheckError&) {
    }
  }
}

}  // namespace
}  // namespace quire
