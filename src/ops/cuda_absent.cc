// In place of the *_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "ops/embed.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::ops::cuda {
namespace {

[[noreturn]] void refuse() { throw CheckError("quire was built without CUDA"); }

}  // namespace

void embed(const EmbedArgs&, Exec&) { refuse(); }
void gather_rows(const GatherArgs&, Exec&) { refuse(); }
void quantise(const QuantiseArgs&, Exec&) { refuse(); }
void rms_norm(const RmsNormArgs&, Exec&) { refuse(); }
void add_rows(const AddRowsArgs&, Exec&) { refuse(); }
void rope_angles(const RopeAnglesArgs&, Exec&) { refuse(); }
void rope(const RopeArgs&, Exec&) { refuse(); }

}  // namespace quire::ops::cuda
