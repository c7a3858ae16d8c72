#include <algorithm>
#include <atomic>
#include <deque>

#include "base/check.h"
#include "ops/device_bytes.h"
#include "ops/matmul.h"
#include "ops/packed_blocks.h"
#include "ops/packed_fp8.h"
#include "ops/packed_layout.h"
#include "ops/packed_rows.h"

namespace quire::ops {
namespace {

void check_matrix(const WeightView& weights) {
  check(weights.outputs > 0 && weights.inputs > 0, "a matrix without elements cannot be packed: ", weights);
  const int64_t elements = shape_of(weights.type).elements,
                block = elements == 1 ? 1 : std::max(elements, kBlockInputs);
  check(weights.inputs % block == 0, "the inputs are not whole blocks of ", block, ": ", weights);
}

void check_parts(std::span<const WeightView> parts, PackedMatrix::Join join) {
  check(!parts.empty(), "a packed matrix needs at least one part");
  for (const WeightView& part : parts) {
    check_matrix(part);
    check(part.inputs == parts[0].inputs, "matrices over different inputs cannot be joined: ", parts[0], " and ", part);
  }
  if (join == PackedMatrix::Join::stack) return;
  check(parts.size() == 2, "gate and up are two matrices, not ", parts.size());
  check(parts[0].outputs == parts[1].outputs, "gate and up differ in shape: ", parts[0], " and ", parts[1]);
}

int64_t tile_count_of(int64_t outputs) { return (outputs + kTileColumns - 1) / kTileColumns; }

size_t packed_bytes(std::span<const WeightView> views) {
  int64_t bytes = 0;
  for (const WeightView& view : views) bytes += tile_count_of(view.outputs) * tile_bytes(view.type, view.inputs);
  return static_cast<size_t>(bytes);
}

std::vector<PackedMatrix::Part> place(std::span<const WeightView> views, PackedMatrix::Join join, std::byte* memory) {
  const bool stacked = join == PackedMatrix::Join::stack;
  int64_t alternating = 0;  // bytes of one tile of each
  for (const WeightView& view : views) alternating += tile_bytes(view.type, view.inputs);
  std::vector<PackedMatrix::Part> parts;
  int64_t first_output = 0;
  for (const WeightView& view : views) {
    const int64_t own = tile_bytes(view.type, view.inputs);
    parts.push_back({view.type, first_output, view.outputs, view.inputs, memory, stacked ? own : alternating});
    first_output += view.outputs;
    memory += stacked ? own * tile_count_of(view.outputs) : own;
  }
  return parts;
}

// Tiles are counted over all parts, part after part.
void pack_tile_of(std::span<const WeightView> views, std::span<const PackedMatrix::Part> parts, int64_t tile) {
  size_t part = 0;
  while (tile >= parts[part].tile_count()) tile -= parts[part++].tile_count();
  const PackedMatrix::Part& target = parts[part];
  pack_tile(views[part], tile * kTileColumns, const_cast<std::byte*>(target.tiles) + tile * target.tile_stride);
}

// One makes NaN of all that is computed with it: said at load, not by every request.
void check_fp8_numbers(std::span<const WeightView> views, Exec& exec) {
  constexpr std::byte kMagnitudeBits{0x7f};  // all bits of it: NaN
  const auto is_nan = [](std::byte number) { return (number & kMagnitudeBits) == kMagnitudeBits; };
  for (const WeightView& view : views) {
    if (view.type != BlockType::f8_e4m3) continue;
    std::atomic<bool> numbers = true;
    exec.parallel(view.outputs, [&](int64_t output, int) {
      const std::span row(view.data + output * view.row_stride(), static_cast<size_t>(view.inputs));
      if (std::any_of(row.begin(), row.end(), is_nan)) numbers = false;
    });
    check(numbers, "there is a NaN among the weights of ", view);
  }
}

// Bytes become bf16 where a CPU multiplies them.
std::vector<WeightView> widened(std::span<const WeightView> views, std::deque<std::vector<uint16_t>>& memory,
                                Exec& exec) {
  std::vector<WeightView> result(views.begin(), views.end());
  for (WeightView& view : result) {
    if (view.type != BlockType::f8_e4m3) continue;
    std::vector<uint16_t>& rows = memory.emplace_back(static_cast<size_t>(view.outputs * view.inputs));
    exec.parallel(view.outputs,
                  [&](int64_t output, int) { read_bf16_row(view, output, rows.data() + output * view.inputs); });
    view = {BlockType::bf16, reinterpret_cast<const std::byte*>(rows.data()), view.outputs, view.inputs};
  }
  return result;
}

// Do blocks of so many fit what begins at `first` as they fit the whole?
bool is_cut_by_scales(int64_t first, int64_t count, int64_t block) {
  return first % block == 0 || first % block + count <= block;
}

}  // namespace

void read_weights(const WeightView& weights, int64_t output, int64_t first, std::span<float> out) {
  const std::byte* row = weights.data + output * weights.row_stride();
  dequantise(weights.type, row + bytes_of(weights.type, first), out);
  if (!weights.scales.data) return;
  for (size_t i = 0; i < out.size(); ++i) out[i] *= weights.scale(output, first + static_cast<int64_t>(i));
}

std::string to_string(const WeightView& weights) {
  return cat(weights.type, " [", weights.outputs, ", ", weights.inputs, "]");
}

WeightView some_outputs(const WeightView& weights, int64_t first, int64_t count) {
  const WeightScales& scales = weights.scales;
  check(first >= 0 && count > 0 && count <= weights.outputs - first, "there are no outputs ", first, " to ",
        first + count, " of ", weights);
  check(!scales.data || is_cut_by_scales(first, count, scales.block_outputs), "outputs ", first, " to ", first + count,
        " of ", weights, " begin within a block of ", scales.block_outputs, " with one scale");
  WeightView part = weights;
  part.data += first * weights.row_stride();
  part.outputs = count;
  if (scales.data) part.scales.data += first / scales.block_outputs * weights.scales_stride();
  return part;
}

WeightView some_inputs(const WeightView& weights, int64_t first, int64_t count) {
  const WeightScales& scales = weights.scales;
  check(first >= 0 && count > 0 && count <= weights.inputs - first, "there are no inputs ", first, " to ",
        first + count, " of ", weights);
  const int64_t elements = shape_of(weights.type).elements;
  check(first % elements == 0 && count % elements == 0, "inputs ", first, " to ", first + count, " of ", weights,
        " are no whole blocks of ", elements);
  check(!scales.data || is_cut_by_scales(first, count, scales.block_inputs), "inputs ", first, " to ", first + count,
        " of ", weights, " begin within a block of ", scales.block_inputs, " with one scale");
  WeightView part = weights;
  part.stride = weights.row_stride();
  part.data += bytes_of(weights.type, first);
  part.inputs = count;
  if (!scales.data) return part;
  part.scales.stride = weights.scales_stride();
  part.scales.data += first / scales.block_inputs;
  return part;
}

int64_t PackedMatrix::Part::tile_count() const { return tile_count_of(outputs); }

PackedMatrix::PackedMatrix(std::span<const WeightView> views, Join join, Exec& exec)
    : join_(join), device_(exec.device()) {
  check_parts(views, join);
  if (device_ == Device::cuda)
    place_on_device(views, exec);
  else
    place_on_host(views, exec);
}

void PackedMatrix::place_on_host(std::span<const WeightView> file_views, Exec& exec) {
  check_fp8_numbers(file_views, exec);
  std::deque<std::vector<uint16_t>> memory;
  const std::vector<WeightView> views = widened(file_views, memory, exec);
  memory_ = PackedMemory(packed_bytes(views));
  parts_ = place(views, join_, memory_.data());
  int64_t tiles = 0;
  for (const Part& part : parts_) tiles += part.tile_count();
  exec.parallel(tiles, [&](int64_t tile, int) { pack_tile_of(views, parts_, tile); });
}

void PackedMatrix::place_on_device(std::span<const WeightView> views, Exec& exec) {
  const DeviceForm form = device_form(views, join_);
  if (form == DeviceForm::blocks) return place_blocks_on_device(views, exec);
  if (form == DeviceForm::fp8) return place_fp8_on_device(views, exec);
  check_fp8_numbers(views, exec);
  device_memory_.push_back(packed_rows(views, join_, exec));
  const std::byte* rows = device_memory_[0].data();
  const int64_t row_bytes = views[0].inputs * shape_of(BlockType::bf16).bytes;
  int64_t first_output = 0;
  for (const WeightView& view : views) {
    parts_.push_back({device_type_of(view.type), first_output, view.outputs, view.inputs, rows, 0});
    first_output += view.outputs;
    rows += row_bytes * (join_ == Join::stack ? view.outputs : kHalfGroup);
  }
}

void PackedMatrix::place_blocks_on_device(std::span<const WeightView> views, Exec& exec) {
  const bool joined = join_ == Join::gate_and_up;
  int64_t first_output = 0;
  for (const WeightView& view : views) {
    const BlockPanels panels = joined ? BlockPanels(views[0], views[1]) : BlockPanels(view);
    if (!joined || first_output == 0) device_memory_.push_back(panels.on_device(exec));
    const std::byte* first = device_memory_.back().data();
    if (first_output > 0 && joined) first += device_layout(view.type).group_bytes();  // the panel's second tile
    parts_.push_back({view.type, first_output, view.outputs, view.inputs, first, panels.bytes()});
    first_output += view.outputs;
  }
}

void PackedMatrix::place_fp8_on_device(std::span<const WeightView> views, Exec& exec) {
  PackedFp8 packed = packed_fp8(views, join_, exec);
  device_memory_.push_back(std::move(packed.strips));
  device_memory_.push_back(std::move(packed.row_scales));
  int64_t first_output = 0;
  for (const WeightView& view : views) {
    parts_.push_back({view.type, first_output, view.outputs, view.inputs, device_memory_[0].data(), 0});
    first_output += view.outputs;
  }
}

size_t PackedMatrix::bytes() const {
  size_t bytes = memory_.size();
  for (const Buffer& buffer : device_memory_) bytes += buffer.size();
  return bytes;
}

int64_t PackedMatrix::outputs() const {
  return parts_.empty() ? 0 : parts_.back().first_output + parts_.back().outputs;
}
int64_t PackedMatrix::inputs() const { return parts_.empty() ? 0 : parts_.front().inputs; }

Forms PackedMatrix::forms() const {
  if (device_ == Device::cuda && (is_fp8() || is_dense(parts_[0].type))) return {.bf16 = true};
  Forms forms;
  for (const Part& part : parts_) forms = forms | Forms{.f32 = is_dense(part.type), .q8 = !is_dense(part.type)};
  return forms;
}

Forms PackedMatrix::precise_forms() const { return forms() == Forms{.q8 = true} ? Forms{.q8x2 = true} : forms(); }

}  // namespace quire::ops
