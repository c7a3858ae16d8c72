// What a benchmark hands over: a table for people, and JSON for plots and records.
#pragma once
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "machine_limits.h"

namespace quire::bench {

struct Result {
  std::string name;  // a path of parts: "decode/batch=8/keys=4096/page=16"
  double median_us;
  std::optional<double> limit_us;
  std::optional<double> gbps;
  std::optional<double> tflops;
  std::string note = {};                    // shown at the end of the line
  std::optional<double> tokens_per_s = {};  // of lines that run a model
  std::string device = "cpu";
};

struct GpuLimits {
  std::string name = {};
  std::optional<double> read_bytes = {};  // a second, from its own memory; where it was measured
  std::optional<double> bf16_flops = {};  // a second, of products of bf16 matrices; likewise
};

struct Report {
  MachineLimits machine;
  std::string command;
  std::vector<Result> results;
  std::optional<GpuLimits> gpu = {};
};

void print_table(const Report& report, std::ostream& out);
// {machine, commit, command, results: [{name, device, median_us, limit_us, gbps, tflops, peer, peer_us}]}; what a
// result does not have is null, and the peer is left to whoever runs one. Lines that run a model have tokens_per_s too.
std::string to_json(const Report& report);
void write_json(const Report& report, const std::string& path);  // throws CheckError when the file cannot be written

}  // namespace quire::bench
