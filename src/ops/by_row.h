// Operations that compute each row from that row alone: run on the calling thread when they are little work, cut over
// the team when they are much. How rows are cut changes the time and nothing else.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "base/exec.h"

namespace quire::ops {

// What a graph keeps. Op is trivially copyable, and op.run_row(row) computes one row.
template <class Op>
struct ByRow {
  Op op;
  const int32_t* live_rows;  // read when the operation runs
  int64_t rows_in_item;      // at most
};

inline constexpr int64_t kOnTheCallingThread = std::numeric_limits<int32_t>::max();  // rows_in_item of references

// A few microseconds of work, next to which handing an item to a thread and joining cost little.
inline constexpr int64_t kElementsInItem = 8192;
inline int64_t rows_worth_an_item(int64_t elements_in_row) {
  return std::max<int64_t>(1, kElementsInItem / std::max<int64_t>(1, elements_in_row));
}

namespace detail {
template <class Op>
void run_rows(const ByRow<Op>& by_row, Exec& exec) {
  const int64_t rows = *by_row.live_rows;
  const int64_t items = (rows + by_row.rows_in_item - 1) / by_row.rows_in_item;
  exec.parallel(items, [&](int64_t item, int) {
    const int64_t end = (item + 1) * rows / items;
    for (int64_t row = item * rows / items; row < end; ++row) by_row.op.run_row(row);
  });
}
}  // namespace detail

template <class Op>
void launch_by_row(const ByRow<Op>& by_row, Exec& exec) {
  exec.launch(detail::run_rows<Op>, by_row);
}

// The door: rows that are computed now are counted now; those of a recorded operation when the host fills the step.
inline void check_live_rows(const char* operation, const int32_t* live_rows, int64_t room, const Exec& exec) {
  check(live_rows != nullptr, operation, " needs the address of the live row count");
  if (exec.capturing()) return;
  check(*live_rows >= 0 && *live_rows <= room, operation, " of ", *live_rows, " live rows in room for ", room);
}

}  // namespace quire::ops
