#include "model/advised_sampling.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/gguf.h"
#include "base/mapped_file.h"
#include "base/strict_json.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What a file says of one parameter; none: nothing.
template <class Find>
ops::SamplingParams with_advice(ops::SamplingParams params, const Find& find) {
  const auto take = [&](float& param, const char* in_folder, const char* in_gguf) {
    if (const std::optional<double> value = find(in_folder, in_gguf)) param = static_cast<float>(*value);
  };
  take(params.temperature, "temperature", "general.sampling.temp");
  take(params.top_p, "top_p", "general.sampling.top_p");
  take(params.min_p, "min_p", "general.sampling.min_p");
  take(params.repetition_penalty, "repetition_penalty", "general.sampling.penalty_repeat");
  if (const std::optional<double> top_k = find("top_k", "general.sampling.top_k")) {
    check(*top_k == std::floor(*top_k) && std::abs(*top_k) <= std::numeric_limits<int32_t>::max(), "top_k is ", *top_k);
    params.top_k = static_cast<int32_t>(*top_k);
  }
  ops::check_sampling(params, std::numeric_limits<int32_t>::max());
  return params;
}

ops::SamplingParams from_gguf(const std::string& path, const ops::SamplingParams& otherwise) {
  const GgufFile file(path);
  return errors_about(path, [&] {
    return with_advice(otherwise, [&](const char*, const char* key) {
      return file.has(key) ? std::optional(file.number(key)) : std::nullopt;
    });
  });
}

json parsed(const std::string& path) {
  constexpr size_t kMostFileBytes = 1 << 20;
  constexpr int kMostDepth = 16;
  const MappedFile file(path);
  const auto bytes = file.bytes();
  check(bytes.size() <= kMostFileBytes, bytes.size(), " bytes, more than ", kMostFileBytes);
  return parse_strict_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kMostDepth);
}

ops::SamplingParams from_folder(const fs::path& folder, const ops::SamplingParams& otherwise) {
  const fs::path path = folder / "generation_config.json";
  if (!fs::exists(path)) return otherwise;
  return errors_about(path.string(), [&] {
    const json config = parsed(path);
    return with_advice(otherwise, [&](const char* key, const char*) -> std::optional<double> {
      const auto found = config.find(key);
      if (found == config.end() || found->is_null()) return std::nullopt;
      check(found->is_number(), key, " is no number");
      return found->get<double>();
    });
  });
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
