#include <cmath>

#include "ops/by_row.h"
#include "ops/rope.h"

namespace quire::ops {
namespace {

struct AnglesOp {
  RopeAnglesArgs args;

  void run_row(int64_t row) const {
    const double position = args.positions[row];
    for (int32_t i = 0; i < args.half; ++i) {
      const double angle = position * args.inverse_frequency[i];
      args.cos[row * args.half + i] = static_cast<float>(std::cos(angle) * args.magnitude);
      args.sin[row * args.half + i] = static_cast<float>(std::sin(angle) * args.magnitude);
    }
  }
};

// A cosine and a sine take the time of many of the other operations' elements.
constexpr int64_t kElementsPerAngle = 64;

}  // namespace

void rope_angles(const RopeAnglesArgs& args, Exec& exec) {
  check(args.half >= 0, "rope angles for ", args.half, " pairs");
  check(args.half == 0 || (args.inverse_frequency && args.cos && args.sin && args.positions),
        "rope angles need the addresses of positions, frequencies, cosines and sines");
  check(std::isfinite(args.magnitude), "rope angles with a magnitude of ", args.magnitude);
  check_live_rows("rope angles", args.live_rows, std::numeric_limits<int32_t>::max(), exec);
  launch_by_row(ByRow<AnglesOp>{{args}, args.live_rows, rows_worth_an_item(args.half * kElementsPerAngle)}, exec);
}

}  // namespace quire::ops
