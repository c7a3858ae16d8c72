// Which tokens a request's next draw may give: those of its mask, without stop ids that would come too early.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace quire::engine {

// [ceil(vocabulary / 32)] bit set: allowed; null: all. Asks the request's mask, so the draw and accept() follow. Where
// only stop ids are allowed they stay. The result lies in the mask or in scratch.
const uint32_t* allowed_tokens(const Sequence& sequence, int32_t vocabulary, std::vector<uint32_t>& scratch);

}  // namespace quire::engine
