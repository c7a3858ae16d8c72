// The request table's mirror in a GPU's memory, and the journal through which it follows the table that the host keeps.
//
//   host   RequestTable::take_changes   what changed since the last step > runs of page ids in the step's inputs
//   GPU    apply_journal                before the step's graph: those runs > the mirror, read by all kernels after it
//
// The host's own table changes under steps that are still in flight. The mirror changes in stream order alone, so a
// step sees the table as it was when the step was launched, even if a row has been closed and given to another request
// since.
//
// Bounded  a step's inputs have room for so many runs and page ids. What does not fit stays in the journal, in order:
//          the caller sends what it got ahead in a step of nobody (live 0), and takes again, until all is taken.
// Holds    of each open row the entries [first_page, pages). Others are nobody's: they may differ from the table's.
// Cost     the host keeps one range of entries a row, whatever happens in it: several changes of a row become one run.
//
// A CPU reads the table in place and keeps no journal.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/exec.h"
#include "base/types.h"

namespace quire::kv {

struct TableView;

// Entries [first, first + count) of a row become pages [begin, begin + count) of the journal's.
struct PageRun {
  RequestRow row;
  int32_t first, count, begin;
};

// Where a step's changes are written: a part of its inputs.
struct JournalSpace {
  int32_t* count;  // [1] of runs
  std::span<PageRun> runs;
  std::span<PageId> pages;
};

class PageTableJournal {
 public:
  explicit PageTableJournal(int32_t rows);

  void change(RequestRow row, int32_t first, int32_t last);  // those entries have new page ids
  // Of the row only entries [first, last) count from now on; the changes of others need not be told.
  void keep_within(RequestRow row, int32_t first, int32_t last);

  // Writes what changed, with the page ids that the table has now. False: the rest is for another call.
  [[nodiscard]] bool take(const TableView& table, const JournalSpace& space);

 private:
  struct Range {
    int32_t first = 0, last = 0;
    bool listed = false;  // in rows_
  };
  std::vector<Range> changed_;    // [rows]
  std::vector<RequestRow> rows_;  // those with changes, in the order of their first
};

class PageTableMirror {
 public:
  explicit PageTableMirror(const TableView& table, Place place = Place::device);  // never filled
  TableView view() const;                                                         // in place of the table's
  PageId* pages() const { return reinterpret_cast<PageId*>(memory_.data()); }

 private:
  Buffer memory_;  // [rows, width] PageId
  int32_t rows_, width_, pool_pages_;
  PageSize page_size_;
};

struct ApplyJournalArgs {
  const int32_t* count;  // [1] read when the operation runs
  const PageRun* runs;
  const PageId* pages;
  int32_t most_runs;
  PageId* mirror;  // [rows, stride]
  int64_t stride;
};

// After    the runs' entries of the mirror hold their page ids; nothing else was written.
using ApplyJournalFn = void(const ApplyJournalArgs&, Exec&);
namespace ref {
ApplyJournalFn apply_journal;  // on a CPU, where only tests have a mirror
}
namespace cuda {
ApplyJournalFn apply_journal;  // arguments and mirror are the device's, or pinned
}
ApplyJournalFn apply_journal;  // for callers: on the GPU when exec has a stream

}  // namespace quire::kv
