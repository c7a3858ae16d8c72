// Files that people name, read whole.
//
// Errors   CheckError, one line with the path and the system's reason; a folder is no file, and a file may be too long.
#pragma once
#include <cstddef>
#include <string>

namespace quire {

std::string read_file(const std::string& path, const char* what = "file");               // what: how the error calls it
std::string read_input(const std::string& path, size_t most_bytes = size_t{256} << 20);  // "-": standard input

}  // namespace quire
