// The tensors of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json names.
//
// Headers are JSON from outside: size and depth are limited, every offset is checked against the file, ranges that
// overlap or leave gaps, names that occur twice and shards outside the folder are refused. What the index says must be
// true; the tensors are those of all its shards.
//
// Errors   CheckError, one line: "PATH: what is wrong".
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_tensor.h"
#include "base/mapped_file.h"

namespace quire {

class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& folder);

  const std::vector<FileTensor>& tensors() const { return tensors_; }  // F32, F16, BF16, F8_E4M3
  const FileTensor* tensor(std::string_view name) const;               // null: not there
  const std::vector<MappedFile>& files() const { return files_; }

 private:
  void add_shards(const std::string& folder);
  void add_files(const std::string& folder, const std::set<std::string>& names);

  std::vector<MappedFile> files_;    // sorted by name
  std::vector<FileTensor> tensors_;  // sorted by name
};

// One file: the length of a JSON header, the header, and the tensors' bytes back to back, in whose order they come.
// Errors say what is wrong with the file; the caller adds its path.
std::vector<FileTensor> read_safetensors(std::span<const std::byte> file);

// The same with what the header says besides, and with integers, which weights are not.
struct SafetensorsContents {
  std::map<std::string, std::string> metadata;
  std::vector<NamedTensor> tensors;
};
SafetensorsContents read_safetensors_contents(std::span<const std::byte> file);

}  // namespace quire
