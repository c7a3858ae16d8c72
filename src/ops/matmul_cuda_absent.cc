// In place of matmul_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "ops/matmul.h"
#include "ops/packed_rows.h"

namespace quire::ops::cuda {
namespace {

[[noreturn]] void refuse_matmul() { throw CheckError("quire was built without CUDA"); }

}  // namespace

void matmul(const MatmulArgs&, Exec&) { refuse_matmul(); }
int64_t most_own_rows(const PackedMatrix&) { return 0; }
bool fuses_norm(const PackedMatrix&, int64_t) { return false; }
void prepare_matmul(Exec&) { refuse_matmul(); }
void prepare_quantised_matmul(Exec&) { refuse_matmul(); }

}  // namespace quire::ops::cuda
