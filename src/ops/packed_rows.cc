#include "ops/packed_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/cuda.h"

namespace quire::ops {
namespace {

using Join = PackedMatrix::Join;

constexpr size_t kPieceBytes = size_t{8} << 20;

// Two pieces of pinned memory, each with a stream that empties it. Pinning takes longer than converting a small matrix,
// so they are made once and stay.
struct RowStaging {
  std::mutex mutex;  // one matrix at a time
  Buffer memory[2] = {Buffer(kPieceBytes, Place::pinned), Buffer(kPieceBytes, Place::pinned)};
  quire::cuda::Stream streams[2];
};
RowStaging& row_staging() {
  static RowStaging& staging = *new RowStaging;  // never ends: the driver may be gone when statics do
  return staging;
}

}  // namespace

RowSource source_of_row(std::span<const WeightView> parts, Join join, int64_t row) {
  size_t part = is_up(join, row) ? 1 : 0;
  int64_t output = output_in_part(join, row);
  if (join == Join::stack)
    while (part < parts.size() && output >= parts[part].outputs) output -= parts[part++].outputs;
  if (part == parts.size() || output >= parts[part].outputs) return {nullptr, 0};
  return {&parts[part], output};
}

uint16_t rounded_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>((x == x ? rounded : bits | 0x400000) >> 16);
}

void read_bf16_row(const WeightView& weights, int64_t output, uint16_t* to) {
  constexpr int64_t kAtOnce = 2048;  // whole blocks of every type
  const int64_t inputs = weights.inputs;
  if (weights.type == BlockType::bf16) {
    const auto bytes = static_cast<size_t>(inputs) * sizeof(*to);
    return std::memcpy(to, weights.data + output * weights.row_stride(), bytes), void();
  }
  float values[kAtOnce];
  for (int64_t first = 0; first < inputs; first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, inputs - first);
    read_weights(weights, output, first, {values, static_cast<size_t>(count)});
    std::transform(values, values + count, to + first, rounded_to_bf16);
  }
}

Buffer packed_rows(std::span<const WeightView> parts, Join join, Exec& exec) {
  const int64_t inputs = parts[0].inputs;
  int64_t outputs = 0;
  for (const WeightView& part : parts) outputs += part.outputs;
  check(inputs % kRowInputs == 0, "a GPU multiplies matrices whose inputs are a multiple of ", kRowInputs, ", not ",
        parts[0]);
  cuda::prepare_matmul(exec);
  return filled_on_device(row_count(join, outputs), inputs * int64_t{sizeof(uint16_t)}, exec,
                          [&](int64_t row, std::byte* to) {
                            const RowSource source = source_of_row(parts, join, row);
                            auto* numbers = reinterpret_cast<uint16_t*>(to);
                            if (source.part)
                              read_bf16_row(*source.part, source.output, numbers);
                            else
                              std::fill_n(numbers, inputs, uint16_t{0});
                          });
}

Buffer filled_on_device(int64_t units, int64_t unit_bytes, Exec& exec,
                        const std::function<void(int64_t unit, std::byte* to)>& fill) {
  const int64_t at_once = static_cast<int64_t>(kPieceBytes) / unit_bytes;
  check(at_once > 0, "weights that lie together in ", unit_bytes, " bytes are too long for a GPU");
  Buffer memory(static_cast<size_t>(units * unit_bytes), Place::device);
  RowStaging& staging = row_staging();
  const std::lock_guard lock(staging.mutex);
  for (int64_t first = 0, piece = 0; first < units; first += at_once, piece ^= 1) {
    const int64_t count = std::min(at_once, units - first);
    std::byte* pinned = staging.memory[piece].data();
    staging.streams[piece].wait();
    exec.parallel(count, [&](int64_t unit, int) { fill(first + unit, pinned + unit * unit_bytes); });
    staging.streams[piece].copy(memory.data() + first * unit_bytes, pinned, static_cast<size_t>(count * unit_bytes));
  }
  for (quire::cuda::Stream& stream : staging.streams) stream.wait();
  return memory;
}

}  // namespace quire::ops
