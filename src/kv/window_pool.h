// The second pool, for layers whose queries see only the last `window` tokens. It has pages and a request table
// of its own, so pages that no query can see again return while the request runs.
//
//   position:   0 .............. length - 1 - window ........ length - 1
//               returned pages | pages kept (at most window + one page) |
#pragma once
#include <cstdint>

#include "base/types.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"

namespace quire::kv {

class WindowPool {
 public:
  // window: how many tokens before itself a query sees (a query at p sees [p - window, p]).
  WindowPool(int32_t pages, PageSize page_size, int32_t rows, int32_t tokens_per_row, TokenCount window,
             Place place = Place::host);

  RequestRow open() { return table_.open(); }
  void close(RequestRow row) { table_.close(row); }
  // Makes room for positions [0, tokens) of which only those in the window need to be alive.
  [[nodiscard]] bool reserve(RequestRow row, TokenCount tokens) { return table_.reserve(row, tokens); }
  // Returns the pages that no query at position >= next_position can see. Pages that hold drafts not yet
  // accepted stay: pass the first position that may still be queried. Going back to a position whose window
  // has already lost pages throws CheckError.
  void advance(RequestRow row, int32_t next_position);

  PagePool& pool() { return pool_; }
  RequestTable& table() { return table_; }
  TokenCount window() const { return window_; }

 private:
  PagePool pool_;
  RequestTable table_;
  TokenCount window_;
};

}  // namespace quire::kv
