#include "attn/write_metadata.h"

#include "base/check.h"

namespace quire::attn {

void write_metadata(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  (exec.stream() ? cuda::write_metadata : cpu::write_metadata)(shape, inputs, arena, exec);
}

void follow_parents(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, int32_t step,
                    const int32_t* parents, Exec& exec) {
  (exec.stream() ? cuda::follow_parents : cpu::follow_parents)(shape, inputs, arena, step, parents, exec);
}

void check_arena(const StepShape& shape, const MetadataArena& arena, Device device) {
  const Limits& limits = arena.limits();
  check(limits.device == device, "the metadata is written on ", device, ", and the arena is made for ", limits);
  check(shape.form == Form::in_place || limits.form == Form::materialised, "a ", shape.form, " ", shape.mode,
        " step needs tables, and the arena is made for ", limits);
}

void check_follow(const StepShape& shape, const Limits& limits, int32_t step) {
  check(shape.mode == Mode::draft_tree, "a ", to_string(shape.mode), " step has no draft branches to reorder");
  check(step >= 0 && step + 1 < limits.planes(), "no draft step follows step ", step, " of ", limits.planes());
}

void check_parents(const StepInputs& inputs, const Limits& limits, const int32_t* parents) {
  for (int32_t i = 0; i < *inputs.live * limits.topk; ++i)
    check(parents[i] >= 0 && parents[i] < limits.topk, "branch ", i % limits.topk, " of request ", i / limits.topk,
          " continues branch ", parents[i], " of ", limits.topk);
}

}  // namespace quire::attn
