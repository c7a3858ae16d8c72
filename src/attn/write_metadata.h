// The one writer of a step's metadata. The same call, with the same inputs, stands before warm-up, inside captured
// graphs and before eager runs.
//
// After    every element that readable() names for the arena's device holds this step's value. Of the arena nothing
//          else is written: not the workspace of kernels, nor what lies past the live requests (in the materialised
//          form: past the captured ones). Inputs with a source have been fetched (step_upload.h).
// Memory   allocates nothing; reads the inputs when it runs, not when it is recorded.
// Errors   an arena of another device, or without the step's form, throws CheckError. The step itself is not looked at:
//          check_step() stands before it on the host.
#pragma once
#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"

namespace quire::attn {

using WriteMetadataFn = void(const StepShape&, const StepInputs&, const MetadataArena&, Exec&);
namespace ref {
WriteMetadataFn write_metadata;  // for the device of the arena, which the host addresses
}  // namespace ref
namespace cpu {
WriteMetadataFn write_metadata;
}  // namespace cpu
namespace cuda {
WriteMetadataFn write_metadata;  // arena, inputs and tables are the device's, or pinned
}  // namespace cuda
WriteMetadataFn write_metadata;  // for callers: on the GPU when exec has a stream

// After draft step `step` chose, for each branch of each request, the branch it continues (parents, [live, topk]),
// reorders the draft tree's branch rows so that row (b, c) holds the path of its parent and then its own slot of
// step + 1. The slot of branch c at step t is the one given in draft_slots: only paths move, slots do not.
using FollowParentsFn = void(const StepShape&, const StepInputs&, const MetadataArena&, int32_t step,
                             const int32_t* parents, Exec&);
namespace ref {
FollowParentsFn follow_parents;
}
namespace cpu {
FollowParentsFn follow_parents;
}
namespace cuda {
FollowParentsFn follow_parents;
}
FollowParentsFn follow_parents;

// The check of the writers' doors: an arena for the device that writes, and for steps of this form.
void check_arena(const StepShape& shape, const MetadataArena& arena, Device device);

// The check of follow_parents' door, shared by all implementations: a draft tree with a forward pass after `step`.
void check_follow(const StepShape& shape, const Limits& limits, int32_t step);
// That every parent is a branch, for calls that run at once; a recorded one reads the parents later.
void check_parents(const StepInputs& inputs, const Limits& limits, const int32_t* parents);

}  // namespace quire::attn
