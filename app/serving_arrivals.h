// When the requests of a load are to begin: one after the other in a closed loop, or at random moments with a rate.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

namespace quire::bench {

struct ArrivalOptions {
  int64_t requests = 64;  // 0: as many as the time allows
  double seconds = 0;     // no request begins after it; 0: no limit
  double rate = 0;        // a second; 0: closed loop
  uint64_t seed = 1;
};

class Arrivals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Arrivals(const ArrivalOptions& options, Time begin)
      : options_(options), begin_(begin), next_(begin), random_(options.seed) {}

  std::optional<Time> due(Time now);  // the moment that the next request was due, if it is
  bool exhausted(Time now) const;     // no more will be due
  int64_t begun() const { return begun_; }
  Time next() const { return next_; }  // with a rate: when the next one is due

 private:
  ArrivalOptions options_;
  Time begin_, next_;
  std::mt19937_64 random_;
  int64_t begun_ = 0;
};

}  // namespace quire::bench
