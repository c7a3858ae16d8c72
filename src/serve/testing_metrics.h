// For tests: reads Prometheus' text format, version 0.0.4, and refuses everything that is not exactly in it.
//
// Every family has one HELP and one TYPE before its series and stands in one piece; names and labels are well-formed;
// no series comes twice; a histogram's buckets ascend, do not shrink, and end with +Inf, which is its count.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace quire::serve::testing {

using LabelMap = std::map<std::string, std::string>;

struct MetricFamily {
  std::string help, type;
  std::map<std::pair<std::string, LabelMap>, double> series;  // by the series' own name and labels
};

// Throws std::runtime_error with the line that is wrong.
std::map<std::string, MetricFamily> parse_metrics(std::string_view text);

// The one series of that name with just the model's label.
double metric_value(const std::map<std::string, MetricFamily>& families, const std::string& name,
                    const std::string& model);

}  // namespace quire::serve::testing
