// What the server counts, under SGLang's names, in Prometheus' text format.
//
// Recorded from io threads (the service), read by /metrics. Gauges come from the engine when they are read, and those
// of a GPU, where one computes, from the GPU.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/cuda.h"
#include "engine/engine.h"

namespace quire::serve {

class Metrics {
 public:
  explicit Metrics(std::string model_name);  // the label of every series
  ~Metrics();

  // By the service, for each job.
  void request_started();
  void first_token(double seconds_since_request, double queued_seconds);
  void inter_token(double seconds, int32_t tokens);  // that came together after that time
  void request_ended(double seconds, int32_t prompt_tokens, int32_t cached_tokens, int32_t generated, bool aborted);
  void http_answer(const std::string& path, int status);  // by the routes

  std::string exposition(const engine::EngineStats& stats, const std::optional<cuda::Memory>& gpu = {}) const;
  double tokens_per_second() const;  // generated, over the last seconds

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::serve
