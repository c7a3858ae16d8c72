// cuBLASLt, NVIDIA's library of matrix products, as far as quire needs it: found when the first product asks for it,
// not linked, so quire runs without.
//
//   out[r][c] (+)= scale * sum_k in[r][k] * weights[c][k]        bf16 in, f32 sums; out f32 or, not added to, bf16
//
// Memory   a stream's workspace and scratch are taken by prepare_cublaslt(), which is called where weights are laid
//          out; products may be captured. Which algorithm serves (outputs, inputs, rows) is asked once and kept: of
//          up to 256 rows the fastest, for which the first product of a shape takes some milliseconds and 128 MB for
//          as long; of more the one that the library proposes first.
// Errors   CheckError with the library's status.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace quire::ops::cuda {

// False where no library was found or its version is unknown; then the first caller is told on standard error what was
// looked for.
bool has_cublaslt();

void prepare_cublaslt(cudaStream_t stream);

// For results that are not yet finished.
std::span<std::byte> cublaslt_scratch(cudaStream_t stream);

struct LibraryProduct {
  const uint16_t* weights;  // [outputs, inputs]
  const uint16_t* in;       // [rows, in_stride]
  void* out;                // [rows, out_stride]
  int32_t outputs, inputs, rows;
  int64_t in_stride, out_stride;
  float scale;
  bool add;
  bool bf16_out = false;
};
void cublaslt_multiply(const LibraryProduct& product, cudaStream_t stream);

// Which algorithm serves it, for people.
std::string cublaslt_choice(const LibraryProduct& product);

}  // namespace quire::ops::cuda
