#include "engine/request.h"

namespace quire::engine {

const char* to_string(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "none";
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::refused:
      return "refused";
    case Finish::failed:
      return "failed";
  }
  return "unknown";
}

}  // namespace quire::engine
