#include "short_line.h"

#include "base/check.h"
#include "gather.h"
#include "progress.h"

namespace quire::bench {
namespace {

void calibrate(ShortLine& line) {
  constexpr double kSampleSeconds = 2e-4;
  line.seconds(1);
  const double seconds = line.seconds(8) / 8;
  line.calls = std::clamp<int64_t>(static_cast<int64_t>(kSampleSeconds / seconds), 1, 100000);
}

}  // namespace

void measure(std::vector<ShortLine>& lines, int rounds, LimitSampler& limits, Exec& exec) {
  constexpr int kRoundsPerLimit = 10;
  Progress progress;
  for (ShortLine& line : lines) calibrate(line);
  for (int round = 0; round < rounds; ++round) {
    progress.say(cat(lines.size(), " lines: round ", round + 1, " of ", rounds));
    if (round % kRoundsPerLimit == 0) limits.sample();
    for (ShortLine& line : lines) {
      gather(exec);
      line.samples.push_back(line.seconds(line.calls) / static_cast<double>(line.calls));
    }
  }
}

}  // namespace quire::bench
