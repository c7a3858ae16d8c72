// In place of the *_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "model/draft_branches.h"
#include "model/draft_rows.h"
#include "model/rope_store.h"

namespace quire::model::cuda {
namespace {

[[noreturn]] void refuse() { throw CheckError("quire was built without CUDA"); }

}  // namespace

void rope_store(const QkvBlock&, Exec&) { refuse(); }
void walk(const WalkArgs&, Exec&) { refuse(); }
void enter_states(const EnterStatesArgs&, Exec&) { refuse(); }
void keep_features(const KeepFeaturesArgs&, Exec&) { refuse(); }
void take_rows(const TakeRowsArgs&, Exec&) { refuse(); }
void lay_out(const LayOutArgs&, Exec&) { refuse(); }
void pick(const PickArgs&, Exec&) { refuse(); }
void keep_path(const KeepPathArgs&, Exec&) { refuse(); }
void grow(const GrowArgs&, Exec&) { refuse(); }

}  // namespace quire::model::cuda
