// On a GPU: rope and store_rows of a qkv block in one kernel, for layers without norms of queries and keys. The bits are
// those of the two operations; the row of qkv stays as it is.
#pragma once
#include "model/blocks.h"

namespace quire::model::cuda {

void rope_store(const QkvBlock& block, Exec& exec);

}  // namespace quire::model::cuda
