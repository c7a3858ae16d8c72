// The shadow: for each element of the metadata, whether it was written in this step.
//
// It needs no hook in the writer. The step is written twice, over two different fill patterns; an element that shows
// its pattern both times was not written. So it holds for any writer, on any device.
#pragma once
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "attn/attention.h"
#include "attn/metadata.h"
#include "attn/step.h"

namespace quire::attn::testing {

class UnwrittenRead : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Shadow {
 public:
  // Runs `write` twice on the arena, which then holds the step's metadata over the second pattern. Both patterns lie
  // outside every range, so that a read that escapes the shadow cannot pass unseen. Left out is what kernels write for
  // themselves, and what the arena does not have.
  Shadow(const MetadataArena& arena, const std::function<void()>& write);

  bool written(Buf id, int64_t row, int64_t column) const;
  // The element, or UnwrittenRead that names the buffer and both indices.
  int32_t read(Buf id, int64_t row, int64_t column) const;

 private:
  const MetadataArena& arena_;
  std::vector<std::vector<bool>> written_;  // [buffer][element]
};

// Attention computed by the reference from the materialised form, every metadata element read through the shadow:
// an unwritten element that a reader may read throws UnwrittenRead. Also throws CheckError where prefix sums disagree
// with lengths, or a page or slot lies outside the store. The in-place buffers of the same step are read and compared
// too.
void attend_shadowed(const AttendArgs& args, const StepShape& shape, LayerKind kind, const Shadow& shadow);

}  // namespace quire::attn::testing
