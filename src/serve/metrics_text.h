// Prometheus' text format, version 0.0.4: families of series, each series with the label of the model.
//
//   # HELP sglang:num_running_reqs Requests in the running batch.
//   # TYPE sglang:num_running_reqs gauge
//   sglang:num_running_reqs{model_name="smol"} 3
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/metrics_histogram.h"

namespace quire::serve {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

class MetricsText {
 public:
  explicit MetricsText(std::string_view model_name);

  void counter(std::string_view name, std::string_view help, double value);  // its name ends in _total
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);
  // A family whose series differ in more labels.
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void series(std::string_view name, const Labels& labels, double value);

  std::string take() { return std::move(text_); }

 private:
  std::string model_label_;
  std::string text_;
};

std::string metric_number(double value);  // reads back as the same; whole numbers without an exponent; +Inf, -Inf, NaN

}  // namespace quire::serve
