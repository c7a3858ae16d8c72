#include "ops/logit_scan_loops.h"

namespace quire::ops {

LogitScan plain_logit_scan() { return {block_maxima, block_sums}; }

}  // namespace quire::ops
