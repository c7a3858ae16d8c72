#include "attn/write_metadata.h"

#include "base/check.h"

namespace quire::attn {

void write_metadata(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  cpu::write_metadata(shape, inputs, arena, exec);
}

void follow_parents(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, int32_t step,
                    const int32_t* parents, Exec& exec) {
  cpu::follow_parents(shape, inputs, arena, step, parents, exec);
}

void check_follow(const StepShape& shape, const Limits& limits, int32_t step) {
  check(shape.mode == Mode::draft_tree, "a ", to_string(shape.mode), " step has no draft branches to reorder");
  check(step >= 0 && step + 1 < limits.planes(), "no draft step follows step ", step, " of ", limits.planes());
}

}  // namespace quire::attn
