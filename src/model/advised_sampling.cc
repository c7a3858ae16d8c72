#include "model/advised_sampling.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/strict_json.h"
#include "model/keys.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;

ops::SamplingParams with_advice(ops::SamplingParams params, const Keys& keys) {
  const auto take = [&](float& param, Key key) { param = static_cast<float>(keys.number_or(key, param)); };
  take(params.temperature, {"temperature", "temp"});
  take(params.top_p, {"top_p", "top_p"});
  take(params.min_p, {"min_p", "min_p"});
  take(params.repetition_penalty, {"repetition_penalty", "penalty_repeat"});
  const double top_k = keys.number_or({"top_k", "top_k"}, params.top_k);
  errors_about(keys.path(), [&] {
    check(top_k == std::floor(top_k) && std::abs(top_k) <= std::numeric_limits<int32_t>::max(), "top_k is ", top_k);
    params.top_k = static_cast<int32_t>(top_k);
    ops::check_sampling(params, std::numeric_limits<int32_t>::max());
  });
  return params;
}

ops::SamplingParams from_gguf(const std::string& path, const ops::SamplingParams& otherwise) {
  const GgufFile file(path);
  return with_advice(otherwise, {file, "general.sampling."});
}

ops::SamplingParams from_folder(const fs::path& folder, const ops::SamplingParams& otherwise) {
  constexpr size_t kMostFileBytes = 1 << 20;
  constexpr int kMostDepth = 16;
  const fs::path path = folder / "generation_config.json";
  if (!fs::exists(path)) return otherwise;
  const nlohmann::json parsed = read_json_file(path.string(), kMostFileBytes, kMostDepth);
  return with_advice(otherwise, {parsed, path.string()});
}

bool is_same(const ops::SamplingParams& one, const ops::SamplingParams& other) {
  return one.temperature == other.temperature && one.top_k == other.top_k && one.top_p == other.top_p &&
         one.min_p == other.min_p && one.repetition_penalty == other.repetition_penalty;
}

// A hub's cache has the name in a folder above that of the files.
bool is_named(const fs::path& path, std::string_view one, std::string_view other) {
  return std::any_of(path.begin(), path.end(), [&](const fs::path& part) {
    std::string name = part.string();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name.find(one) != name.npos && name.find(other) != name.npos;
  });
}

ops::SamplingParams from_name(const fs::path& path, ops::SamplingParams otherwise) {
  if (!is_named(path, "smollm2", "instruct")) return otherwise;
  otherwise.temperature = 0.2f;
  otherwise.top_p = 0.9f;
  return otherwise;
}

}  // namespace

ops::SamplingParams advised_sampling(const std::string& path, ops::SamplingParams otherwise) {
  const ops::SamplingParams advised =
      fs::is_directory(path) ? from_folder(path, otherwise) : from_gguf(path, otherwise);
  return is_same(advised, otherwise) ? from_name(path, std::move(otherwise)) : advised;
}

}  // namespace quire::model
