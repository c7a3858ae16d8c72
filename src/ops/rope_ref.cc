#include "ops/by_row.h"

namespace quire::ops {
namespace {

void norm_heads(const HeadsOfToken& heads) {
  const float* end = heads.x + int64_t{heads.heads} * heads.dim;
  for (float* x = heads.x; x < end; x += heads.norm_dim) {
    const float scale = ref::rms_scale(x, heads.norm_dim, heads.eps);
    for (int64_t i = 0; i < heads.norm_dim; ++i) x[i] = (x[i] * scale) * heads.norm[i];
  }
}

void rotate_head(float* x, const HeadsOfToken& heads) {
  for (int32_t i = 0; i < heads.half; ++i) {
    float& first = heads.adjacent_pairs ? x[2 * i] : x[i];
    float& second = heads.adjacent_pairs ? x[2 * i + 1] : x[i + heads.half];
    const float a = first, b = second;
    first = a * heads.cos[i] - b * heads.sin[i];
    second = b * heads.cos[i] + a * heads.sin[i];
  }
}

}  // namespace

void ref::rotate(const HeadsOfToken& heads) {
  if (heads.norm) norm_heads(heads);
  for (int32_t head = 0; head < heads.heads; ++head) rotate_head(heads.x + int64_t{head} * heads.dim, heads);
}

void ref::narrow(const float* x, int64_t count, Dtype type, std::byte* target) {
  for (int64_t i = 0; i < count; ++i) store_element(type, target, i, x[i]);
}

}  // namespace quire::ops
