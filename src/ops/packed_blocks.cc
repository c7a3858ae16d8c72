// The numbers below are places in the file's blocks; base/blocks.cc says what lies there.
#include "ops/packed_blocks.h"

#include <algorithm>
#include <cstring>

#include "ops/packed_layout.h"
#include "ops/packed_rows.h"

namespace quire::ops {
namespace {

constexpr int32_t kRun = 32;  // inputs of a block of the GPU's, which may be a part of the file's

// Run `run` of a file's block as unsigned numbers, or as two's complement where the type has no minimum.
using Numbers = uint8_t[kRun];

uint8_t byte_of(const std::byte* block, int32_t at) { return static_cast<uint8_t>(block[at]); }

void numbers_of_32(BlockType type, const std::byte* block, Numbers& numbers) {
  if (type == BlockType::q8_0) return std::memcpy(numbers, block + 2, kRun), void();
  const bool has_minimum = device_layout(type).has_minimum, has_fifth = device_layout(type).bits == 5;
  const int32_t fifth_bits = has_minimum ? 4 : 2, nibbles = fifth_bits + (has_fifth ? 4 : 0);
  for (int32_t i = 0; i < kRun; ++i) {
    int32_t number = byte_of(block, nibbles + i % 16) >> (i / 16 * 4) & 15;
    if (has_fifth) number |= (byte_of(block, fifth_bits + i / 8) >> (i % 8) & 1) << 4;
    numbers[i] = static_cast<uint8_t>(has_minimum ? number : number ^ (has_fifth ? 16 : 8));  // less 8 or 16
  }
}

void numbers_of_256(BlockType type, const std::byte* block, int32_t run, Numbers& numbers) {
  const int32_t half = run / 4, quarter = run % 4;  // of Q6_K
  for (int32_t i = 0; i < kRun; ++i) {
    if (type == BlockType::q6_k) {
      const int32_t low = byte_of(block, half * 64 + quarter % 2 * 32 + i) >> (quarter / 2 * 4) & 15;
      const int32_t high = byte_of(block, 128 + half * 32 + i) >> (quarter * 2) & 3;
      numbers[i] = static_cast<uint8_t>((low | high << 4) ^ 32);  // less 32
    } else {
      const bool has_fifth = type == BlockType::q5_k;
      int32_t number = byte_of(block, (has_fifth ? 48 : 16) + run / 2 * 32 + i) >> (run % 2 * 4) & 15;
      if (has_fifth) number |= (byte_of(block, 16 + i) >> run & 1) << 4;
      numbers[i] = static_cast<uint8_t>(number);
    }
  }
}

// Puts one output's numbers of a block where its four lanes find them.
void put_lane_numbers(const Numbers& numbers, BlockType type, int32_t output, int32_t block, std::byte* quad) {
  const int32_t bits = device_layout(type).bits;
  for (int32_t c = 0; c < 4; ++c) {
    const int32_t lane = output * 4 + c;
    const int32_t first = bits == 6 ? 4 * c : 8 * c, second = bits == 6 ? 16 + 4 * c : 8 * c + 4;
    if (bits == 8) {
      std::byte* words = quad + block * 256 + lane * 8;
      std::memcpy(words, numbers + first, 4);
      std::memcpy(words + 4, numbers + second, 4);
      continue;
    }
    std::byte* nibbles = quad + block * 128 + lane * 4;
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t low = numbers[first + i], high = numbers[second + i];
      nibbles[i] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
      if (bits == 5)
        quad[512 + lane * 4 + i] |= static_cast<std::byte>((low >> 4) << (2 * block) | (high >> 4) << (2 * block + 1));
      if (bits == 6)
        quad[512 + lane * 8 + block / 2 * 4 + i] |=
            static_cast<std::byte>((low >> 4) << (4 * (block % 2)) | (high >> 4) << (4 * (block % 2) + 2));
    }
  }
}

void put_f16(std::byte* to, const std::byte* from) { std::memcpy(to, from, 2); }

// Scales of one output's block of 32 into the head.
void put_scales_of_32(bool has_minimum, const std::byte* block, int32_t output, int32_t in_quad, std::byte* head) {
  const int32_t place = output * 8 + in_quad * 2;
  put_f16(head + place, block);
  if (has_minimum) put_f16(head + 64 + place, block + 2);
}

// Six bits for each of 8 scales and 8 minima, in 12 bytes; the upper two bits of the last four sit on top of the
// others.
void put_scales_of_256(const std::byte* block, int32_t output, std::byte* head) {
  put_f16(head + output * 4, block);
  put_f16(head + output * 4 + 2, block + 2);
  const auto at = [&](int32_t i) { return static_cast<int32_t>(byte_of(block, 4 + i)); };
  for (int32_t g = 0; g < 8; ++g) {
    const int32_t scale = g < 4 ? at(g) & 63 : (at(g + 4) & 15) | at(g - 4) >> 6 << 4;
    const int32_t least = g < 4 ? at(g + 4) & 63 : at(g + 4) >> 4 | at(g) >> 6 << 4;
    std::byte* place = head + 32 + output * 16 + g / 2 * 4 + g % 2;
    place[0] = static_cast<std::byte>(scale);
    place[2] = static_cast<std::byte>(least);
  }
}

void put_scales_of_q6_k(const std::byte* block, int32_t output, std::byte* head) {
  put_f16(head + output * 2, block + 208);
  for (int32_t g = 0; g < 16; ++g)
    head[16 + output * 16 + g] = static_cast<std::byte>(byte_of(block, 192 + g) ^ 0x80);  // plus 128
}

// Outputs [first, first + 8) of the weights. `tile` has zeros, and its groups lie a panel's group apart.
void pack_tile_of_panel(const WeightView& weights, int64_t first, std::byte* tile) {
  const DeviceLayout layout = device_layout(weights.type);
  const BlockShape shape = shape_of(weights.type);
  const int64_t row_bytes = weights.row_stride(), runs = weights.inputs / kRun;
  for (int32_t output = 0; output < kTileOutputs && first + output < weights.outputs; ++output) {
    const std::byte* row = weights.data + (first + output) * row_bytes;
    for (int64_t run = 0; run < runs; ++run) {
      const auto in_group = static_cast<int32_t>(run % layout.group_blocks());
      std::byte* group = tile + run / layout.group_blocks() * kPanelTiles * layout.group_bytes();
      const std::byte* block = row + run * kRun / shape.elements * shape.bytes;
      Numbers numbers;
      if (shape.elements == kRun) {
        numbers_of_32(weights.type, block, numbers);
        put_scales_of_32(layout.has_minimum, block, output, in_group, group);
      } else {
        numbers_of_256(weights.type, block, in_group, numbers);
        if (in_group == 0) (layout.bits == 6 ? put_scales_of_q6_k : put_scales_of_256)(block, output, group);
      }
      put_lane_numbers(numbers, weights.type, output, in_group % kQuadBlocks,
                       group + layout.head_bytes + in_group / kQuadBlocks * layout.quad_bytes());
    }
  }
}

}  // namespace

bool suits_packed_blocks(std::span<const WeightView> parts, PackedMatrix::Join join) {
  if (join == PackedMatrix::Join::gate_and_up && parts[0].type != parts[1].type) return false;
  return std::none_of(parts.begin(), parts.end(),
                      [](const WeightView& part) { return shape_of(part.type).elements == 1; });
}

void BlockPanels::pack(int64_t panel, std::byte* to) const {
  std::memset(to, 0, static_cast<size_t>(bytes()));
  for (int64_t tile = 0; tile < kPanelTiles; ++tile) {
    const int64_t first = (panel * kPanelTiles + tile) / joined_ * kTileOutputs;
    pack_tile_of_panel(parts_[tile % joined_], first, to + tile * device_layout(parts_[0].type).group_bytes());
  }
}

Buffer BlockPanels::on_device(Exec& exec) const {
  cuda::prepare_quantised_matmul(exec);
  return filled_on_device(count(), bytes(), exec, [&](int64_t panel, std::byte* to) { pack(panel, to); });
}

}  // namespace quire::ops
