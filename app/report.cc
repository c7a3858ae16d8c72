#include "report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/check.h"

namespace quire::bench {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

std::string number(double value) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 4;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string number(std::optional<double> value) { return value ? number(*value) : "-"; }

std::string last_cell(const Result& result) {
  return result.tokens_per_s ? number(*result.tokens_per_s) + " tok/s" : result.note;
}

Cells cells_of(const Result& result) {
  std::optional<double> flops = result.tflops, percent;
  if (flops && result.device == "cpu") *flops *= 1e3;
  if (result.limit_us) percent = 100 * *result.limit_us / result.median_us;
  return {result.name,     number(result.median_us), number(result.gbps), number(flops), number(result.limit_us),
          number(percent), last_cell(result)};
}

void print_row(const Cells& cells, const std::vector<size_t>& widths, std::ostream& out) {
  std::string line = cells.front() + std::string(widths.front() - cells.front().size(), ' ');
  for (size_t i = 1; i + 1 < cells.size(); ++i) line += "  " + std::string(widths[i] - cells[i].size(), ' ') + cells[i];
  if (!cells.back().empty()) line += "  " + cells.back();
  out << line << '\n';
}

Json optional_json(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json json_of(const MachineLimits& machine) {
  Json peaks = Json::object();
  for (const IsaPeak& peak : machine.peaks) peaks[to_string(peak.isa)] = peak.flops / 1e9;
  return {{"cpu", machine.cpu},
          {"threads", machine.threads},
          {"isa", to_string(machine.isa)},
          {"read_gbps", machine.read_bytes / 1e9},
          {"peak_gflops", peaks}};
}

Json json_of(const GpuLimits& gpu) {
  Json json = {{"name", gpu.name}};
  if (gpu.read_bytes) json["read_gbps"] = *gpu.read_bytes / 1e9;
  if (gpu.bf16_flops) json["bf16_tflops"] = *gpu.bf16_flops / 1e12;
  return json;
}

std::string to_string(const GpuLimits& gpu) {
  std::string text = gpu.name;
  if (gpu.read_bytes) text += cat(", reads ", number(*gpu.read_bytes / 1e9), " GB/s");
  if (gpu.bf16_flops) text += cat(", multiplies bf16 at ", number(*gpu.bf16_flops / 1e12), " TFLOP/s");
  return text;
}

Json json_of(const Result& result) {
  Json json = {{"name", result.name},
               {"device", result.device},
               {"median_us", result.median_us},
               {"limit_us", optional_json(result.limit_us)},
               {"gbps", optional_json(result.gbps)},
               {"tflops", optional_json(result.tflops)},
               {"peer", nullptr},
               {"peer_us", nullptr}};
  if (result.tokens_per_s) json["tokens_per_s"] = *result.tokens_per_s;
  if (!result.note.empty()) json["note"] = result.note;
  return json;
}

}  // namespace

void print_table(const Report& report, std::ostream& out) {
  std::vector<Cells> table = {{"line", "us", "GB/s", report.gpu ? "TFLOP/s" : "GFLOP/s", "limit us", "% of limit", ""}};
  for (const Result& result : report.results) table.push_back(cells_of(result));
  std::vector<size_t> widths(table.front().size());
  for (const Cells& cells : table)
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  out << to_string(report.machine) << "\n";
  if (report.gpu) out << to_string(*report.gpu) << "\n";
  out << "\n";
  for (const Cells& cells : table) print_row(cells, widths, out);
}

std::string to_json(const Report& report) {
  Json results = Json::array();
  for (const Result& result : report.results) results.push_back(json_of(result));
  Json machine = json_of(report.machine);
  if (report.gpu) machine["gpu"] = json_of(*report.gpu);
  const Json json = {{"machine", machine}, {"commit", QUIRE_COMMIT}, {"command", report.command}, {"results", results}};
  return json.dump(2);
}

void write_json(const Report& report, const std::string& path) {
  std::ofstream file(path);
  file << to_json(report) << '\n';
  file.close();
  check(!file.fail(), "cannot write ", path);
}

}  // namespace quire::bench
