// The door of each operation, the same for all its implementations: shapes that do not fit and missing addresses throw
// CheckError before any work. The definitions lie beside the CPU's implementations.
#pragma once
#include "ops/embed.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::ops {

void check_args(const EmbedArgs& args);
void check_args(const GatherArgs& args);
void check_args(const QuantiseArgs& args, Device device);  // who fills the rows: only a GPU has them in bf16
void check_args(const RmsNormArgs& args, Device device);
void check_args(const AddRowsArgs& args);
void check_args(const RopeAnglesArgs& args);
void check_args(const RopeArgs& args);

}  // namespace quire::ops
