#include "text/vocabulary.h"

#include <filesystem>

#include "base/gguf.h"

namespace quire::text {

Vocabulary vocabulary_from_path(const std::string& path) {
  return std::filesystem::is_directory(path) ? vocabulary_from_folder(path) : vocabulary_from_gguf(GgufFile(path));
}

}  // namespace quire::text
