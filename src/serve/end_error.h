// What an end has to be told as, instead of an answer.
#pragma once
#include <optional>

#include "serve/api_error.h"
#include "serve/text_stream.h"

namespace quire::serve {

std::optional<ApiError> error_of(const End& end);  // none: what was generated is the answer

}  // namespace quire::serve
