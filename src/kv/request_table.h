// Which pages hold each running request's tokens, in order. One row a request, at a fixed address, so
// that attention reads a row in place instead of having it copied for every step.
//
//   row r:  [ page of tokens 0..ps-1 | page of tokens ps..2ps-1 | ... ]      entries past the row's pages are undefined
//
// The table takes over one reference for each page that is appended, and gives it back when the row is
// truncated, closed or the table dies.
//
// Errors   a row that is not open, more tokens than a row holds, an index or position without a live page:
//          each throws CheckError and changes nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/types.h"
#include "kv/page_pool.h"
#include "kv/page_table_journal.h"

namespace quire::kv {

// What kernels and metadata writers see of the table.
struct TableView {
  const PageId* pages;  // [rows, width]
  int64_t stride;       // entries from one row to the next
  int32_t rows;
  int32_t width;
  PageSize page_size;
  int32_t pool_pages;  // ids are below this
};

class RequestTable {
 public:
  // Rows hold tokens_per_row tokens; row 0 is never handed out (padding uses it). The table is kept by the host: it may
  // be pinned, never the device's own.
  RequestTable(PagePool& pool, int32_t rows, int32_t tokens_per_row, Place place = Place::host);
  ~RequestTable();
  RequestTable(const RequestTable&) = delete;
  RequestTable& operator=(const RequestTable&) = delete;

  RequestRow open();           // throws CheckError when all rows are taken
  void close(RequestRow row);  // releases the row's pages

  // Grows the row until it has room for `tokens`; false (and no change) when the pool has too few pages.
  [[nodiscard]] bool reserve(RequestRow row, TokenCount tokens);
  void append_shared(RequestRow row, std::span<const PageId> pages);  // retains each
  // Releases the pages past `tokens`, which the row must have room for. A row whose front was given back can
  // be emptied, but not cut inside that front: the tokens it would end with are gone.
  void truncate(RequestRow row, TokenCount tokens);
  // Puts `fresh` (whose reference the table takes over) in place of the page at `index`, releasing the old one:
  // the second half of copy-on-write, after the tokens were copied.
  void replace_page(RequestRow row, int32_t index, PageId fresh);
  // Releases the row's pages [first, last) while the row stays open; kernels no longer read those entries,
  // which become the reserved page. Pages leave from the front: first == first_page(row).
  void release_pages(RequestRow row, int32_t first, int32_t last);
  int32_t first_page(RequestRow row) const;  // the pages before it were given back

  std::span<const PageId> pages(RequestRow row) const;
  TokenSlot slot(RequestRow row, int32_t position) const;  // checked
  int32_t open_rows() const;
  TableView view() const;

  // For a mirror in a GPU's memory (page_table_journal.h): from now on changes are kept until they are taken; what the
  // table holds already is one, also when it is called again. Then, once a step: false when some are left for another
  // call.
  void keep_journal();
  [[nodiscard]] bool take_changes(const JournalSpace& space);

 private:
  struct Row {
    int32_t pages = 0;
    int32_t released = 0;  // pages [0, released) were given back by release_pages
    bool open = false;
  };
  Row& open_row(RequestRow row);
  const Row& open_row(RequestRow row) const;
  int32_t checked_page_count(RequestRow row, TokenCount tokens) const;  // throws when wider than a row
  void release_entries(RequestRow row, int32_t first, int32_t last);
  PageId* entries(RequestRow row) const;

  PagePool& pool_;
  int32_t width_;
  Buffer table_;           // [rows, width] PageId
  std::vector<Row> rows_;  // [rows]
  std::vector<RequestRow> closed_;
  std::optional<PageTableJournal> journal_;  // none: nobody has a mirror
};

}  // namespace quire::kv
