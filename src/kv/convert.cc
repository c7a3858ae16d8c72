#include "kv/convert.h"

#include <algorithm>
#include <cstring>

#include "kv/convert_bits.h"

namespace quire::kv {
namespace {

void narrow(const float* source, Dtype to, std::byte* target, int64_t count, float scale) {
  switch (to) {
    case Dtype::f32: {
      std::memcpy(target, source, count * sizeof(float));
      return;
    }
    case Dtype::bf16: {
      auto* out = reinterpret_cast<uint16_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_bits(source[i]);
      return;
    }
    case Dtype::f16: {
      auto* out = reinterpret_cast<uint16_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = f16_bits(source[i]);
      return;
    }
    case Dtype::f8e4m3: {
      auto* out = reinterpret_cast<uint8_t*>(target);
      for (int64_t i = 0; i < count; ++i) out[i] = f8e4m3_bits(source[i] / scale);
      return;
    }
  }
}

void widen(Dtype from, const std::byte* source, float* target, int64_t count) {
  switch (from) {
    case Dtype::f32: {
      std::memcpy(target, source, count * sizeof(float));
      return;
    }
    case Dtype::bf16: {
      auto* in = reinterpret_cast<const uint16_t*>(source);
      for (int64_t i = 0; i < count; ++i) target[i] = float_of_bf16(in[i]);
      return;
    }
    case Dtype::f16: {
      auto* in = reinterpret_cast<const uint16_t*>(source);
      for (int64_t i = 0; i < count; ++i) target[i] = float_of_f16(in[i]);
      return;
    }
    case Dtype::f8e4m3: {
      auto* in = reinterpret_cast<const uint8_t*>(source);
      for (int64_t i = 0; i < count; ++i) target[i] = float_of_f8e4m3(in[i]);
      return;
    }
  }
}

}  // namespace

void convert_elements(Dtype from, const std::byte* source, Dtype to, std::byte* target, int64_t count, float scale) {
  if (from == to && scale == 1) {
    std::memcpy(target, source, count * size_of(to));
    return;
  }
  if (from == Dtype::f32) {
    narrow(reinterpret_cast<const float*>(source), to, target, count, scale);
    return;
  }
  if (to == Dtype::f32) {
    widen(from, source, reinterpret_cast<float*>(target), count);
    return;
  }
  constexpr int64_t kBlock = 256;
  float wide[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t block = std::min(kBlock, count - done);
    widen(from, source + done * size_of(from), wide, block);
    narrow(wide, to, target + done * size_of(to), block, scale);
  }
}

}  // namespace quire::kv
