#include "model_path.h"

#include <cstdlib>
#include <filesystem>

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

}  // namespace quire
