#include "matmul_lines.h"

#include <algorithm>

#include "base/check.h"

namespace quire::bench {

std::string name(const MatmulLine& line, Isa default_isa) {
  const MatmulMatrix& matrix = line.matrix;
  const std::string away = line.isa == default_isa ? "" : cat("/isa=", to_string(line.isa));
  return cat("matmul/", matrix.name, "/", matrix.inputs, "x", matrix.outputs, "/type=", matrix.type,
             "/rows=", line.rows, line.cold ? "/cold" : "", away);
}

Work work_of(const MatmulLine& line) {
  const MatmulMatrix& matrix = line.matrix;
  const double rows = line.rows, results = static_cast<double>(matrix.outputs) / (matrix.gate_and_up ? 2 : 1);
  const double weights = static_cast<double>(bytes_of(matrix.type, matrix.inputs * matrix.outputs));
  return {.bytes = weights + rows * (static_cast<double>(matrix.inputs) + results * sizeof(float)),
          .flops = 2 * rows * static_cast<double>(matrix.inputs * matrix.outputs)};
}

double limit_seconds(const MatmulLine& line, const MachineLimits& limits) {
  const Work work = work_of(line);
  const double reading = line.cold ? work.bytes / limits.read_bytes : 0;
  return std::max(reading, work.flops / limits.peak(line.isa));
}

std::vector<Isa> product_isas(std::span<const Isa> isas) {
  std::vector<Isa> chosen(isas.begin(), isas.end());
  std::erase_if(chosen, [](Isa isa) { return isa == Isa::plain || isa == Isa::avx512 || isa == Isa::avx512bf16; });
  return chosen;
}

namespace {

std::vector<MatmulMatrix> matrices() {
  std::vector<MatmulMatrix> all = {
      {.name = "qkv", .type = BlockType::q4_1, .inputs = 576, .outputs = 960},
      {.name = "o", .type = BlockType::q4_1, .inputs = 576, .outputs = 576},
      {.name = "gate_and_up", .type = BlockType::q4_1, .inputs = 576, .outputs = 3072, .gate_and_up = true},
      {.name = "down", .type = BlockType::q4_1, .inputs = 1536, .outputs = 576},
      {.name = "head", .type = BlockType::q8_0, .inputs = 576, .outputs = 49152}};
  for (const BlockType type : kBlockTypes) {
    if (shape_of(type).elements == 1) continue;
    all.push_back({.name = "square", .type = type, .inputs = 2048, .outputs = 2048});
    all.push_back({.name = "deep", .type = type, .inputs = 8192, .outputs = 2048});
  }
  return all;
}

std::vector<MatmulLine> lines_of(const MatmulMatrix& matrix, std::span<const Isa> isas, bool quick) {
  constexpr int32_t kManyRows = 512;
  std::vector<MatmulLine> lines;
  for (const int32_t rows : {1, 2, 4, 8, 16, kManyRows}) {
    if (quick && rows != 1 && rows != 16) continue;
    if (rows == kManyRows && matrix.name == "head") continue;  // logits are wanted of few rows
    for (const Isa isa : isas) lines.push_back({.matrix = matrix, .rows = rows, .isa = isa});
  }
  if (matrix.name == "gate_and_up" || matrix.name == "head" || matrix.name == "deep")
    for (const Isa isa : isas) lines.push_back({.matrix = matrix, .isa = isa, .cold = true});
  return lines;
}

}  // namespace

std::vector<std::vector<MatmulLine>> matmul_groups(std::span<const Isa> isas, bool quick) {
  std::vector<std::vector<MatmulLine>> groups;
  for (const MatmulMatrix& matrix : matrices()) groups.push_back(lines_of(matrix, isas, quick));
  return groups;
}

}  // namespace quire::bench
