#include "kv/store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kv/convert.h"
#include "kv/store_cuda.h"

namespace quire::kv {
namespace {

constexpr int64_t kArrayAlign = 64;

int64_t round_up(int64_t bytes) { return (bytes + kArrayAlign - 1) / kArrayAlign * kArrayAlign; }

int64_t array_bytes(const KvLayout& layout, int32_t dim) {
  return round_up(layout.slots() * layout.kv_heads * dim * size_of(layout.type));
}

int64_t key_bytes(const KvLayout& layout) { return array_bytes(layout, layout.key_dim); }

int64_t layer_bytes(const KvLayout& layout) {
  return key_bytes(layout) + (layout.latent ? 0 : array_bytes(layout, layout.value_dim));
}

const KvLayout& checked_layout(const KvLayout& layout) {
  check(layout.layers > 0 && layout.pages >= 2 && layout.kv_heads > 0 && layout.key_dim > 0 && layout.value_dim > 0,
        "a store needs at least 1 layer, 2 pages and 1 head of 1 element: ", layout);
  check(!layout.latent || layout.kv_heads == 1, "a latent store has one kv head: ", layout);
  check(!layout.latent || layout.value_dim <= layout.key_dim, "a latent value is the front of its key: ", layout);
  check(layout.slots() <= std::numeric_limits<int32_t>::max(), layout.slots(),
        " token slots are more than a slot id can name: ", layout);
  // In floating point, where the product of absurd sizes does not wrap around to a sensible one.
  const double dims = static_cast<double>(layout.key_dim) + layout.value_dim;
  const double bytes = 1.0 * layout.layers * layout.slots() * layout.kv_heads * dims * size_of(layout.type);
  check(bytes < 0x1p46, "no machine addresses ", bytes, " bytes of keys and values: ", layout);
  return layout;
}

void check_scale(const char* name, float scale, Dtype type) {
  check(std::isfinite(scale) && scale > 0, "a ", name, " scale must be positive and finite, got ", scale);
  check(type == Dtype::f8e4m3 || scale == 1, "a ", name, " scale of ", scale, " needs the type f8e4m3, not ", type);
}

bool aligned(const void* address, Dtype type) { return reinterpret_cast<uintptr_t>(address) % size_of(type) == 0; }

// A row's heads lie together in the store, so `rows` must have exactly the store's heads and dim.
void check_rows(const char* name, const ConstHeadRows& rows, int32_t heads, int32_t dim) {
  check(rows.heads == heads && rows.dim == dim, name, " are ", rows.heads, " heads of ", rows.dim,
        ", and the store has ", heads, " of ", dim);
  check(rows.rows >= 0, name, " have ", rows.rows, " rows");
  const int64_t dense = static_cast<int64_t>(heads) * dim;
  check(rows.row_stride >= dense || rows.rows <= 1, name, " have a row stride of ", rows.row_stride,
        ", shorter than a row of ", dense);
  check(rows.data != nullptr || rows.rows == 0, name, " have ", rows.rows, " rows and no address");
  check(aligned(rows.data, rows.type), name, " are not aligned to ", rows.type);
}

void check_args(const StoreArgs& args) {
  const LayerKv& layer = args.layer;
  check(layer.keys != nullptr && layer.values != nullptr, "store_rows needs a layer with memory");
  check_scale("key", layer.key_scale, layer.type);
  check_rows("keys", args.keys, layer.kv_heads, layer.key_dim);
  if (!layer.latent()) {
    check_scale("value", layer.value_scale, layer.type);
    check_rows("values", args.values, layer.kv_heads, layer.value_dim);
    check(args.keys.rows == args.values.rows, args.keys.rows, " rows of keys and ", args.values.rows,
          " rows of values cannot be stored together");
  }
  check(args.slots != nullptr || args.keys.rows == 0, "store_rows needs slots for ", args.keys.rows, " rows");
  check(args.live_rows != nullptr, "store_rows needs the address of the live row count");
}

void check_live_rows(const StoreArgs& args) {
  check(*args.live_rows >= 0 && *args.live_rows <= args.keys.rows, *args.live_rows, " live rows of ", args.keys.rows);
}

void store_range(const StoreArgs& args, int64_t first, int64_t last) {
  const LayerKv& layer = args.layer;
  const int64_t key_elements = static_cast<int64_t>(layer.kv_heads) * layer.key_dim;
  const int64_t value_elements = static_cast<int64_t>(layer.kv_heads) * layer.value_dim;
  for (int64_t row = first; row < last; ++row) {
    const int64_t slot = args.slots[row].value;
    std::byte* key = layer.keys + slot * layer.key_stride * size_of(layer.type);
    convert_elements(args.keys.type, args.keys.at(row, 0), layer.type, key, key_elements, layer.key_scale);
    if (layer.latent()) continue;
    std::byte* value = layer.values + slot * layer.value_stride * size_of(layer.type);
    convert_elements(args.values.type, args.values.at(row, 0), layer.type, value, value_elements, layer.value_scale);
  }
}

// So few rows are stored sooner by the caller than by a team that must be woken.
constexpr int64_t kRowsPerItem = 16;

void run_store(const StoreArgs& args, Exec& exec) {
  const int64_t live = *args.live_rows;
  exec.parallel((live + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    const int64_t first = item * kRowsPerItem;
    store_range(args, first, std::min(first + kRowsPerItem, live));
  });
}

// A layer's keys, or its values.
void copy_array(std::byte* array, int64_t row_bytes, std::span<const TokenSlot> from, std::span<const TokenSlot> to,
                std::byte* staging) {
  for (size_t i = 0; i < from.size(); ++i)
    std::memcpy(staging + i * row_bytes, array + from[i].value * row_bytes, row_bytes);
  for (size_t i = 0; i < to.size(); ++i)
    std::memcpy(array + to[i].value * row_bytes, staging + i * row_bytes, row_bytes);
}

}  // namespace

std::string to_string(const KvLayout& layout) {
  return cat("{layers ", layout.layers, ", pages ", layout.pages, ", page size ", layout.page_size.tokens(), ", type ",
             layout.type, ", kv heads ", layout.kv_heads, ", key dim ", layout.key_dim, ", value dim ",
             layout.value_dim, layout.latent ? ", latent}" : "}");
}

KvStore::KvStore(const KvLayout& layout, Place place)
    : layout_(checked_layout(layout)),
      memory_(static_cast<size_t>(layout.layers * layer_bytes(layout)), place),
      scales_(static_cast<size_t>(layout.layers) * 2, 1.0f) {}

LayerKv KvStore::layer(int32_t index) const {
  check(index >= 0 && index < layout_.layers, "layer ", index, " is outside the store's ", layout_.layers, " layers");
  std::byte* keys = memory_.data() + index * layer_bytes(layout_);
  return {
      .keys = keys,
      .values = layout_.latent ? keys : keys + key_bytes(layout_),
      .type = layout_.type,
      .kv_heads = layout_.kv_heads,
      .key_dim = layout_.key_dim,
      .value_dim = layout_.value_dim,
      .key_stride = static_cast<int64_t>(layout_.kv_heads) * layout_.key_dim,
      .value_stride = static_cast<int64_t>(layout_.kv_heads) * (layout_.latent ? layout_.key_dim : layout_.value_dim),
      .key_scale = scales_[index * 2],
      .value_scale = scales_[index * 2 + 1],
      .slots = layout_.slots()};
}

void KvStore::set_scales(int32_t layer, float key_scale, float value_scale) {
  check(layer >= 0 && layer < layout_.layers, "layer ", layer, " is outside the store's ", layout_.layers, " layers");
  check_scale("key", key_scale, layout_.type);
  check_scale("value", value_scale, layout_.type);
  check(!layout_.latent || key_scale == value_scale, "latent values are keys, and their scales ", key_scale, " and ",
        value_scale, " differ");
  scales_[layer * 2] = key_scale;
  scales_[layer * 2 + 1] = value_scale;
}

void KvStore::copy_slots(std::span<const TokenSlot> from, std::span<const TokenSlot> to, Exec& exec) {
  check(from.size() == to.size(), "cannot copy ", from.size(), " slots to ", to.size());
  check(!exec.capturing(), "a copy of ", from.size(), " slots cannot be captured");
  const LayerKv first = layer(0);
  check_slots(from, first);
  check_slots(to, first);
  if (from.empty()) return;
  if (exec.stream()) return copy_slots_on_gpu(from, to, exec);
  const int64_t row_bytes = std::max(first.key_stride, first.value_stride) * size_of(layout_.type);
  const int64_t staging_stride = round_up(std::ssize(from) * row_bytes);
  const size_t needed = static_cast<size_t>(staging_stride) * exec.threads();
  if (staging_.size() < needed) staging_ = Buffer(needed);
  const int64_t arrays_per_layer = layout_.latent ? 1 : 2;
  exec.parallel(layout_.layers * arrays_per_layer, [&](int64_t item, int thread) {
    const LayerKv at = layer(static_cast<int32_t>(item / arrays_per_layer));
    const bool keys = item % arrays_per_layer == 0;
    copy_array(keys ? at.keys : at.values, (keys ? at.key_stride : at.value_stride) * size_of(at.type), from, to,
               staging_.data() + thread * staging_stride);
  });
}

void KvStore::copy_slots_on_gpu(std::span<const TokenSlot> from, std::span<const TokenSlot> to, Exec& exec) {
  const LayerKv first = layer(0);
  const cuda::SlotCopy copy{
      .keys = first.keys,
      .values = first.values,
      .key_bytes = first.key_stride * size_of(layout_.type),
      .value_bytes = layout_.latent ? 0 : first.value_stride * size_of(layout_.type),
      .layer_bytes = layer_bytes(layout_),
      .layers = layout_.layers,
  };
  const size_t needed = cuda::staging_bytes(copy, from.size());
  if (gpu_staging_.size() < needed) {
    exec.wait();  // for copies that still use the smaller one
    gpu_staging_ = Buffer(needed, Place::device);
  }
  cuda::copy_slots(copy, from, to, gpu_staging_.data(), exec);
}

void store_rows(const StoreArgs& args, Exec& exec) {
  check_args(args);
  if (exec.stream()) return cuda::store_rows(args, exec);
  if (!exec.capturing()) {
    check_live_rows(args);
    check_slots({args.slots, static_cast<size_t>(*args.live_rows)}, args.layer);
  }
  exec.launch(run_store, args);
}

void check_slots(std::span<const TokenSlot> slots, const LayerKv& layer) {
  for (size_t i = 0; i < slots.size(); ++i)
    check(slots[i].value >= 0 && slots[i].value < layer.slots, "slot ", slots[i], " (number ", i,
          ") is outside the store's ", layer.slots, " slots");
}

}  // namespace quire::kv
