#include "hub/choose_file.h"

#include <algorithm>
#include <iterator>
#include <regex>
#include <tuple>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::hub {
namespace {

using Paths = std::vector<std::string>;

std::string file_name(std::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

std::string in_capitals(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c -= 'a' - 'A';
  return text;
}

bool has(const Paths& paths, std::string_view path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

bool is_gguf(const std::string& path) { return in_capitals(path).ends_with(".GGUF"); }

bool is_part_of_split(const std::string& path) {
  static const std::regex kPart("-\\d{5}-of-\\d{5}\\.gguf$", std::regex::icase);
  return std::regex_search(path, kPart);
}

bool is_no_model(const std::string& path) {
  const std::string name = in_capitals(file_name(path));
  return name.find("MMPROJ") != name.npos || name.find("IMATRIX") != name.npos;
}

// Where a file's type stands in kGgufTypes; past its end: nowhere. A file that names no type may be of any.
size_t rank_of(const std::string& path) {
  const std::string type = gguf_type(path);
  if (type.empty()) return kGgufTypes.size() - 1;
  return static_cast<size_t>(std::find(kGgufTypes.begin(), kGgufTypes.end(), type) - kGgufTypes.begin());
}

Paths filtered(const Paths& paths, bool (*wanted)(const std::string&)) {
  Paths found;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(found), wanted);
  return found;
}

// Some of them, for a line.
std::string shown(const Paths& paths) {
  constexpr size_t kMost = 6;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, paths.size()); ++i) text += cat(i ? ", " : "", in_quotes(paths[i]));
  if (paths.size() > kMost) text += cat(" and ", paths.size() - kMost, " more");
  return text;
}

ModelFiles one_gguf(const std::string& path, size_t of_many) {
  return {.files = {path}, .gguf = path, .of_many = static_cast<int>(of_many)};
}

ModelFiles best_gguf(Paths paths) {
  const size_t many = paths.size();
  const auto worth = [](const std::string& path) { return std::tuple(rank_of(path), path.size(), path); };
  return one_gguf(
      *std::min_element(paths.begin(), paths.end(), [&](const auto& a, const auto& b) { return worth(a) < worth(b); }),
      many);
}

// --- with a wish

ModelFiles named_gguf(const Paths& paths, std::string_view wish) {
  check(is_gguf(std::string(wish)), "has ", in_quotes(wish), ", which is no GGUF file");
  check(!is_part_of_split(std::string(wish)), "has ", in_quotes(wish),
        " as one part of a split file, which quire does not read");
  return one_gguf(*std::find(paths.begin(), paths.end(), wish), 1);
}

ModelFiles wished_gguf(const Paths& paths, std::string_view wish) {
  if (has(paths, wish)) return named_gguf(paths, wish);
  Paths of_type;
  for (const std::string& path : filtered(paths, is_gguf))
    if (gguf_type(path) == in_capitals(std::string(wish)) && !is_no_model(path)) of_type.push_back(path);
  const Paths all = filtered(paths, is_gguf);
  check(!of_type.empty(), "has no file ", in_quotes(wish),
        all.empty() ? ", and no GGUF file at all" : cat("; its GGUF files are ", shown(all)));
  std::erase_if(of_type, is_part_of_split);
  check(!of_type.empty(), "has ", in_quotes(wish), " only as a split file, which quire does not read");
  return best_gguf(of_type);
}

// --- folders

bool is_weights(const std::string& path) { return path.ends_with(".safetensors") && path.find('/') == path.npos; }

Paths weights_of(const Paths& paths) {
  if (has(paths, "model.safetensors")) return {"model.safetensors"};
  if (!has(paths, "model.safetensors.index.json")) return {};
  Paths files = {"model.safetensors.index.json"};
  static const std::regex kShard("model-\\d+-of-\\d+\\.safetensors");
  const auto is_shard = [](const std::string& path) { return std::regex_match(path, kShard); };
  const bool usual = std::any_of(paths.begin(), paths.end(), is_shard);
  for (const std::string& path : paths)
    if (is_weights(path) && (!usual || is_shard(path))) files.push_back(path);
  return files;
}

ModelFiles folder(const Paths& paths) {
  ModelFiles chosen{.files = weights_of(paths)};
  check(!chosen.files.empty(), "has neither a GGUF file nor model.safetensors");
  for (const char* needed : {"config.json", "tokenizer.json"}) {
    check(has(paths, needed), "has no ", needed, ", which quire needs beside the weights");
    chosen.files.insert(chosen.files.begin(), needed);
  }
  for (const char* useful :
       {"generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
    if (has(paths, useful)) chosen.files.insert(chosen.files.begin(), useful);
  return chosen;
}

// Why none of these GGUF files will do.
std::string reason_against(const Paths& ggufs) {
  if (std::all_of(ggufs.begin(), ggufs.end(), is_part_of_split))
    return "has only split GGUF files, which quire does not read";
  return cat("has no GGUF file in a type that quire computes with, but ", shown(ggufs));
}

}  // namespace

std::string gguf_type(std::string_view path) {
  static const std::regex kType(
      "(^|[-._])((UD-)?(I?Q[0-9]_[A-Z0-9_]+|TQ[0-9]_[0-9]|MXFP4[A-Z0-9_]*|BF16|F16|F32|FP16))$");
  std::string stem = in_capitals(file_name(path));
  if (stem.ends_with(".GGUF")) stem.resize(stem.size() - 5);
  static const std::regex kPart("-\\d{5}-OF-\\d{5}$");
  stem = std::regex_replace(stem, kPart, "");
  std::smatch found;
  if (!std::regex_search(stem, found, kType)) return "";
  return found[2] == "FP16" ? "F16" : found[2].str();
}

ModelFiles choose_files(const std::vector<std::string>& paths, std::string_view wish) {
  if (!wish.empty()) return wished_gguf(paths, wish);
  Paths models = filtered(paths, is_gguf);
  std::erase_if(models, is_no_model);
  Paths usable = models;
  std::erase_if(usable, [](const auto& path) { return is_part_of_split(path) || rank_of(path) == kGgufTypes.size(); });
  if (!usable.empty()) return best_gguf(usable);
  check(models.empty() || !weights_of(paths).empty(), reason_against(models));
  return folder(paths);
}

}  // namespace quire::hub
