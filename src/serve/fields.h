// The fields of a JSON object from outside, read once each with their type and range; what nobody read is named as
// ignored or, strictly, refused.
//
//   Ignored ignored;
//   Fields fields(body, "", &ignored);            path "" at the top; fields inside say "stream_options.include_usage"
//   const int n = fields.integer("n", 1, 128).value_or(1);
//   fields.ignore("user");                        accepted, as it has no effect anywhere
//   fields.no_effect("store", "is not done");     unless it is absent, null or false: as if nobody had read it
//   fields.refuse("audio", "audio output is not supported");     400 unless it is absent or null
//   fields.finish();                              what is left is named as ignored or, strictly, a 400 that names it
//
// An absent field and null are the same. Strict are an Ignored that is, and none.
//
// Cost     a field takes time in the logarithm of the object's keys: those of large objects are sorted once.
// Errors   ApiError 400 that names the parameter and says what was expected and what came.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/ignored.h"

namespace quire::serve {

inline constexpr size_t kMostNameBytes = 1024;  // of names, ids and words with few meanings

[[noreturn]] void refuse(const std::string& path, const std::string& why);

class Fields {
 public:
  Fields(const nlohmann::ordered_json& object, std::string path, Ignored* ignored = nullptr);

  bool has(std::string_view name) const;                                         // present and not null
  bool is_there(std::string_view name) const { return object_.contains(name); }  // maybe null
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<std::string> string(std::string_view name, size_t most_bytes);
  // A string or an array of strings, as `stop` may be.
  enum class Nulls : uint8_t { refused, skipped };
  std::vector<std::string> strings(std::string_view name, size_t most, size_t most_bytes_each,
                                   Nulls nulls = Nulls::refused);
  std::vector<int32_t> token_ids(std::string_view name, size_t most);
  const nlohmann::ordered_json* raw(std::string_view name);  // null pointer when absent or null
  const nlohmann::ordered_json& required(std::string_view name);
  std::optional<Fields> object(std::string_view name);

  void ignore(std::string_view name) { raw(name); }
  void no_effect(std::string_view name, std::string_view why);
  void refuse(std::string_view name, std::string_view why);
  void finish() const;

  std::string path_of(std::string_view name) const;
  bool strict() const { return !ignored_ || ignored_->strict(); }
  Ignored* ignored() const { return ignored_; }

 private:
  struct Key {
    std::string_view name;
    const nlohmann::ordered_json* value;
  };
  const nlohmann::ordered_json* find(std::string_view name) const;  // null pointer when absent or null
  void refuse_unread() const;

  const nlohmann::ordered_json& object_;
  std::string path_;
  Ignored* ignored_;
  std::vector<Key> sorted_;  // of a large object, which would look at all its keys for each name
  std::set<std::string, std::less<>> read_;
};

}  // namespace quire::serve
