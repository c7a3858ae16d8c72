#include "report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"

namespace quire::bench {
namespace {

Report example() {
  Report report{{"a CPU", 2, Isa::avx2, 20e9, {{Isa::avx2, 100e9}}}, "quire bench attention", {}};
  report.results.push_back({.name = "decode/batch=8", .median_us = 200, .limit_us = 150, .gbps = 15, .tflops = 0.01});
  report.results.push_back(
      {.name = "join", .median_us = 0.5, .limit_us = {}, .gbps = {}, .tflops = {}, .note = "short"});
  return report;
}

TEST(Report, JsonHasEveryFieldOfARecord) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(json["command"], "quire bench attention");
  EXPECT_TRUE(json["commit"].is_string());
  EXPECT_EQ(json["machine"]["threads"], 2);
  EXPECT_EQ(json["machine"]["read_gbps"], 20.0);
  const auto& decode = json["results"][0];
  for (const char* field : {"name", "device", "median_us", "limit_us", "gbps", "tflops", "peer", "peer_us"})
    EXPECT_TRUE(decode.contains(field)) << field;
  EXPECT_EQ(decode["limit_us"], 150.0);
  EXPECT_TRUE(json["results"][1]["limit_us"].is_null());
}

TEST(Report, TableShowsTheShareOfTheLimitAndAlignsColumns) {
  std::ostringstream out;
  print_table(example(), out);
  std::istringstream lines(out.str());
  std::string machine, blank, header, decode, join;
  for (std::string* line : {&machine, &blank, &header, &decode, &join}) std::getline(lines, *line);
  EXPECT_NE(machine.find("reads 20.0 GB/s, avx2 100 GFLOP/s"), std::string::npos) << machine;
  EXPECT_NE(decode.find("75.0"), std::string::npos) << decode;
  EXPECT_EQ(header.size(), decode.size());
  EXPECT_EQ(join.substr(decode.size()), "  short");
}

TEST(Report, AnUnwritableFileIsAnError) { EXPECT_THROW(write_json(example(), "/no/such/folder/x.json"), CheckError); }

TEST(MachineLimits, ALimitIsTheLongerOfReadingAndComputing) {
  const MachineLimits limits = example().machine;
  EXPECT_DOUBLE_EQ(limit_seconds({.bytes = 20e9, .flops = 1}, limits, Isa::avx2), 1);
  EXPECT_DOUBLE_EQ(limit_seconds({.bytes = 1, .flops = 300e9}, limits, Isa::avx2), 3);
  EXPECT_THROW(limits.peak(Isa::amx), CheckError);
}

}  // namespace
}  // namespace quire::bench
