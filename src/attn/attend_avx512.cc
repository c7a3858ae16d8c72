#include "attn/attend_vector.h"
#include "base/simd/avx512.h"

namespace quire::attn::cpu {

Kernel avx512_kernel(Dtype kv_type) { return widened_kernel<simd::Avx512>(kv_type); }

}  // namespace quire::attn::cpu
