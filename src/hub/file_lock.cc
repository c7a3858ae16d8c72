#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace quire::hub {
namespace {

// False: the file was removed before the lock was had, so that it locks nobody out.
bool lock_file(int descriptor, const std::filesystem::path& path, const std::function<void()>& on_wait) {
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    on_wait();
    while (flock(descriptor, LOCK_EX) != 0)
      check(errno == EINTR, "cannot lock ", path.string(), ": ", std::strerror(errno));
  }  // a file system without locks: as if there were no other process
  struct stat info = {};
  return fstat(descriptor, &info) == 0 && info.st_nlink > 0;
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& path, const std::function<void()>& on_wait) {
  while (true) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    check(descriptor_ >= 0, "cannot write ", path.string(), ": ", std::strerror(errno));
    if (lock_file(descriptor_, path, on_wait)) return;
    close(descriptor_);
  }
}

FileLock::~FileLock() { close(descriptor_); }

}  // namespace quire::hub
