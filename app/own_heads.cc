#include "own_heads.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// In order of their names.
std::vector<std::string> own_files() {
  std::error_code unreadable;
  const fs::path program = fs::read_symlink("/proc/self/exe", unreadable);
  std::vector<std::string> files;
  fs::directory_iterator entry(program.parent_path().parent_path() / "share/quire/heads", unreadable);
  for (; entry != fs::directory_iterator(); entry.increment(unreadable))
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::optional<model::EagleHead> own_head(const model::Model& model, Exec& exec) {
  for (const std::string& file : own_files()) {
    try {
      return model::EagleHead(file, model, exec);
    } catch (const CheckError&) {  // most often: it is for another model
    }
  }
  return std::nullopt;
}

}  // namespace quire
