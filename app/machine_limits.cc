#include "machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "gather.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr size_t kLeastMemory = size_t{512} << 20;  // far more than any cache of its day keeps
constexpr size_t kReadItem = size_t{1} << 20;

// The fastest that the instruction set has of its kind.
struct Loops {
  ProductLoop *floats, *bytes;
};
Loops loops_of(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return {products_plain, products_plain};
    case Isa::avx2:
      return {products_avx2, bytes_avx2};
    case Isa::avxvnni:
      return {products_avx2, bytes_avxvnni};
    case Isa::avx512:
      return {products_avx512, bytes_avx2};
    case Isa::avx512vnni:
      return {products_avx512, bytes_avx512vnni};
    case Isa::avx512bf16:
      return {products_avx512bf16, bytes_avx512vnni};
    case Isa::amx:
      return {products_amx, bytes_amx};
  }
  return {};
}

ReadLoop* read_loop(Isa isa) {
  if (isa >= Isa::avx512) return read_avx512;
  return isa >= Isa::avx2 ? read_avx2 : read_plain;
}

size_t memory_bytes() {
  const size_t wanted = std::max(kLeastMemory, 4 * last_level_cache_bytes());
  return (wanted + kReadItem - 1) / kReadItem * kReadItem;
}

// As many rounds as make an item short beside a sample and long beside handing it out.
int64_t calibrated_rounds(ProductLoop* loop) {
  constexpr double kItemSeconds = 4e-4;
  constexpr int64_t kTrial = 2000;
  loop(kTrial);  // wakes the wide units
  const double seconds = seconds_of([&] { loop(kTrial); });
  return std::max<int64_t>(kTrial, static_cast<int64_t>(kTrial * kItemSeconds / seconds));
}

}  // namespace

double MachineLimits::peak(Isa wanted) const {
  for (const IsaPeak& peak : peaks)
    if (peak.isa == wanted) return peak.flops;
  throw CheckError(cat("the peak of ", to_string(wanted), " was not measured"));
}

std::string to_string(const MachineLimits& limits) {
  std::string text = cat(limits.cpu, ", ", limits.threads, " threads, ", to_string(limits.isa));
  char part[64];
  std::snprintf(part, sizeof(part), "; reads %.1f GB/s", limits.read_bytes / 1e9);
  text += part;
  for (const IsaPeak& peak : limits.peaks) {
    std::snprintf(part, sizeof(part), ", %s %.0f GFLOP/s", to_string(peak.isa), peak.flops / 1e9);
    text += part;
  }
  return text;
}

double limit_seconds(const Work& work, const MachineLimits& limits, Isa isa) {
  const double reading = work.bytes / limits.read_bytes;
  return work.flops == 0 ? reading : std::max(reading, work.flops / limits.peak(isa));
}

LimitSampler::LimitSampler(Exec& exec, std::span<const Isa> isas, Products of)
    : exec_(exec), memory_(memory_bytes(), Place::host_huge_pages) {
  std::memset(memory_.data(), 1, memory_.size());  // untouched memory is one shared page of zeros and reads too fast
  for (Isa isa : isas) {
    const Loops loops = loops_of(isa);
    ProductLoop* loop = of == Products::bytes ? loops.bytes : loops.floats;
    peaks_.push_back({isa, loop, calibrated_rounds(loop), {}});
  }
  sample();
}

void LimitSampler::sample() {
  read_.push_back(sample_read());
  for (Peak& peak : peaks_) peak.measured.push_back(sample_peak(peak));
}

double LimitSampler::sample_read() {
  ReadLoop* const loop = read_loop(best_isa());
  const auto read_item = [&](int64_t item, int) {
    const uint64_t sum = loop(memory_.data() + static_cast<size_t>(item) * kReadItem, kReadItem);
    asm volatile("" : : "r"(sum));
  };
  gather(exec_);
  const auto items = static_cast<int64_t>(memory_.size() / kReadItem);
  return static_cast<double>(memory_.size()) / seconds_of([&] { exec_.parallel(items, read_item); });
}

double LimitSampler::sample_peak(const Peak& peak) {
  constexpr int64_t kItemsPerThread = 12;
  const int64_t items = kItemsPerThread * exec_.threads();
  const double flops_of_round = peak.loop(1);
  gather(exec_);
  const double seconds = seconds_of([&] { exec_.parallel(items, [&](int64_t, int) { peak.loop(peak.rounds); }); });
  return flops_of_round * static_cast<double>(peak.rounds * items) / seconds;
}

MachineLimits LimitSampler::limits() const {
  MachineLimits limits{cpu_name(), exec_.threads(), best_isa(), median(read_), {}};
  for (const Peak& peak : peaks_) limits.peaks.push_back({peak.isa, median(peak.measured)});
  return limits;
}

size_t last_level_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

}  // namespace quire::bench
