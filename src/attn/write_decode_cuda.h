// The inputs and the metadata of a decode step by one kernel of one block, the first of the step's graph: the way to
// the host's memory and back is gone one time.
#pragma once
#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"

namespace quire::attn::cuda {

// Steps in place of whole sequences alone, of a thousand at most, whose inputs have a source.
bool can_write_decode(const StepShape& shape, const StepInputs& inputs);
void write_decode(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec);

}  // namespace quire::attn::cuda
