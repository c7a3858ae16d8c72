// What the environment says about the hub, in the words of Hugging Face's own programs:
//
//   HF_ENDPOINT                the hub's address; default https://huggingface.co
//   HF_TOKEN                   else HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH, else HF_HOME/token
//   HF_HOME                    default ~/.cache/huggingface (or below XDG_CACHE_HOME)
//   HF_HUB_CACHE               else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub
//   HF_HUB_OFFLINE             1, on, yes or true: what is in the cache and nothing else
//   HF_HUB_DOWNLOAD_TIMEOUT    seconds without a byte after which a transfer counts as broken; default 10
//   https_proxy, http_proxy, no_proxy    as proxy.h says
//
// Errors   CheckError, one line with the variable's name.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/url.h"

namespace quire::hub {

using Environment = std::function<std::string(const char* name)>;  // "": not set
std::string process_environment(const char* name);

struct Settings {
  Url endpoint;
  std::string token;            // "": none
  std::filesystem::path cache;  // the folder of models--ORG--NAME
  bool offline = false;
  std::chrono::milliseconds silence{10'000};
  Environment environment = process_environment;  // for proxies
};
Settings settings_from(const Environment& environment);

}  // namespace quire::hub
