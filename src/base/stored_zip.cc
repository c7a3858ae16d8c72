#include "base/stored_zip.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "base/byte_reader.h"
#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

using Bytes = std::span<const std::byte>;

constexpr uint32_t kHeader = 0x04034b50, kListed = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint32_t kElsewhere = std::numeric_limits<uint32_t>::max();  // a zip64 field has the number
constexpr uint16_t kElsewhere16 = std::numeric_limits<uint16_t>::max();
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kEncrypted = 1, kSizesFollow = 8, kUtf8Names = 0x800;
constexpr uint64_t kMostDirectoryBytes = 64'000'000;  // an entry takes some three times its bytes there

struct Directory {
  uint64_t entries, size, begin;
};

// As the directory has it.
struct Listed {
  std::string name;
  uint64_t size;
  uint64_t header;  // where its header begins
};

void expect(ByteReader& reader, uint32_t signature, std::string_view what) {
  check(reader.number<uint32_t>(what) == signature, "has no ", what, " where one must be");
}

// --- where the directory lies

bool has_zip64(Bytes file, size_t end) {
  if (end < kLocator64Bytes) return false;
  return ByteReader(file.subspan(end - kLocator64Bytes)).number<uint32_t>("locator") == kLocator64;
}

Directory read_end64(Bytes file, size_t end) {
  constexpr const char* kWhat = "zip64 end of the directory";
  check(end >= kLocator64Bytes + kEnd64Bytes, "has no room for a ", kWhat);
  const size_t begin = end - kLocator64Bytes - kEnd64Bytes;
  ByteReader reader(file.subspan(begin));
  expect(reader, kEnd64, kWhat);
  const auto bytes = reader.number<uint64_t>(kWhat);
  check(bytes == kEnd64Bytes - 12, "has a ", kWhat, " of ", bytes, " bytes, not ", kEnd64Bytes - 12);
  reader.take(4, kWhat);  // versions
  const uint64_t disks = reader.number<uint64_t>(kWhat), here = reader.number<uint64_t>(kWhat);
  Directory directory{};
  directory.entries = reader.number<uint64_t>(kWhat);
  directory.size = reader.number<uint64_t>(kWhat);
  directory.begin = reader.number<uint64_t>(kWhat);
  reader.take(8, "locator");
  const auto said = reader.number<uint64_t>("locator");
  check(said == begin, "says that its ", kWhat, " is at byte ", said, ", and it is at ", begin);
  check(disks == 0 && here == directory.entries && reader.number<uint32_t>("locator") <= 1,
        "is a part of a zip file of several");
  return directory;
}

Directory read_end(Bytes file) {
  constexpr const char* kWhat = "end of the directory";
  check(file.size() >= kEndBytes, "has ", file.size(), " bytes, too few for a zip file");
  const size_t end = file.size() - kEndBytes;
  ByteReader reader(file.subspan(end));
  check(reader.number<uint32_t>(kWhat) == kEnd, "has no directory at its end: it is cut short, or no zip file");
  const auto disks = reader.number<uint32_t>(kWhat);
  const auto here = reader.number<uint16_t>(kWhat), entries = reader.number<uint16_t>(kWhat);
  const auto size = reader.number<uint32_t>(kWhat), begin = reader.number<uint32_t>(kWhat);
  const auto comment = reader.number<uint16_t>(kWhat);
  check(comment == 0, "says that a comment of ", comment, " bytes is behind its end");
  check(disks == 0 && here == entries, "is a part of a zip file of several");
  Directory directory{.entries = entries, .size = size, .begin = begin};
  uint64_t directory_end = end;
  if (has_zip64(file, end)) {
    directory = read_end64(file, end);
    directory_end = end - kLocator64Bytes - kEnd64Bytes;
    const bool same = (entries == kElsewhere16 || entries == directory.entries) &&
                      (size == kElsewhere || size == directory.size) &&
                      (begin == kElsewhere || begin == directory.begin);
    check(same, "has two ends of its directory, which say different things");
  }
  check(directory.begin <= directory_end && directory.size == directory_end - directory.begin, "has a directory of ",
        directory.size, " bytes at byte ", directory.begin, ", which does not end at byte ", directory_end);
  check(directory.size <= kMostDirectoryBytes, "has a directory of ", directory.size, " bytes, more than ",
        kMostDirectoryBytes);
  return directory;
}

// --- what it lists

// Takes the numbers that the zip64 field has for those that are elsewhere, in the fixed order of the field.
void read_zip64(Bytes fields, std::initializer_list<uint64_t*> numbers) {
  ByteReader reader(fields);
  while (reader.left() > 0) {
    const auto id = reader.number<uint16_t>("extra field"), bytes = reader.number<uint16_t>("extra field");
    ByteReader field(reader.take(bytes, "extra field"));
    if (id != kZip64Field) continue;
    for (uint64_t* number : numbers)
      if (*number == kElsewhere) *number = field.number<uint64_t>("zip64 field");
    return;
  }
}

void check_stored(uint16_t flags, uint16_t method) {
  check((flags & kEncrypted) == 0, "is encrypted");
  check(method == 0, "is compressed (method ", method, "); only entries that are stored as they are can be read");
  check((flags & ~(kSizesFollow | kUtf8Names)) == 0, "has flags ", flags, ", which quire does not know");
}

Listed read_listed(ByteReader& reader) {
  constexpr const char* kWhat = "entry of the directory";
  expect(reader, kListed, kWhat);
  reader.take(4, kWhat);  // versions
  const auto flags = reader.number<uint16_t>(kWhat), method = reader.number<uint16_t>(kWhat);
  reader.take(8, kWhat);  // time, checksum
  uint64_t stored = reader.number<uint32_t>(kWhat), size = reader.number<uint32_t>(kWhat);
  const auto name_bytes = reader.number<uint16_t>(kWhat), field_bytes = reader.number<uint16_t>(kWhat),
             comment_bytes = reader.number<uint16_t>(kWhat);
  const auto disk = reader.number<uint16_t>(kWhat);
  reader.take(6, kWhat);  // attributes
  uint64_t header = reader.number<uint32_t>(kWhat);
  const Bytes name = reader.take(name_bytes, "the name of an entry");
  const Bytes fields = reader.take(field_bytes, "extra fields of an entry");
  reader.take(comment_bytes, "the comment of an entry");
  Listed listed{.name = {reinterpret_cast<const char*>(name.data()), name.size()}, .size = 0, .header = 0};
  errors_about(cat("entry ", in_quotes(listed.name)), [&] {
    check_stored(flags, method);
    check(disk == 0, "is in another part of a zip file of several");
    read_zip64(fields, {&size, &stored, &header});
    check(stored == size, "is stored, and takes ", stored, " bytes for ", size);
  });
  listed.size = size;
  listed.header = header;
  return listed;
}

// --- the entries themselves

// Where the bytes begin. Sizes in the header are 0 where they follow behind the bytes.
uint64_t data_begin(Bytes file, const Listed& listed) {
  constexpr const char* kWhat = "header";
  check(listed.header < file.size(), "has its header at byte ", listed.header, ", and the entries end at ",
        file.size());
  ByteReader reader(file.subspan(listed.header));
  expect(reader, kHeader, kWhat);
  reader.take(2, kWhat);  // version
  const auto flags = reader.number<uint16_t>(kWhat), method = reader.number<uint16_t>(kWhat);
  check_stored(flags, method);
  reader.take(8, kWhat);  // time, checksum
  for (int i = 0; i < 2; ++i) {
    const auto size = reader.number<uint32_t>(kWhat);
    const bool same = size == listed.size || size == kElsewhere || ((flags & kSizesFollow) != 0 && size == 0);
    check(same, "has ", size, " bytes by its header, and ", listed.size, " by the directory");
  }
  const auto name_bytes = reader.number<uint16_t>(kWhat), field_bytes = reader.number<uint16_t>(kWhat);
  const Bytes name = reader.take(name_bytes, "the name in the header");
  const std::string_view text{reinterpret_cast<const char*>(name.data()), name.size()};
  check(text == listed.name, "has another name in its header, ", in_quotes(text));
  reader.take(field_bytes, "extra fields of the header");
  return listed.header + reader.position();
}

Bytes data_of(Bytes file, const Listed& listed) {
  const uint64_t begin = data_begin(file, listed);
  check(listed.size <= file.size() - begin, "has ", listed.size, " bytes from byte ", begin,
        " on, and the entries end at ", file.size());
  return file.subspan(begin, listed.size);
}

}  // namespace

std::vector<ZipEntry> read_stored_zip(Bytes file) {
  const Directory directory = read_end(file);
  const Bytes before = file.first(directory.begin);
  ByteReader reader(file.subspan(directory.begin, directory.size));
  std::vector<Listed> all;
  while (reader.left() > 0) all.push_back(read_listed(reader));
  check(all.size() == directory.entries, "has ", all.size(), " entries in its directory, and says ", directory.entries);
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) { return a.header < b.header; });
  std::vector<ZipEntry> entries;
  uint64_t end = 0;
  for (Listed& listed : all) {
    const Bytes data = errors_about(cat("entry ", in_quotes(listed.name)), [&] {
      check(listed.header >= end, "begins at byte ", listed.header, ", and the one before it ends at ", end,
            ": they overlap");
      return data_of(before, listed);
    });
    end = static_cast<uint64_t>(data.data() - file.data()) + data.size();
    entries.push_back({std::move(listed.name), data});
  }
  std::sort(entries.begin(), entries.end(), [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                        [](const ZipEntry& a, const ZipEntry& b) { return a.name == b.name; });
  if (twice != entries.end()) throw CheckError(cat("has two entries ", in_quotes(twice->name)));
  return entries;
}

}  // namespace quire
