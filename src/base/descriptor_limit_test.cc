#include "base/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace quire {
namespace {

rlimit limits() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

TEST(DescriptorLimit, IsRaisedAsFarAsTheSystemAllows) {
  const rlimit before = limits();
  rlimit tight = before;
  tight.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  allow_descriptors(32);
  EXPECT_EQ(limits().rlim_cur, 64u) << "never lowered";
  allow_descriptors(100);
  EXPECT_EQ(limits().rlim_cur, std::min<rlim_t>(100, before.rlim_max));
  allow_descriptors(1 << 30);
  EXPECT_EQ(limits().rlim_cur, std::min<rlim_t>(1 << 30, before.rlim_max));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace quire
