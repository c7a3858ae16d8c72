#include "input_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "base/check.h"

namespace quire::fuzz {
namespace fs = std::filesystem;

InputFile::InputFile() : descriptor_(memfd_create("fuzz", 0)) {
  if (descriptor_ < 0) throw std::runtime_error("no file in memory");
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::set(std::string_view bytes) {
  const auto size = static_cast<ssize_t>(bytes.size());
  const bool done = ftruncate(descriptor_, 0) == 0 && pwrite(descriptor_, bytes.data(), bytes.size(), 0) == size;
  if (!done) throw std::runtime_error("cannot write a file in memory");
}

std::string InputFile::path() const { return cat("/proc/self/fd/", descriptor_); }

InputFolder::InputFolder() : path_(fs::temp_directory_path() / cat("quire_fuzz_", getpid())) {
  fs::create_directories(path_);
}

InputFolder::~InputFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void InputFolder::set(const std::string& name, std::string_view bytes) {
  const auto [file, is_new] = files_.try_emplace(name);
  file->second.set(bytes);
  if (is_new) fs::create_symlink(file->second.path(), fs::path(path_) / name);
}

void InputFolder::remove(const std::string& name) {
  if (files_.erase(name) > 0) fs::remove(fs::path(path_) / name);
}

std::vector<std::string_view> parts_of(std::string_view input, size_t count) {
  constexpr std::string_view kBorder = "\n--\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const size_t end = input.find(kBorder);
    parts.push_back(input.substr(0, end));
    input.remove_prefix(end == input.npos ? input.size() : end + kBorder.size());
  }
  parts.push_back(input);
  return parts;
}

}  // namespace quire::fuzz
