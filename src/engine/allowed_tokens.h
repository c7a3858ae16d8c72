// Which tokens a request's next draw may give: those of its mask, without stop ids that would come too early.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace quire::engine {

// [ceil(vocabulary / 32)] bit set: allowed; null: all. generated: tokens so far; own: what the request's mask says.
// Where only stop ids are allowed they stay. The result is own or lies in scratch.
const uint32_t* allowed_tokens(const Request& request, int32_t generated, const uint32_t* own, int32_t vocabulary,
                               std::vector<uint32_t>& scratch);

}  // namespace quire::engine
