// The entries of a zip file that are stored as they are, so that they can be used where they are mapped.
//
//   [ header of entry 0, its bytes | header of entry 1, its bytes | ... | directory | zip64 end, its locator | end ]
//
// The directory is what counts, as for every reader of zip files: entries are what it lists, and as long as it says
// (also by zip64 fields). Nothing is trusted: every offset, length and count is checked against the file, a header must
// be the one that the directory means, and entries that overlap, are compressed or encrypted, or have one name, are
// refused. Checksums are not looked at. Time and memory are in proportion to the directory.
//
// Memory   data are views into the file.
// Errors   CheckError: what is wrong with the file, whose path the caller adds.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace quire {

struct ZipEntry {
  std::string name;
  std::span<const std::byte> data;
};

std::vector<ZipEntry> read_stored_zip(std::span<const std::byte> file);  // sorted by name

}  // namespace quire
