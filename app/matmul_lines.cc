#include "matmul_lines.h"

#include "base/check.h"

namespace quire::bench {

std::string name(const MatmulLine& line) {
  return cat("matmul/", line.matrix, "/", line.inputs, "x", line.outputs, "/type=", line.type, "/rows=", line.rows,
             line.cold ? "/cold" : "");
}

Work work_of(const MatmulLine& line) {
  const double rows = line.rows, results = static_cast<double>(line.outputs) / (line.gate_and_up ? 2 : 1);
  const double weights = static_cast<double>(bytes_of(line.type, line.inputs * line.outputs));
  return {.bytes = weights + rows * (static_cast<double>(line.inputs) + results * sizeof(float)),
          .flops = 2 * rows * static_cast<double>(line.inputs * line.outputs)};
}

std::vector<MatmulLine> matmul_lines(bool quick) {
  const MatmulLine matrices[] = {
      {.matrix = "qkv", .type = BlockType::q4_1, .inputs = 576, .outputs = 960},
      {.matrix = "o", .type = BlockType::q4_1, .inputs = 576, .outputs = 576},
      {.matrix = "gate_and_up", .type = BlockType::q4_1, .inputs = 576, .outputs = 3072, .gate_and_up = true},
      {.matrix = "down", .type = BlockType::q4_1, .inputs = 1536, .outputs = 576},
      {.matrix = "head", .type = BlockType::q8_0, .inputs = 576, .outputs = 49152}};
  std::vector<MatmulLine> lines;
  for (MatmulLine line : matrices) {
    for (int32_t rows : {1, 8, 64, 512}) {
      if (rows == 512 && (quick || line.matrix == "head")) continue;  // logits are wanted of few rows
      line.rows = rows;
      lines.push_back(line);
    }
    if (line.matrix != "gate_and_up" && line.matrix != "head") continue;
    line.rows = 1;
    line.cold = true;
    lines.push_back(line);
  }
  return lines;
}

}  // namespace quire::bench
