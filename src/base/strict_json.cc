#include "base/strict_json.h"

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

using Event = nlohmann::detail::parse_event_t;  // of every kind of JSON

// Follows the parser and throws as soon as the text breaks a rule.
class Rules {
 public:
  explicit Rules(const JsonLimits& limits) : limits_(limits) {}

  template <class Json>
  void see(Event event, const Json& parsed) {
    if (event == Event::object_start || event == Event::array_start) open();
    if (event == Event::object_end || event == Event::array_end) keys_.pop_back();
    if (event == Event::key) add_key(parsed.template get_ref<const std::string&>());
    if (event == Event::value) count();
  }

 private:
  void open() {
    count();
    keys_.emplace_back();
    check(std::ssize(keys_) <= limits_.depth, "the JSON is nested deeper than ", limits_.depth);
  }

  void add_key(const std::string& key) {
    if (!keys_.back().insert(key).second) throw CheckError(cat("the key ", in_quotes(key), " occurs twice"));
    check(std::ssize(keys_.back()) <= limits_.keys, "an object of the JSON has more than ", limits_.keys, " keys");
  }

  void count() { check(++values_ <= limits_.values, "the JSON has more than ", limits_.values, " values"); }

  const JsonLimits limits_;
  int64_t values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of every object that is open; arrays have none
};

// The library begins its texts with a code of its own in brackets.
std::string_view without_code(std::string_view what) {
  const size_t end = what.starts_with('[') ? what.find("] ") : what.npos;
  return end == what.npos ? what : what.substr(end + 2);
}

template <class Json>
Json parse(std::string_view text, const JsonLimits& limits) {
  Rules rules(limits);
  const auto follow = [&](int, Event event, Json& parsed) {
    rules.see(event, parsed);
    return true;
  };
  try {
    Json parsed = Json::parse(text, follow);
    check(parsed.is_object(), "the JSON is not an object but ", parsed.type_name());
    return parsed;
  } catch (const typename Json::exception& error) {
    throw CheckError(cat("not JSON: ", in_quotes(without_code(error.what()), 200)));
  }
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
