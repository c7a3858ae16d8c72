#include "model_path.h"

#include <cstdlib>
#include <filesystem>

#include "base/check.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

fs::path cache_folder() {
  if (const std::string own = environment("QUIRE_CACHE"); !own.empty()) return own;
  if (const std::string users = environment("XDG_CACHE_HOME"); !users.empty()) return fs::path(users) / "quire";
  return fs::path(environment("HOME")) / ".cache" / "quire";
}

}  // namespace

std::string model_path(const std::string& given) {
  if (!given.empty()) return given;
  if (const std::string named = environment("QUIRE_MODEL"); !named.empty()) return named;
  const fs::path cached = cache_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code ignored;
  check(fs::is_regular_file(cached, ignored),
        "no model: name one with --model PATH, or start quire through ./run, which fetches a small one");
  return cached;
}

}  // namespace quire
