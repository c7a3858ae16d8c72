// What a draft head (eagle_head.h) is given of a row: the residual stream before three layers, each normed, projected
// to one row of the stream's width.
#pragma once
#include <array>
#include <cstdint>

#include "model/model.h"
#include "ops/matmul.h"

namespace quire::model {

struct FeatureProjection {
  static constexpr int32_t kFeatures = 3;

  std::array<int32_t, kFeatures> layers;            // ascending: what enters them
  std::array<Vector, kFeatures> norms;              // [width] each; empty: features as they are
  std::array<ops::PackedMatrix, kFeatures> matrix;  // width x width each; the results are added up
  float norm_eps;
};

}  // namespace quire::model
