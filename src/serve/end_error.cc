#include "serve/end_error.h"

namespace quire::serve {

std::optional<ApiError> error_of(const End& end) {
  if (end.reason == EndReason::refused) return ApiError(400, end.error);
  if (end.reason == EndReason::failed) return ApiError(500, kServerFailed);
  if (end.reason == EndReason::timeout && !end.error.empty()) return ApiError(503, end.error);
  return std::nullopt;
}

}  // namespace quire::serve
