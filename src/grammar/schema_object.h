// One schema of a JSON schema on its way to rules: its keywords, its place in the whole, and which keywords were used.
//
// Whoever enforces a keyword takes it; what nobody took and is no annotation is not enforced. So a keyword cannot be
// forgotten: it is refused or, read loosely, its place is noted.
//
// Errors   Refused that names the keyword and the place.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/refused.h"

namespace quire::grammar {

using Json = nlohmann::ordered_json;

std::string written(const Json& value);        // in one line
bool is_whole(const Json& value);              // a number without a fraction
bool is_annotation(std::string_view keyword);  // which says something about a value, not which values are right

using Places = std::vector<std::string>;  // of keywords, like #/properties/tags/uniqueItems

class SchemaObject {
 public:
  // Of a JSON object. unenforced: where places are noted; null: it is read strictly.
  SchemaObject(const Json& json, std::string path, Places* unenforced);

  const std::string& path() const { return path_; }
  std::string path(std::string_view part) const;
  bool has(const char* keyword) const { return json_.contains(keyword); }

  const Json* take(const char* keyword);        // null: it is not there
  const Json* take_array(const char* keyword);  // of at least one element
  const Json* take_object(const char* keyword);
  const std::string* take_string(const char* keyword);
  std::optional<int32_t> take_count(const char* keyword);  // 0 to kMostRepeats
  Json beside(std::string_view keyword) const;  // the schema without it, its own annotations and its definitions
  void take_all();
  void check_all_taken();

  // This keyword is not enforced: noted or, strictly, refused with that reason.
  template <class... Parts>
  void leave_out(std::string_view keyword, const Parts&... why) {
    if (!unenforced_) fail(why...);
    unenforced_->push_back(path(keyword));
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Refused(cat("the JSON schema: ", parts..., " at ", in_quotes(path_, 200)));
  }

 private:
  const Json& json_;
  std::string path_;
  Places* unenforced_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace quire::grammar
