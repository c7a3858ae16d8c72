// The newest token of each row of the request table, as a GPU keeps them: who samples writes, and the inputs of a step
// name a token that the host does not know yet by its row. Beside them the time of steps.
#pragma once
#include <cstdint>

#include "base/types.h"

namespace quire {

// In place of a token id: what was last drawn for this request row.
constexpr int32_t future_token(RequestRow row) { return -1 - row.value; }
constexpr int32_t row_of_future_token(int32_t id) { return -1 - id; }

// Steps as the device's clock has them, in nanoseconds.
struct StepClock {
  unsigned long long begun;  // this one
  unsigned long long ended;  // the newest that has a token
  unsigned long long idle;   // between the two, as this one began
};

// All the device's. Null: nobody samples there.
struct DrawnTokens {
  const int32_t* of_row = nullptr;  // [rows]
  StepClock* clock = nullptr;
  int32_t rows = 0;  // of the request table
};

}  // namespace quire
