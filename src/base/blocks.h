// The element types of weight files, single numbers and quantised blocks, and what their bytes mean.
//
// A block is a run of consecutive elements of one matrix row that share their scales. The names and the bytes are
// those of GGUF files; F8_E4M3, whose scales are tensors of their own, is safetensors' alone.
//
// Errors   CheckError before anything is written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

enum class BlockType : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, f8_e4m3 };
// Those of GGUF files.
inline constexpr BlockType kBlockTypes[] = {BlockType::f32,  BlockType::f16,  BlockType::bf16, BlockType::q8_0,
                                            BlockType::q4_0, BlockType::q4_1, BlockType::q5_0, BlockType::q5_1,
                                            BlockType::q4_k, BlockType::q5_k, BlockType::q6_k};
const char* to_string(BlockType type);  // "Q4_1", as files and people write it

struct BlockShape {
  int32_t elements;
  int32_t bytes;
};
BlockShape shape_of(BlockType type);

// Bytes of `elements` elements, which must be whole blocks; throws CheckError when they are not or on overflow.
int64_t bytes_of(BlockType type, int64_t elements);

// out = the numbers that the blocks stand for: the meaning of the type. Products and sums are rounded to float one by
// one. out.size() is a whole number of blocks; the blocks need no alignment.
void dequantise(BlockType type, const std::byte* blocks, std::span<float> out);

}  // namespace quire
