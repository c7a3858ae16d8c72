#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace quire {

void allow_descriptors(int count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(count)) return;
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(count));
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace quire
