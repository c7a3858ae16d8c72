#include "kv/page_table_journal.h"

#include <algorithm>

#include "kv/request_table.h"

namespace quire::kv {

PageTableJournal::PageTableJournal(int32_t rows) : changed_(static_cast<size_t>(rows)) {
  rows_.reserve(static_cast<size_t>(rows));
}

void PageTableJournal::change(RequestRow row, int32_t first, int32_t last) {
  if (first >= last) return;
  Range& range = changed_[row.value];
  if (!range.listed) rows_.push_back(row);
  const bool is_first = range.first >= range.last;
  range = {.first = is_first ? first : std::min(range.first, first),
           .last = is_first ? last : std::max(range.last, last),
           .listed = true};
}

void PageTableJournal::keep_within(RequestRow row, int32_t first, int32_t last) {
  Range& range = changed_[row.value];
  range.first = std::max(range.first, first);
  range.last = std::min(range.last, last);
}

bool PageTableJournal::take(const TableView& table, const JournalSpace& space) {
  check(!space.runs.empty() && !space.pages.empty(), "a step's inputs have no room for changes of the page table");
  int32_t runs = 0, pages = 0;
  size_t done = 0;
  for (; done < rows_.size(); ++done) {
    Range& range = changed_[rows_[done].value];
    const int32_t left = std::max(0, range.last - range.first);
    const int32_t count =
        runs < std::ssize(space.runs) ? std::min(left, static_cast<int32_t>(space.pages.size()) - pages) : 0;
    if (count > 0) {
      const PageId* from = table.pages + rows_[done].value * table.stride + range.first;
      std::copy(from, from + count, space.pages.begin() + pages);
      space.runs[runs++] = {.row = rows_[done], .first = range.first, .count = count, .begin = pages};
      pages += count;
      range.first += count;
    }
    if (count < left) break;
    range = {};
  }
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(done));
  *space.count = runs;
  return rows_.empty();
}

PageTableMirror::PageTableMirror(const TableView& table, Place place)
    : memory_(static_cast<size_t>(table.rows) * table.width * sizeof(PageId), place),
      rows_(table.rows),
      width_(table.width),
      pool_pages_(table.pool_pages),
      page_size_(table.page_size) {}

TableView PageTableMirror::view() const {
  return {.pages = pages(),
          .stride = width_,
          .rows = rows_,
          .width = width_,
          .page_size = page_size_,
          .pool_pages = pool_pages_};
}

namespace {

void copy_runs(const ApplyJournalArgs& args, Exec&) {
  for (const PageRun& run : std::span(args.runs, static_cast<size_t>(*args.count)))
    std::copy_n(args.pages + run.begin, run.count, args.mirror + run.row.value * args.stride + run.first);
}

}  // namespace

void ref::apply_journal(const ApplyJournalArgs& args, Exec& exec) { exec.launch(copy_runs, args); }

void apply_journal(const ApplyJournalArgs& args, Exec& exec) {
  (exec.stream() ? cuda::apply_journal : ref::apply_journal)(args, exec);
}

}  // namespace quire::kv
