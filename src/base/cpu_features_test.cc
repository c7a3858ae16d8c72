#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/cpu_amx_probe.h"

namespace quire {

void PrintTo(Isa isa, std::ostream* out) { *out << to_string(isa); }  // names the parameter in CTest's list

namespace {

constexpr Isa kAll[] = {Isa::plain, Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16, Isa::amx};

bool available(Isa isa) {
  const auto isas = available_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// What the kernel says, which knows of CPUID, of saved state and of what an administrator switched off.
std::set<std::string> kernel_flags() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("flags")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      return {std::istream_iterator<std::string>(words), {}};
    }
  return {};
}

class CpuFeatures : public testing::TestWithParam<Isa> {};

TEST_P(CpuFeatures, AgreesWithTheKernel) {
  const std::set<std::string> flags = kernel_flags();
  const std::vector<const char*> needed[] = {{},
                                             {"avx2", "fma", "f16c"},
                                             {"avx_vnni"},
                                             {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
                                             {"avx512_vnni"},
                                             {"avx512_bf16"},
                                             {"amx_tile", "amx_bf16", "amx_int8"}};
  const Isa isa = GetParam();
  bool named = true;
  for (const Isa level : kAll)
    if (level == isa || (level < isa && level != Isa::avxvnni))  // which wider sets do not include
      for (const char* flag : needed[static_cast<int>(level)]) named = named && flags.contains(flag);
  if (!available(isa)) {
    EXPECT_TRUE(!named || isa == Isa::amx) << "only AMX may be named and not work";
    GTEST_SKIP() << to_string(isa) << " is absent on " << cpu_name() << ": everything for it is skipped";
  }
  std::cout << to_string(isa) << " is available on " << cpu_name() << "\n";
  EXPECT_TRUE(named);
}

TEST(CpuFeaturesList, AmxComputesOneProductRight) {
  if (best_isa() < Isa::amx) GTEST_SKIP() << "no AMX on " << cpu_name();
  EXPECT_TRUE(amx_product_is_right());
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuFeatures, testing::ValuesIn(kAll),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(CpuFeaturesList, AscendsFromPlainToTheBest) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::plain);
  EXPECT_EQ(isas.back(), best_isa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const Isa isa : kAll) EXPECT_TRUE(available(isa) || isa > best_isa() || isa == Isa::avxvnni) << to_string(isa);
  EXPECT_FALSE(cpu_name().empty());
}

TEST(CpuFeaturesList, AnAbsentOneIsRefusedByName) {
  for (const Isa isa : kAll) {
    if (available(isa)) {
      EXPECT_NO_THROW(check_available(isa)) << to_string(isa);
    } else {
      EXPECT_THROW(check_available(isa), CheckError) << to_string(isa);
    }
  }
}

TEST(CpuFeaturesList, NamesRoundTripAndUnknownOnesListTheKnown) {
  for (Isa isa : kAll) EXPECT_EQ(isa_from(to_string(isa)), isa);
  try {
    isa_from("sse9");
    ADD_FAILURE();
  } catch (const CheckError& error) {
    EXPECT_STREQ(error.what(),
                 "instruction set \"sse9\" is not one of plain, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx");
  }
}

}  // namespace
}  // namespace quire
