// In place of the *_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "ops/embed.h"
#include "ops/matmul_choice.h"
#include "ops/packed_rows.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample_record.h"

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

void matmul(const MatmulArgs&, Exec&) { refuse(); }
std::string kernel_of(const MatmulArgs&, Exec&) { refuse(); }
int64_t most_own_rows(const PackedMatrix&) { return 0; }
int64_t most_fused_rows(const PackedMatrix&) { return 0; }
bool stores_heads(const PackedMatrix&, const HeadTargets&, int64_t) { return false; }
bool quantises_rows(const PackedMatrix&, int64_t) { return false; }
void prepare_matmul(Exec&) { refuse(); }
void prepare_quantised_matmul(Exec&) { refuse(); }

int32_t most_vocabulary() { refuse(); }
void sample_rows(const SampleArgs&, Exec&) { refuse(); }
void recount(const RecountArgs&, Exec&) { refuse(); }

}  // namespace quire::ops::cuda
