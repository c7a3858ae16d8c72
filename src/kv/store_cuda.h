// The store's operations on the GPU. Callers use store.h, which checks first and comes here when exec has a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/exec.h"
#include "kv/store.h"

namespace quire::kv::cuda {

void store_rows(const StoreArgs& args, Exec& exec);

// Where the rows of a store lie, layer after layer.
struct SlotCopy {
  std::byte* keys;  // of the first layer
  std::byte* values;
  int64_t key_bytes;    // of a slot
  int64_t value_bytes;  // likewise; 0: a latent store, which has none
  int64_t layer_bytes;  // from one layer to the next
  int32_t layers;
};
size_t staging_bytes(const SlotCopy& copy, size_t slots);
// Through staging memory of the device, so that all is read before anything is written.
void copy_slots(const SlotCopy& copy, std::span<const TokenSlot> from, std::span<const TokenSlot> to,
                std::byte* staging, Exec& exec);

}  // namespace quire::kv::cuda
