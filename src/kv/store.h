// The memory of keys and values, and the two ways it changes: new rows are stored by slot, and slots are
// copied to slots.
//
//   keys    [slots, kv heads, key dim]     a token's heads are adjacent, so a page of any size is one
//   values  [slots, kv heads, value dim]   contiguous stretch and pages of one token read at full speed
//
// With a latent layout (MLA) there is one kv head and a value is the front of the key's row: one array.
// Nothing is ever filled: a slot holds garbage until a row is stored in it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "base/types.h"

namespace quire::kv {

struct KvLayout {
  int32_t layers;
  int32_t pages;  // the reserved one included
  PageSize page_size;
  Dtype type = Dtype::bf16;
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  bool latent = false;  // MLA: values are the first value_dim elements of keys

  int64_t slots() const { return static_cast<int64_t>(pages) * page_size.tokens(); }
};
std::string to_string(const KvLayout& layout);

// One layer's keys and values, as kernels see them.
struct LayerKv {
  std::byte* keys;
  std::byte* values;  // the same address as keys when latent
  Dtype type;
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int64_t key_stride;    // elements from one slot to the next
  int64_t value_stride;  // likewise
  float key_scale;       // stored = true / scale; 1 except for fp8
  float value_scale;
  int64_t slots;

  constexpr bool latent() const { return values == keys; }
};

class KvStore {
 public:
  // Throws CheckError printing the layout when it makes no sense.
  explicit KvStore(const KvLayout& layout, Place place = Place::host_huge_pages);

  const KvLayout& layout() const { return layout_; }
  LayerKv layer(int32_t index) const;
  // Positive and finite; 1 unless the type is fp8; equal when latent, where values are keys.
  void set_scales(int32_t layer, float key_scale, float value_scale);

  // Every layer's rows of slot from[i] are written to slot to[i], as if all were read first (paths of an
  // accepted tree overlap). Slots outside the store throw before anything moves. The slots of a call live on
  // the host and its staging grows to the largest call so far, so it is refused while exec captures. On the GPU when
  // exec has a stream; the lists of slots may be changed or gone as soon as it returns.
  void copy_slots(std::span<const TokenSlot> from, std::span<const TokenSlot> to, Exec& exec);

 private:
  void copy_slots_on_gpu(std::span<const TokenSlot> from, std::span<const TokenSlot> to, Exec& exec);

  KvLayout layout_;
  Buffer memory_;              // [layers] of keys then values, each array 64-byte aligned
  std::vector<float> scales_;  // [layers, 2]
  Buffer staging_;             // [threads] of one array's copied rows
  Buffer gpu_staging_;         // of a copy on the GPU: every array's rows, then the slots
};

// Stores row i of keys and values at slot slots[i] for i < *live_rows; rows past that are skipped. Converts
// from the rows' type to the store's (nearest even; fp8 divides by the scale and saturates).
// `values` is ignored by latent layers. The slots of live rows are distinct. Records into a graph while exec
// captures; shapes and types are checked then, and slots and *live_rows are left to whoever writes them, as they always
// are on the GPU, where exec has a stream and all addresses are the device's, or pinned.
struct StoreArgs {
  LayerKv layer;
  ConstHeadRows keys;
  ConstHeadRows values;
  const TokenSlot* slots;    // [rows]
  const int32_t* live_rows;  // read when the operation runs
};
void store_rows(const StoreArgs& args, Exec& exec);

// The check store_rows cannot make at replay: call it on the host when slots are chosen.
void check_slots(std::span<const TokenSlot> slots, const LayerKv& layer);

}  // namespace quire::kv
