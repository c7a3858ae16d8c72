// What a load showed, in figures: how many tokens a second came out, and how long each kind of waiting was.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report.h"
#include "serving_client.h"

namespace quire::bench {

struct Waiting {  // seconds
  double median, p99;
};

struct ServingFigures {
  int64_t requests, failed;
  double seconds;
  int64_t prompt_tokens, cached_tokens, output_tokens;
  std::optional<Waiting> first_token, inter_token, request;  // of requests that went well; none when there are none
  std::string first_error;                                   // "" when none failed

  double tokens_per_second() const { return static_cast<double>(output_tokens) / seconds; }
};

ServingFigures figures_of(const LoadOutcome& outcome);

// NAME/output (the time of the whole run, with its tokens a second), NAME/first_token, NAME/first_token/p99 and so on.
std::vector<Result> results_of(const ServingFigures& figures, const std::string& name);

// At least one value; a value that so many of a hundred do not exceed.
double percentile(std::vector<double> values, double percent);

}  // namespace quire::bench
