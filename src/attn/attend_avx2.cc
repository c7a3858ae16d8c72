#include "attn/attend_vector.h"
#include "base/simd/avx2.h"

namespace quire::attn::cpu {

Kernel avx2_kernel(Dtype kv_type) { return widened_kernel<simd::Avx2>(kv_type); }

}  // namespace quire::attn::cpu
