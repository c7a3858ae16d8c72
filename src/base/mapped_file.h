// A file's bytes, mapped read-only. Pages become resident when they are read, and can be handed back.
//
// Memory   one mapping, at a fixed address for as long as the object or what it was moved to lives. The file must not
//          be shortened meanwhile: the system ends a process that reads a mapped page which the file no longer has.
// Errors   CheckError "PATH: reason": what cannot be opened, and what is no regular file.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace quire {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Tells the system that these bytes (of this file) are not needed soon: they stop counting as this process's memory
  // and come back from the page cache when they are read again. Pages that hold other bytes too are kept.
  void forget(std::span<const std::byte> part) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace quire
