// In place of sample_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "ops/sample_record.h"

namespace quire::ops::cuda {
namespace {

[[noreturn]] void refuse_sampling() { throw CheckError("quire was built without CUDA"); }

}  // namespace

int32_t most_vocabulary() { refuse_sampling(); }
void sample_rows(const SampleArgs&, Exec&) { refuse_sampling(); }
void resolve_future_tokens(const FutureTokensArgs&, Exec&) { refuse_sampling(); }
void recount(const RecountArgs&, Exec&) { refuse_sampling(); }

}  // namespace quire::ops::cuda
