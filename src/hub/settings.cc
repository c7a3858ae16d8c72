#include "hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

// The first of these variables that is set.
std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::string value = environment(name); !value.empty()) return value;
  return "";
}

fs::path with_home(const std::string& path, const Environment& environment) {
  return path.starts_with("~/") ? fs::path(environment("HOME")) / path.substr(2) : fs::path(path);
}

fs::path hub_home(const Environment& environment) {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return with_home(home, environment);
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "huggingface";
  return fs::path(environment("HOME")) / ".cache" / "huggingface";
}

fs::path cache_of(const Environment& environment) {
  const std::string named = first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  return named.empty() ? hub_home(environment) / "hub" : with_home(named, environment);
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string token_of(const Environment& environment) {
  std::string token = first_of(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (token.empty()) {
    const std::string named = environment("HF_TOKEN_PATH");
    std::ifstream file(named.empty() ? hub_home(environment) / "token" : with_home(named, environment));
    std::getline(file, token);  // no file: no token
  }
  token = trimmed(token);
  const auto bad = [](char c) { return c <= ' ' || c >= 0x7f; };
  check(std::none_of(token.begin(), token.end(), bad),
        "the hub's token (HF_TOKEN) has characters that a header cannot carry");
  return token;
}

bool is_true(std::string value) {
  for (char& c : value)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

Url endpoint_of(const Environment& environment) {
  const std::string named = environment("HF_ENDPOINT");
  try {
    Url url = parse_url(named.empty() ? "https://huggingface.co" : named);
    while (url.target.ends_with('/')) url.target.pop_back();
    return url;
  } catch (const CheckError& error) {
    throw CheckError(cat("HF_ENDPOINT: ", error.what()));
  }
}

std::chrono::milliseconds silence_of(const Environment& environment, std::chrono::milliseconds usual) {
  const std::string text = environment("HF_HUB_DOWNLOAD_TIMEOUT");
  if (text.empty()) return usual;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  check(*end == '\0' && seconds > 0 && seconds <= 86400, "HF_HUB_DOWNLOAD_TIMEOUT: ", in_quotes(text),
        " is no number of seconds");
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Settings settings_from(const Environment& environment) {
  Settings settings{.endpoint = endpoint_of(environment),
                    .token = token_of(environment),
                    .cache = cache_of(environment),
                    .offline = is_true(environment("HF_HUB_OFFLINE")),
                    .environment = environment};
  settings.silence = silence_of(environment, settings.silence);
  return settings;
}

}  // namespace quire::hub
