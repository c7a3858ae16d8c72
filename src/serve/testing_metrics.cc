#include "serve/testing_metrics.h"

#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace quire::serve::testing {

namespace {

using Families = std::map<std::string, MetricFamily>;

class LineReader {
 public:
  explicit LineReader(std::string_view line) : line_(line), rest_(line) {}

  [[noreturn]] void fail(const std::string& why) const { throw std::runtime_error(why + ": " + std::string(line_)); }

  bool skip(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void expect(std::string_view text) {
    if (!skip(text)) fail("expected '" + std::string(text) + "'");
  }
  std::string name(bool colons) {
    size_t end = 0;
    while (end < rest_.size() && is_name_part(rest_[end], colons, end == 0)) ++end;
    if (end == 0) fail("expected a name");
    return take(end);
  }
  std::string quoted() {
    expect("\"");
    std::string text;
    for (;;) {
      if (rest_.empty()) fail("a label's value does not end");
      const char c = take(1)[0];
      if (c == '"') return text;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (skip("\\"))
        text += '\\';
      else if (skip("\""))
        text += '"';
      else if (skip("n"))
        text += '\n';
      else
        fail("an unknown escape");
    }
  }
  double number() {
    const std::string text(rest_);
    if (text == "+Inf") return std::numeric_limits<double>::infinity();
    size_t used = 0;
    const double value = std::stod(text, &used);
    if (used != text.size()) fail("expected a number at the end");
    return value;
  }
  std::string rest() const { return std::string(rest_); }

 private:
  static bool is_name_part(char c, bool colons, bool first) {
    return c == '_' || (colons && c == ':') || std::isalpha(static_cast<unsigned char>(c)) ||
           (!first && std::isdigit(static_cast<unsigned char>(c)));
  }
  std::string take(size_t count) {
    std::string taken(rest_.substr(0, count));
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view line_, rest_;
};

// The family that a series' name belongs to: of a histogram, without what the format appends.
bool belongs(const std::string& series, const std::string& family, const std::string& type) {
  if (type != "histogram") return series == family;
  return series == family + "_bucket" || series == family + "_sum" || series == family + "_count";
}

class MetricsReader {
 public:
  Families read(std::string_view text) {
    if (text.empty() || text.back() != '\n') throw std::runtime_error("the last line does not end");
    while (!text.empty()) {
      const size_t end = text.find('\n');
      read_line(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    for (const auto& [name, family] : families_) {
      if (family.type == "histogram") check_histogram(name, family);
      if (family.type == "counter" && !name.ends_with("_total")) throw std::runtime_error(name + " is a counter");
    }
    return std::move(families_);
  }

 private:
  void read_line(std::string_view text) {
    LineReader line(text);
    if (line.skip("# HELP "))
      begin_family(line);
    else if (line.skip("# TYPE "))
      read_type(line);
    else
      read_series(line);
  }

  void begin_family(LineReader& line) {
    current_ = line.name(true);
    line.expect(" ");
    if (families_.contains(current_)) line.fail("a family comes twice");
    families_[current_].help = line.rest();
    if (line.rest().empty()) line.fail("no help");
  }

  void read_type(LineReader& line) {
    if (line.name(true) != current_) line.fail("the type of another family");
    line.expect(" ");
    std::string& type = families_[current_].type;
    if (!type.empty()) line.fail("a second type");
    type = line.rest();
    if (!std::set<std::string>{"counter", "gauge", "histogram"}.contains(type)) line.fail("an unknown type");
  }

  void read_series(LineReader& line) {
    const std::string name = line.name(true);
    if (current_.empty() || !belongs(name, current_, families_[current_].type)) line.fail("a series of no family");
    LabelMap labels;
    line.expect("{");
    do {
      const std::string label = line.name(false);
      line.expect("=");
      if (!labels.emplace(label, line.quoted()).second) line.fail("a label comes twice");
    } while (line.skip(","));
    line.expect("} ");
    if (!families_[current_].series.emplace(std::pair(name, labels), line.number()).second)
      line.fail("a series comes twice");
  }

  static void check_histogram(const std::string& name, const MetricFamily& family) {
    std::map<LabelMap, std::map<double, double>> buckets;  // by the labels but le: bound, count
    for (const auto& [key, value] : family.series) {
      if (key.first != name + "_bucket") continue;
      LabelMap labels = key.second;
      const std::string bound = labels.extract("le").mapped();
      buckets[labels][bound == "+Inf" ? INFINITY : std::stod(bound)] = value;
    }
    if (buckets.empty()) throw std::runtime_error(name + " has no buckets");
    for (const auto& [labels, counts] : buckets) {
      double before = 0;
      for (const auto& [bound, count] : counts)
        if (count < std::exchange(before, count)) throw std::runtime_error(name + ": a bucket shrinks");
      if (!std::isinf(counts.rbegin()->first)) throw std::runtime_error(name + " has no +Inf");
      if (family.series.at({name + "_count", labels}) != before) throw std::runtime_error(name + ": not its count");
      (void)family.series.at({name + "_sum", labels});
    }
  }

  Families families_;
  std::string current_;
};

}  // namespace

Families parse_metrics(std::string_view text) { return MetricsReader().read(text); }

double metric_value(const Families& families, const std::string& name, const std::string& model) {
  for (const auto& [family, held] : families)
    if (const auto found = held.series.find({name, LabelMap{{"model_name", model}}}); found != held.series.end())
      return found->second;
  throw std::runtime_error("no series " + name);
}

}  // namespace quire::serve::testing
