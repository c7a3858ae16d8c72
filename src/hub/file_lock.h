// A lock between processes: held while the object lives, given up by the system when a process dies. The same kind that
// Hugging Face's programs take (flock on a file that stays).
//
// Errors   CheckError, one line with the path: a lock file that cannot be made.
#pragma once
#include <filesystem>
#include <functional>

namespace quire::hub {

class FileLock {
 public:
  // on_wait is called once, if another process has the lock.
  FileLock(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace quire::hub
