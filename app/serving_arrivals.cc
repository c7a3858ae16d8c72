#include "serving_arrivals.h"

#include <algorithm>
#include <cmath>

namespace quire::bench {

std::optional<Arrivals::Time> Arrivals::due(Time now) {
  if (exhausted(now) || (options_.rate > 0 && next_ > now)) return {};
  ++begun_;
  if (options_.rate <= 0) return now;
  const Time arrival = next_;
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
  const std::chrono::duration<double> gap(-std::log1p(-uniform) / options_.rate);
  next_ += std::chrono::duration_cast<Time::duration>(gap);
  return arrival;
}

bool Arrivals::exhausted(Time now) const {
  const Time moment = options_.rate > 0 ? next_ : now;
  return (options_.requests > 0 && begun_ >= options_.requests) ||
         (options_.seconds > 0 && moment - begin_ >= std::chrono::duration<double>(options_.seconds));
}

}  // namespace quire::bench
