#include "read_input.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

std::string read_all(std::istream& stream, const std::string& name, size_t most_bytes) {
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (stream.read(block.data(), static_cast<std::streamsize>(block.size())), stream.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(stream.gcount()));
    check(text.size() <= most_bytes, name, " is longer than ", most_bytes, " bytes");
  }
  check(!stream.bad(), name, " cannot be read");
  return text;
}

std::string read_file(const std::string& path, const std::string& name, size_t most_bytes) {
  std::error_code unreadable;  // opening it says what is wrong
  check(!std::filesystem::is_directory(path, unreadable), name, " cannot be read: it is a folder");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), name, " cannot be read: ", std::strerror(errno));
  return read_all(file, name, most_bytes);
}

}  // namespace

std::string read_file(const std::string& path, const char* what) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  return read_file(path, cat("the ", what, " ", path), kMostBytes);
}

std::string read_input(const std::string& path, size_t most_bytes) {
  if (path == "-") return read_all(std::cin, "standard input", most_bytes);
  return read_file(path, cat("the file ", path), most_bytes);
}

}  // namespace quire
