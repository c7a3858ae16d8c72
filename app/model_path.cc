#include "model_path.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/in_quotes.h"
#include "fetch_display.h"
#include "hub/hub.h"

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

std::string fetched(const hub::ModelName& name, const SayLine& say_line) {
  FetchDisplay display(say_line);
  try {
    return hub::fetch_model(name, hub::settings_from(hub::process_environment), display.events());
  } catch (const hub::NoSuchModel& error) {
    throw BadModel(cat(error.what(), "; and there is no file or folder ", in_quotes(to_string(name)), " here"));
  } catch (const CheckError& error) {
    throw BadModel(error.what());
  }
}

// A path wins over a name.
std::string path_or_name(const std::string& given, const SayLine& say_line) {
  std::error_code missing;
  if (fs::exists(given, missing)) return given;
  if (const auto name = hub::parse_model_name(given)) return fetched(*name, say_line);
  throw BadModel(cat(in_quotes(given, 400),
                     ": there is no such file or folder, and it is no model's name either, "
                     "which would be ORG/NAME or ORG/NAME:FILE.gguf"));
}

// --- what is at a path

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

std::string model_path(const std::string& given, const SayLine& say_line) {
  if (!given.empty()) return path_or_name(given, say_line);
  if (const std::string named = environment("QUIRE_MODEL"); !named.empty()) return path_or_name(named, say_line);
  const fs::path cached = cache_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code ignored;
  check(fs::is_regular_file(cached, ignored),
        "no model: name one with --model PATH, or start quire through ./run, which fetches a small one");
  return cached;
}

void check_model(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check(fs::exists(status), path, ": no model is there: ", error.message());
  if (fs::is_directory(status)) return check_folder(path);
  check(fs::is_regular_file(status), path, ": is neither a file nor a folder");
  check_file(path);
}

}  // namespace quire
