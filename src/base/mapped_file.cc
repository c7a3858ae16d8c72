#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

class Descriptor {
 public:
  // Without O_NONBLOCK a pipe that nobody writes to would hold the caller up before it can be refused.
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    check(fd_ >= 0, path, ": ", std::strerror(errno));
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

size_t size_of_regular_file(const Descriptor& file, const std::string& path) {
  struct stat about;
  check(fstat(file.get(), &about) == 0, path, ": ", std::strerror(errno));
  check(!S_ISDIR(about.st_mode), path, ": is a folder, not a file");
  check(S_ISREG(about.st_mode), path, ": is not a regular file");
  return static_cast<size_t>(about.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(path);
  const size_t size = size_of_regular_file(file, path);
  if (size == 0) return;  // the system maps no empty ranges
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check(mapped != MAP_FAILED, path, ": cannot map ", size, " bytes: ", std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(mapped), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(path_, taken.path_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

void MappedFile::forget(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto first = reinterpret_cast<uintptr_t>(part.data()), end = first + part.size();
  const auto own = reinterpret_cast<uintptr_t>(bytes_.data());
  check(first >= own && end <= own + bytes_.size(), path_, ": asked to forget bytes of another file");
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first_page = (first + page - 1) / page * page, end_page = end / page * page;
  // Only advice: the pages are read-only and clean, so nothing is lost and nothing breaks when it is refused.
  if (first_page < end_page) madvise(reinterpret_cast<void*>(first_page), end_page - first_page, MADV_DONTNEED);
}

}  // namespace quire
