// Rows of activations as matrix products read them: plain f32 for dense weights (on a GPU bf16, rounded to nearest,
// ties to even), and blocks of 8-bit integers for quantised ones.
//
//   x[32 b + i]  ~  scale[b] * q[32 b + i]        scale = largest magnitude of the block / 127
//   q            =  x * (127 / largest magnitude), rounded to the nearest integer, ties to even
//   sums[2 b], sums[2 b + 1]  =  sum of q over the block's first and second 16 elements
//
// A block whose largest magnitude is below 2^-119, where the scale would leave the normal numbers, counts as zeros:
// scale 0 and q 0. A block that holds an infinity or NaN has scale NaN and q 0: bad numbers stay visible. Every
// producer (rms_norm, quantise) makes the same bits from the same f32 row, on every instruction set and on a GPU. Only
// a GPU fills the form bf16; of a NaN in a form of floats the bits are not fixed there.
//
// At twice the precision (q8x2) a row is two such rows, x quantised and what that leaves over: x ~ a, x - a ~ b. A
// product reads the weights once for both and adds: W a + W b, with an error of about x / 2^16 where 8 bits leave
// x / 2^8.
//
// Who fills it: the operation before the product, in the forms that the product's weights ask for.
#pragma once
#include <cstdint>

#include "base/buffer.h"
#include "base/exec.h"
#include "base/tensor.h"

namespace quire::ops {

inline constexpr int32_t kActivationBlock = 32;

// Which forms a product reads. Stacked weights of different types may need f32 and q8; q8 and q8x2 exclude each other.
struct Forms {
  bool f32 = false;
  bool bf16 = false;
  bool q8 = false;
  bool q8x2 = false;
  bool quantised() const { return q8 || q8x2; }
  friend bool operator==(Forms, Forms) = default;
};
inline Forms operator|(Forms a, Forms b) { return {a.f32 || b.f32, a.bf16 || b.bf16, a.q8 || b.q8, a.q8x2 || b.q8x2}; }

struct ActivationRows {
  Forms forms;               // what is (to be) filled
  int64_t rows;              // room
  int64_t dim;               // a multiple of 32 when quantised
  float* f32;                // [rows, dim]
  uint16_t* bf16 = nullptr;  // [rows, dim] the bits
  // Null without a quantised form. With q8x2 all three have [rows, 2, ...].
  int8_t* q = nullptr;  // [rows, dim], rows 64-byte aligned: stride q_stride
  int64_t q_stride = 0;
  float* scale = nullptr;   // [rows, dim / 32]
  int32_t* sums = nullptr;  // [rows, dim / 16]
  int64_t bf16_stride = 0;  // from one row of bf16 to the next; 0: dim
  // From one row of scale to the next, and half of that of sums; 0: dim / 32. Rows that are not dense are read on a CPU
  // alone, and filled by nobody.
  int64_t scale_stride = 0;

  int64_t scales_of_row() const { return scale_stride ? scale_stride : dim / kActivationBlock; }
};

// Of rows at twice the precision (q8x2): the first of each row's two, or what that left over, as rows of 8 bits.
ActivationRows first_of_two(const ActivationRows& rows);
ActivationRows rest_of_two(const ActivationRows& rows);

// The owner: room for `rows` rows of up to `dim` elements in every form; on the host address space until it is touched.
class ActivationBuffer {
 public:
  ActivationBuffer(int64_t rows, int64_t dim, Place place = Place::host);
  // dim up to the one given at birth. Views share the memory: filling one uses up what another held.
  ActivationRows view(int64_t dim, Forms forms) const;

 private:
  int64_t rows_, dim_;
  Buffer memory_;
};

// out = in, in out's forms, for rows < *live_rows. Records while exec captures.
struct QuantiseArgs {
  Rows<const float> in;
  ActivationRows out;
  const int32_t* live_rows;  // read when the operation runs
};
using QuantiseFn = void(const QuantiseArgs&, Exec&);
namespace ref {
QuantiseFn quantise;
}
namespace cpu {
QuantiseFn quantise;
}
namespace cuda {
QuantiseFn quantise;  // a live count beyond the room counts as the room
}
QuantiseFn quantise;  // for callers

}  // namespace quire::ops
