#include "serving_figures.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "timing.h"

namespace quire::bench {
namespace {

std::optional<Waiting> waiting_of(const std::vector<double>& seconds) {
  if (seconds.empty()) return {};
  return Waiting{median(seconds), percentile(seconds, 99)};
}

void add_results(const std::string& name, const std::optional<Waiting>& waiting, std::vector<Result>& results) {
  if (!waiting) return;
  const auto add = [&](const std::string& line, double seconds) {
    results.push_back({.name = line, .median_us = seconds * 1e6, .limit_us = {}, .gbps = {}, .tflops = {}});
  };
  add(name, waiting->median);
  add(name + "/p99", waiting->p99);
}

}  // namespace

double percentile(std::vector<double> values, double percent) {
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
  const auto chosen = values.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), chosen, values.end());
  return *chosen;
}

ServingFigures figures_of(const LoadOutcome& outcome) {
  ServingFigures figures{};
  figures.requests = std::ssize(outcome.requests);
  figures.seconds = outcome.seconds;
  std::vector<double> first, gaps, total;
  for (const RequestOutcome& request : outcome.requests) {
    if (!request.error.empty() || request.status != 200) {
      if (figures.failed++ == 0)
        figures.first_error = cat(request.status == 0 ? "" : cat("status ", request.status, ", "), request.error);
      continue;
    }
    figures.prompt_tokens += request.prompt_tokens;
    figures.cached_tokens += request.cached_tokens;
    figures.output_tokens += request.output_tokens;
    first.push_back(request.first_seconds);
    total.push_back(request.total_seconds);
    gaps.insert(gaps.end(), request.gaps.begin(), request.gaps.end());
  }
  figures.first_token = waiting_of(first);
  figures.inter_token = waiting_of(gaps);
  figures.request = waiting_of(total);
  return figures;
}

std::vector<Result> results_of(const ServingFigures& figures, const std::string& name) {
  std::vector<Result> results = {{.name = name + "/output",
                                  .median_us = figures.seconds * 1e6,
                                  .limit_us = {},
                                  .gbps = {},
                                  .tflops = {},
                                  .tokens_per_s = figures.tokens_per_second()}};
  add_results(name + "/first_token", figures.first_token, results);
  add_results(name + "/inter_token", figures.inter_token, results);
  add_results(name + "/request", figures.request, results);
  return results;
}

}  // namespace quire::bench
