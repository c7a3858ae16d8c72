#include "base/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/safetensors_file.h"
#include "base/strict_json.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMostIndexBytes = 100'000'000;
// The map has two levels; the metadata beside it is free in form.
constexpr JsonLimits kIndexLimits{.depth = 8, .keys = 500'000, .values = 1'000'000};

// Which file holds which tensor.
using WeightMap = std::map<std::string, std::string>;

// A plain name cannot lead out of the folder.
void check_plain(const std::string& file) {
  const bool is_plain = !file.empty() && file != "." && file.find('/') == std::string::npos &&
                        file.find('\0') == std::string::npos && file.find("..") == std::string::npos;
  check(is_plain, "weight_map names the file ", in_quotes(file), ", which is not a plain name");
}

WeightMap weight_map_of(const json& index) {
  const auto found = index.find("weight_map");
  check(found != index.end() && found->is_object(), "has no object weight_map");
  check(!found->empty(), "has an empty weight_map");
  WeightMap map;
  for (const auto& [tensor, file] : found->items()) {
    check(file.is_string(), "weight_map: ", in_quotes(tensor), " is not a file name but ", file.type_name());
    check_plain(file.get_ref<const std::string&>());
    map.emplace(tensor, file.get<std::string>());
  }
  return map;
}

WeightMap read_index(const std::string& path) {
  const json index = read_json_file(path, kMostIndexBytes, kIndexLimits);
  return errors_about(path, [&] { return weight_map_of(index); });
}

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

bool exists(const std::string& path) {
  std::error_code unreadable;  // counts as not there
  return fs::exists(path, unreadable);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) {
  std::error_code unreadable;
  check(fs::is_directory(folder, unreadable), folder, ": is not a folder");
  if (exists(fs::path(folder) / kSingleFile))
    add_files(folder, {kSingleFile});
  else
    add_shards(folder);
}

void SafetensorsFolder::add_shards(const std::string& folder) {
  const std::string index_path = fs::path(folder) / kIndexFile;
  check(exists(index_path), folder, ": has neither ", kSingleFile, " nor ", kIndexFile);
  const WeightMap map = read_index(index_path);
  std::set<std::string> shards;
  for (const auto& [name, file] : map) shards.insert(file);
  add_files(folder, shards);
  for (const auto& [name, file] : map) {
    const FileTensor* found = tensor(name);
    const auto place = static_cast<size_t>(std::distance(shards.begin(), shards.find(file)));
    check(found && is_inside(found->data, files_[place].bytes()), index_path, ": says that ", in_quotes(name),
          " is in ", in_quotes(file), ", where it is not");
  }
}

void SafetensorsFolder::add_files(const std::string& folder, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = fs::path(folder) / name;
    files_.emplace_back(path);
    std::vector<FileTensor> added = errors_about(path, [&] { return read_safetensors(files_.back().bytes()); });
    std::move(added.begin(), added.end(), std::back_inserter(tensors_));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors_.end()) throw CheckError(cat(folder, ": tensor ", in_quotes(twice->name), " is in two files"));
}

const FileTensor* SafetensorsFolder::tensor(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const FileTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace quire
