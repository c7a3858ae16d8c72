#include "ops/sample_scan.h"

namespace quire::ops {

LogitScan avx2_logit_scan() { return {block_maxima, block_fixed_sums, block_sums}; }

}  // namespace quire::ops
