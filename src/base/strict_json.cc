#include "base/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

using nlohmann::json;

// Follows the parser and throws as soon as the text breaks a rule.
class Rules {
 public:
  explicit Rules(int most_depth) : most_depth_(most_depth) {}

  void see(json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) open();
    if (event == Event::object_end || event == Event::array_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) throw CheckError(cat("the key ", in_quotes(key), " occurs twice"));
    }
  }

 private:
  void open() {
    keys_.emplace_back();
    check(std::ssize(keys_) <= most_depth_, "the JSON is nested deeper than ", most_depth_);
  }

  int most_depth_;
  std::vector<std::set<std::string>> keys_;  // of every object that is open; arrays have none
};

}  // namespace

json parse_strict_json(std::string_view text, int most_depth) {
  Rules rules(most_depth);
  const auto follow = [&](int, json::parse_event_t event, json& parsed) {
    rules.see(event, parsed);
    return true;
  };
  try {
    json parsed = json::parse(text, follow);
    check(parsed.is_object(), "the JSON is not an object but ", parsed.type_name());
    return parsed;
  } catch (const json::exception& error) {
    throw CheckError(cat("not JSON: ", in_quotes(error.what(), 200)));
  }
}

}  // namespace quire
