#include "engine/allowed_tokens.h"

#include <algorithm>
#include <span>

namespace quire::engine {
namespace {

// A copy without bits behind the vocabulary, so that a word that is not 0 is an allowed token.
void copy_mask(const uint32_t* mask, int32_t vocabulary, std::vector<uint32_t>& out) {
  const size_t words = (static_cast<size_t>(vocabulary) + 31) / 32;
  if (mask)
    out.assign(mask, mask + words);
  else
    out.assign(words, ~uint32_t{0});
  if (vocabulary % 32 != 0) out.back() &= (uint32_t{1} << vocabulary % 32) - 1;
}

void forbid(std::span<const int32_t> ids, int32_t vocabulary, std::vector<uint32_t>& mask) {
  for (const int32_t id : ids)
    if (id >= 0 && id < vocabulary) mask[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << id % 32);
}

}  // namespace

const uint32_t* allowed_tokens(const Request& request, int32_t generated, const uint32_t* own, int32_t vocabulary,
                               std::vector<uint32_t>& scratch) {
  if (request.stop_ids.empty() || generated >= request.min_new_tokens) return own;
  copy_mask(own, vocabulary, scratch);
  forbid(request.stop_ids, vocabulary, scratch);
  const bool some_left = std::any_of(scratch.begin(), scratch.end(), [](uint32_t word) { return word != 0; });
  return some_left ? scratch.data() : own;
}

}  // namespace quire::engine
