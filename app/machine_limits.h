// What this machine can do at most, measured and not looked up: bytes read from memory and products computed, by all
// threads of a team. Sampled again and again between the lines that are held against it, because the speed of a
// shared machine drifts: a limit and a line that are minutes apart cannot be compared.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/exec.h"
#include "peak.h"

namespace quire::bench {

struct IsaPeak {
  Isa isa;
  double flops;  // a second; operations on bytes where those were sampled
};

struct MachineLimits {
  std::string cpu;
  int threads;
  Isa isa;            // the best that works here
  double read_bytes;  // a second, from memory
  std::vector<IsaPeak> peaks;

  double peak(Isa wanted) const;  // throws CheckError when it was not measured
};
std::string to_string(const MachineLimits& limits);  // one line

// How long the work takes at best: its bytes at full bandwidth or its operations at full speed, whichever is longer.
struct Work {
  double bytes;
  double flops;
};
double limit_seconds(const Work& work, const MachineLimits& limits, Isa isa);

enum class Products { floats, bytes };

class LimitSampler {
 public:
  // Takes the first sample.
  LimitSampler(Exec& exec, std::span<const Isa> isas, Products of = Products::floats);
  void sample();
  MachineLimits limits() const;  // medians

 private:
  struct Peak {
    Isa isa;
    ProductLoop* loop;
    int64_t rounds;                // of one item, a fraction of a millisecond
    std::vector<double> measured;  // operations a second
  };
  double sample_read();
  double sample_peak(const Peak& peak);

  Exec& exec_;
  Buffer memory_;
  std::vector<double> read_;  // bytes a second
  std::vector<Peak> peaks_;
};

size_t last_level_cache_bytes();  // 0 when the system does not say

}  // namespace quire::bench
