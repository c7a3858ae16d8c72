#include "base/strict_json.h"

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

template <class... Parts>
void expect(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw JsonError(cat(parts...));
}

// A key is put behind the others: the rules have seen that it is new, and looking for it among the keys of an ordered
// object would make reading them quadratic.
nlohmann::json& append(nlohmann::json& object, std::string& key) {
  return object.get_ref<nlohmann::json::object_t&>().emplace(std::move(key), nullptr).first->second;
}
nlohmann::ordered_json& append(nlohmann::ordered_json& object, std::string& key) {
  return object.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(std::move(key), nullptr).second;
}

// Hears the parser, builds what it reads, and throws as soon as the text breaks a rule.
template <class Json>
class Builder {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}
  Json take() { return std::move(root_); }

  // What the parser calls.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }  // not in texts
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& key) {
    std::set<std::string>& keys = open_.back().keys;
    if (!keys.insert(key).second) throw JsonError(cat("the key ", in_quotes(key), " occurs twice"));
    expect(std::ssize(keys) <= limits_.keys, "an object of the JSON has more than ", limits_.keys, " keys");
    place_ = &append(*open_.back().value, key);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    throw JsonError(cat("not JSON: ", in_quotes(without_code(error.what()), 200)));
  }

 private:
  struct Open {
    Json* value;                      // stays where it is: what holds it grows only after it is closed
    std::set<std::string> keys = {};  // of an object
  };

  // The library begins its texts with a code of its own in brackets.
  static std::string_view without_code(std::string_view what) {
    const size_t end = what.starts_with('[') ? what.find("] ") : what.npos;
    return end == what.npos ? what : what.substr(end + 2);
  }

  Json& put(Json value) {
    expect(++values_ <= limits_.values, "the JSON has more than ", limits_.values, " values");
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back().value->is_object()) return *place_ = std::move(value);
    return open_.back().value->template get_ref<typename Json::array_t&>().emplace_back(std::move(value));
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    expect(std::ssize(open_) < limits_.depth, "the JSON is nested deeper than ", limits_.depth);
    open_.push_back({&put(std::move(value))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  int64_t values_ = 0;
  Json root_;
  std::vector<Open> open_;
  Json* place_ = nullptr;  // of the newest key's value
};

template <class Json>
Json parse(std::string_view text, const JsonLimits& limits) {
  Builder<Json> builder(limits);
  Json::sax_parse(text, &builder);
  Json parsed = builder.take();
  expect(parsed.is_object(), "the JSON is not an object but ", parsed.type_name());
  return parsed;
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, int most_depth) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  return parse<nlohmann::json>(text, {.depth = most_depth, .keys = kAny, .values = kAny});
}

nlohmann::json parse_strict_json(std::string_view text, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, limits);
}

nlohmann::ordered_json parse_strict_ordered_json(std::string_view text, const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, limits);
}

}  // namespace quire
