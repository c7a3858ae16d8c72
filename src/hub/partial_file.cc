#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire::hub {
namespace {

constexpr size_t kReadAtOnce = 1 << 20;

[[noreturn]] void fail(const char* doing, const std::filesystem::path& path) {
  throw CheckError(cat("cannot ", doing, " ", path.string(), ": ", std::strerror(errno)));
}

}  // namespace

PartialFile::PartialFile(const std::filesystem::path& path, const std::string& etag, int64_t bytes)
    : path_(path), etag_(etag), bytes_(bytes), digest_(Digest::for_etag(etag, bytes)) {
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("write", path);
  struct stat info = {};
  if (fstat(descriptor_, &info) != 0) fail("read", path);
  if (info.st_size > bytes)
    start_over();
  else
    hash_what_is_there();
}

PartialFile::~PartialFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  if (done_ == 0) unlink(path_.c_str());
}

void PartialFile::hash_what_is_there() {
  std::vector<char> buffer(kReadAtOnce);
  for (ssize_t received; (received = read(descriptor_, buffer.data(), buffer.size())) != 0;) {
    if (received < 0) fail("read", path_);
    if (digest_) digest_->add({buffer.data(), static_cast<size_t>(received)});
    done_ += received;
  }
}

void PartialFile::start_over() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) != 0) fail("write", path_);
  done_ = 0;
  digest_ = Digest::for_etag(etag_, bytes_);
}

void PartialFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path_);
    const std::string_view part = bytes.substr(0, static_cast<size_t>(written));
    if (digest_) digest_->add(part);
    done_ += written;
    bytes.remove_prefix(part.size());
  }
}

// What was written is what was hashed; the file's own size shows whether somebody else wrote to it.
bool PartialFile::is_right() {
  struct stat info = {};
  if (fstat(descriptor_, &info) != 0) fail("read", path_);
  return info.st_size == bytes_ && (!digest_ || digest_->finish() == etag_);
}

void PartialFile::move_to(const std::filesystem::path& place) {
  if (fsync(descriptor_) != 0) fail("write", path_);
  close(std::exchange(descriptor_, -1));
  if (rename(path_.c_str(), place.c_str()) != 0) fail("write", place);
}

void PartialFile::throw_away() {
  close(std::exchange(descriptor_, -1));
  unlink(path_.c_str());
}

}  // namespace quire::hub
