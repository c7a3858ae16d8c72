#include "check_model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// The name of a GGUF file in the folder, the first of them by name; "": there is none.
std::string gguf_in(const fs::path& folder) {
  std::error_code unreadable;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable))
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().filename());
  return names.empty() ? "" : *std::min_element(names.begin(), names.end());
}

void check_folder(const std::string& path) {
  std::error_code unreadable;
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(fs::path(path) / name, unreadable)) return;
  const std::string gguf = gguf_in(path);
  check(gguf.empty(), path, " is not a model folder; a GGUF file is named itself, as in ",
        (fs::path(path) / gguf).string());
  throw CheckError(cat(path, " is not a model folder: it has no config.json"));
}

// What else is wrong with a file is found when it is loaded.
void check_file(const std::string& path) {
  constexpr std::string_view kMagic = "GGUF";
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), path, ": no model is there: ", std::strerror(errno));
  char begin[kMagic.size()] = {};
  const bool whole = static_cast<bool>(file.read(begin, sizeof(begin)));
  check(!whole || std::string_view(begin, sizeof(begin)) == kMagic, path, ": is not a GGUF file: it begins with ",
        in_quotes({begin, sizeof(begin)}));
}

}  // namespace

void check_model(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check(fs::exists(status), path, ": no model is there: ", error.message());
  if (fs::is_directory(status)) return check_folder(path);
  check(fs::is_regular_file(status), path, ": is neither a file nor a folder");
  check_file(path);
}

}  // namespace quire
