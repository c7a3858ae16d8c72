// In place of the *_cuda.cu where the build has no CUDA.
#include "base/check.h"
#include "kv/page_table_journal.h"
#include "kv/store_cuda.h"

namespace quire::kv::cuda {
namespace {

[[noreturn]] void refuse() { throw CheckError("quire was built without CUDA"); }

}  // namespace

void apply_journal(const ApplyJournalArgs&, Exec&) { refuse(); }
void store_rows(const StoreArgs&, Exec&) { refuse(); }
size_t staging_bytes(const SlotCopy&, size_t) { refuse(); }
void copy_slots(const SlotCopy&, std::span<const TokenSlot>, std::span<const TokenSlot>, std::byte*, Exec&) {
  refuse();
}

}  // namespace quire::kv::cuda
