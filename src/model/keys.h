// The keys that describe a model, whichever file has them: an object of config.json, or GGUF metadata. Each is asked
// for by both of its names, with its type and range.
//
// Errors   CheckError that names the file, the key and the value: missing, of another type, out of range.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/gguf.h"

namespace quire::model {

struct Key {
  const char* folder = nullptr;  // in JSON; null: such files have no such key
  const char* gguf = nullptr;    // after the prefix; null likewise
};

class Keys {
 public:
  // Views: what they are made from outlives them.
  Keys(const nlohmann::json& object, std::string path) : object_(&object), path_(std::move(path)) {}
  Keys(const GgufFile& file, std::string prefix) : file_(&file), path_(file.path()), prefix_(std::move(prefix)) {}

  const GgufFile* gguf() const { return file_; }  // null: JSON
  const std::string& path() const { return path_; }
  std::string name(Key key) const { return file_ ? prefix_ + key.gguf : key.folder; }  // as the file spells it
  std::string shown(Key key) const;  // "name = value", for refusals; of a key that the file has

  bool has(Key key) const;  // JSON's null counts as missing
  int32_t count(Key key, int32_t least, int32_t most) const;
  int32_t count_or(Key key, int32_t otherwise, int32_t least, int32_t most) const;
  double number(Key key) const;  // integers too
  double number_or(Key key, double otherwise) const;
  double positive(Key key) const;  // and finite
  double positive_or(Key key, double otherwise) const;
  bool flag_or(Key key, bool otherwise) const;
  std::string text(Key key) const;
  std::string text_or(Key key, std::string_view otherwise) const;

  // JSON only. An array with an element for each layer; longer ones are cut, as Hugging Face's own code does.
  std::vector<nlohmann::json> by_layer(const char* key, int32_t layers) const;
  bool is_null(const char* key) const;
  Keys object(const char* key) const;  // of plain values

  // GGUF only. Refuses a key unless it is missing or zero, which means that the feature is off.
  void refuse(std::string_view key) const;

 private:
  const nlohmann::json* object_ = nullptr;  // one of the two
  const GgufFile* file_ = nullptr;
  std::string path_;
  std::string prefix_;
};

}  // namespace quire::model
