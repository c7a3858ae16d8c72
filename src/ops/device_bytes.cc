#include "ops/device_bytes.h"

#include "ops/packed_blocks.h"
#include "ops/packed_fp8.h"
#include "ops/packed_rows.h"

namespace quire::ops {
namespace {

using Join = PackedMatrix::Join;

int64_t block_bytes(std::span<const WeightView> parts, Join join) {
  const auto all_of = [](const BlockPanels& panels) { return panels.count() * panels.bytes(); };
  if (join == Join::gate_and_up) return all_of({parts[0], parts[1]});
  int64_t bytes = 0;
  for (const WeightView& part : parts) bytes += all_of(BlockPanels(part));
  return bytes;
}

}  // namespace

DeviceForm device_form(std::span<const WeightView> parts, Join join) {
  if (suits_packed_blocks(parts, join)) return DeviceForm::blocks;
  return suits_packed_fp8(parts, join) ? DeviceForm::fp8 : DeviceForm::rows;
}

int64_t device_bytes(std::span<const WeightView> parts, Join join) {
  const DeviceForm form = device_form(parts, join);
  if (form == DeviceForm::blocks) return block_bytes(parts, join);
  int64_t outputs = 0;
  for (const WeightView& part : parts) outputs += part.outputs;
  const int64_t rows = row_count(join, outputs), inputs = parts[0].inputs;
  if (form == DeviceForm::rows) return rows * inputs * shape_of(BlockType::bf16).bytes;
  return rows / kRowGroup * (inputs / kFp8PieceInputs) * kFp8PieceBytes + rows * int64_t{sizeof(float)};
}

}  // namespace quire::ops
