// A stretch of elements from one type to another, by way of float. Each result has the bits that load_element
// followed by store_element gives; here it is a loop without calls or branches, which compilers vectorise.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace quire::kv {

// target[i] = source[i] / scale, for i in [0, count). The scale is 1 unless the target is f8e4m3. Equal types and a
// scale of 1 copy the bits. Both addresses are aligned to their element; the stretches do not overlap.
void convert_elements(Dtype from, const std::byte* source, Dtype to, std::byte* target, int64_t count, float scale);

}  // namespace quire::kv
