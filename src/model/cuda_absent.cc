// In place of the *_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "model/rope_store.h"

namespace quire::model::cuda {

void rope_store(const QkvBlock&, Exec&) { throw CheckError("quire was built without CUDA"); }

}  // namespace quire::model::cuda
