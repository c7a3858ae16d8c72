#include "ops/packed_memory.h"

#include <mutex>

#include "ops/packed_layout.h"

namespace quire::ops {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = 32 * kHugePage;  // address space: only what is written becomes resident
constexpr size_t kLarge = 4 * kHugePage;   // has pieces of its own

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

std::shared_ptr<const Buffer> new_piece(size_t bytes) {
  return std::make_shared<const Buffer>(bytes, Place::host_huge_pages);
}

// Where the next small matrix goes. It does not keep the piece: that is for the matrices to do.
struct Next {
  std::mutex mutex;
  std::weak_ptr<const Buffer> piece;
  size_t used = 0;
};

}  // namespace

PackedMemory::PackedMemory(size_t bytes) {
  const size_t size = round_up(bytes, kLine);
  if (size >= kLarge) {
    piece_ = new_piece(size);
    bytes_ = {piece_->data(), bytes};
    return;
  }
  static Next next;
  const std::lock_guard lock(next.mutex);
  piece_ = next.piece.lock();
  if (!piece_ || next.used + size > piece_->size()) {
    next.piece = piece_ = new_piece(kPiece);
    next.used = 0;
  }
  bytes_ = {piece_->data() + next.used, bytes};
  next.used += size;
}

}  // namespace quire::ops
