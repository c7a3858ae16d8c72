#include "serve/metrics_text.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/utf8.h"

namespace quire::serve {

namespace {

std::string label(std::string_view name, std::string_view value) {
  std::string text = cat(name, "=\"");
  for (const char c : repaired_utf8(value)) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text + '"';
}

}  // namespace

std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::trunc(value) == value && std::abs(value) < 1e15) return std::to_string(static_cast<int64_t>(value));
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

MetricsText::MetricsText(std::string_view model_name) : model_label_(label("model_name", model_name)) {}

void MetricsText::begin(std::string_view name, std::string_view type, std::string_view help) {
  text_ += cat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void MetricsText::series(std::string_view name, const Labels& labels, double value) {
  text_ += cat(name, "{", model_label_);
  for (const auto& [key, held] : labels) text_ += cat(",", label(key, held));
  text_ += cat("} ", metric_number(value), "\n");
}

void MetricsText::counter(std::string_view name, std::string_view help, double value) {
  begin(name, "counter", help);
  series(name, {}, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value) {
  begin(name, "gauge", help);
  series(name, {}, value);
}

void MetricsText::histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
  begin(name, "histogram", help);
  const Histogram::Reading reading = histogram.read();
  for (size_t i = 0; i < reading.up_to.size(); ++i) {
    const bool last = i == histogram.bounds().size();
    const double bound = last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i];
    series(cat(name, "_bucket"), {{"le", metric_number(bound)}}, static_cast<double>(reading.up_to[i]));
  }
  series(cat(name, "_sum"), {}, reading.sum);
  series(cat(name, "_count"), {}, static_cast<double>(reading.up_to.back()));
}

}  // namespace quire::serve
