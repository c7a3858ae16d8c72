#include "attn/attend_vector.h"
#include "base/simd/plain.h"

namespace quire::attn::cpu {

Kernel plain_kernel(Dtype kv_type) { return widened_kernel<simd::Plain>(kv_type); }

}  // namespace quire::attn::cpu
