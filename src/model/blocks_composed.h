// Parts of the compositions (blocks.cc) that a device's own blocks are made of too.
#pragma once
#include "model/blocks.h"

namespace quire::model::composed {

// Rows as the product reads them: on a CPU dense weights read them where they lie; others want them narrower.
ops::ActivationRows input_of(const ops::PackedMatrix& weights, const Rows<float>& in, const BlockRows& rows,
                             Exec& exec);
// The residual stream as a half's first product reads it: normed where the layer has a norm there.
ops::ActivationRows normed_input(const ops::PackedMatrix& weights, const Vector& norm, const BlockRows& rows,
                                 Exec& exec);
// A product of `in`, normed where there is a norm, which is then of the residual stream: one operation where a GPU
// knows how.
void multiply(ops::MatmulArgs args, const Rows<float>& in, const Vector& norm, const BlockRows& rows, Exec& exec);
// From block.qkv to queries, and keys and values in their slots.
void rotate_and_store(const QkvBlock& block, Exec& exec);
// The end of a residual block, whose product reads `in`.
void add_product(const ResidualBlock& block, const ops::ActivationRows& in, Exec& exec);

}  // namespace quire::model::composed
