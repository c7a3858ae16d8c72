// The few words every room shares: ids that do not convert into each other, and the element types.
//
// A page id used as a token slot is sixteen times off and still looks plausible; here it does not compile.
#pragma once
#include <bit>
#include <compare>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace quire {

template <class Tag>
struct Id {
  int32_t value;
  friend constexpr auto operator<=>(Id, Id) = default;
};
template <class Tag>
std::string to_string(Id<Tag> id) {
  return std::to_string(id.value);
}

using PageId = Id<struct PageTag>;       // one page of the pool
using TokenSlot = Id<struct SlotTag>;    // one token's place: page * page size + offset
using RequestRow = Id<struct RowTag>;    // one row of the request table
using TokenCount = Id<struct CountTag>;  // a length in tokens

// Tokens per page: a power of two, so that division is a shift.
class PageSize {
 public:
  explicit constexpr PageSize(int32_t tokens)
      : tokens_(tokens), shift_(std::countr_zero(static_cast<uint32_t>(tokens))) {
    if (tokens != 1 && tokens != 16 && tokens != 32 && tokens != 64 && tokens != 128)
      throw CheckError(cat("page size ", tokens, " is not one of 1, 16, 32, 64, 128"));
  }
  constexpr int32_t tokens() const { return tokens_; }
  constexpr int32_t shift() const { return shift_; }
  constexpr int32_t pages_for(int64_t token_count) const {
    return static_cast<int32_t>((token_count + tokens_ - 1) >> shift_);
  }
  constexpr PageId page_of(TokenSlot slot) const { return {slot.value >> shift_}; }
  constexpr TokenSlot slot(PageId page, int32_t offset) const { return {(page.value << shift_) + offset}; }
  friend constexpr bool operator==(PageSize, PageSize) = default;

 private:
  int32_t tokens_;
  int32_t shift_;
};

// Who computes, and for whom memory is laid out.
enum class Device : uint8_t { cpu, cuda };
constexpr const char* to_string(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

enum class Dtype : uint8_t { f32, bf16, f16, f8e4m3 };
constexpr int32_t size_of(Dtype type) { return type == Dtype::f32 ? 4 : type == Dtype::f8e4m3 ? 1 : 2; }
constexpr const char* to_string(Dtype type) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f8e4m3"};
  return kNames[static_cast<int>(type)];
}

// Storage of the narrow types. Conversion to float is exact; from float it rounds to nearest, ties to even.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct f8e4m3 {
  uint8_t bits;
};  // e4m3fn: no infinities, +-448 is the largest, 0x7f and 0xff are NaN

float to_float(bf16 x);
float to_float(f16 x);
float to_float(f8e4m3 x);
inline float to_float(float x) { return x; }
bf16 to_bf16(float x);
f16 to_f16(float x);
f8e4m3 to_f8e4m3(float x);  // saturates to +-448; NaN stays NaN

// One element of an array whose type is known at run time, for references and tests.
float load_element(Dtype type, const void* array, int64_t index);
void store_element(Dtype type, void* array, int64_t index, float value);

}  // namespace quire
