// The last product of a model: rows to the logits of all tokens, at twice the precision where a result can depend on
// it.
//
//   sum[c]      first of the row's two . w[c], as matmul computes it
//   logits[c]   (sum[c] + other of the row's two . w[c]) * scale    in groups of 16 tokens that are within reach: one's
//                                                                   sum is at most reach / scale below the largest
//               sum[c] * scale                                      in all other groups
//
// Who draws from a row says how far that is. Where logits are drawn from as they are, at temperature 1 at most, the
// tokens out of the usual reach have a chance of at most exp(-kUsualReach) of the likeliest's each, known to what 8
// bits leave of a logit (some hundredths), and no error of that size makes one of them the likeliest; so most weights
// meet most rows once, where they would meet them twice. A row's bits depend on the row and its reach alone. A NaN is
// never the largest, and within nobody's reach.
//
// Rows come in the forms of the weights' precise_forms(): dense weights have one product. So have all on a GPU, where
// both of a row's two pass in one reading of the weights, and every logit is precise.
//
// Memory, errors   as those of matmul.
#pragma once
#include <cstdint>
#include <limits>

#include "base/exec.h"
#include "base/tensor.h"
#include "ops/activations.h"
#include "ops/matmul.h"

namespace quire::ops {

inline constexpr float kUsualReach = 8;
inline constexpr float kWholeReach = std::numeric_limits<float>::max();  // every group is

inline constexpr int64_t kLogitGroup = 16;
constexpr int64_t logit_groups(int64_t vocabulary) { return (vocabulary + kLogitGroup - 1) / kLogitGroup; }

// What logits at twice the precision need on a CPU besides; nothing of it is kept.
struct LogitsScratch {
  Rows<float> rest;  // [rows, vocabulary] what the others of the rows' two give; in the plain loops both
  uint8_t* marks;    // [rows, logit_groups(vocabulary)]
  float* largest;    // [rows]
};

struct LogitsArgs {
  const PackedMatrix* weights;  // one matrix; outlives recorded calls
  ActivationRows in;
  Rows<float> out;
  float scale = 1;     // above 0
  const float* reach;  // [rows] from 0 on; read when the operation runs. On a GPU null
  LogitsScratch scratch = {};
  bool deterministic = false;  // as MatmulArgs has it
  const int32_t* live_rows;    // read when the operation runs
};
using LogitsFn = void(const LogitsArgs&, Exec&);
namespace ref {
LogitsFn logits;
}
namespace cpu {
LogitsFn logits;
}
namespace cuda {
LogitsFn logits;
}
LogitsFn logits;  // for callers; records while exec captures

}  // namespace quire::ops
