#include "kv/request_table.h"

#include <algorithm>

namespace quire::kv {
namespace {

// Checked before the table is made, so that nothing is taken for a table that makes no sense.
int32_t checked_width(PageSize page_size, int32_t rows, int32_t tokens_per_row) {
  check(rows >= 2, "a request table needs the padding row and at least one more, got ", rows, " rows");
  check(tokens_per_row >= 1, "a request table's rows must hold at least one token, got ", tokens_per_row);
  return page_size.pages_for(tokens_per_row);
}

}  // namespace

RequestTable::RequestTable(PagePool& pool, int32_t rows, int32_t tokens_per_row, Place place)
    : pool_(pool),
      width_(checked_width(pool.page_size(), rows, tokens_per_row)),
      table_(static_cast<size_t>(rows) * width_ * sizeof(PageId), place),
      rows_(rows) {
  closed_.reserve(rows - 1);
  for (int32_t row = rows - 1; row > 0; --row) closed_.push_back({row});
}

RequestTable::~RequestTable() {
  for (size_t row = 0; row < rows_.size(); ++row)
    if (rows_[row].open) close({static_cast<int32_t>(row)});
}

RequestRow RequestTable::open() {
  check(!closed_.empty(), "all ", rows_.size() - 1, " request rows are open");
  const RequestRow row = closed_.back();
  closed_.pop_back();
  rows_[row.value] = {.pages = 0, .released = 0, .open = true};
  return row;
}

void RequestTable::close(RequestRow row) {
  Row& state = open_row(row);
  release_entries(row, state.released, state.pages);
  state = {};
  closed_.push_back(row);
  if (journal_) journal_->keep_within(row, 0, 0);
}

bool RequestTable::reserve(RequestRow row, TokenCount tokens) {
  Row& state = open_row(row);
  const int32_t wanted = checked_page_count(row, tokens);
  if (wanted <= state.pages) return true;
  const size_t missing = wanted - state.pages;
  if (!pool_.allocate({entries(row) + state.pages, missing})) return false;
  if (journal_) journal_->change(row, state.pages, wanted);
  state.pages = wanted;
  return true;
}

void RequestTable::append_shared(RequestRow row, std::span<const PageId> pages) {
  Row& state = open_row(row);
  check(std::ssize(pages) <= width_ - state.pages, "request row ", row, " has ", state.pages, " of ", width_,
        " pages and cannot take ", pages.size(), " more");
  for (const PageId page : pages) pool_.check_live(page);
  for (const PageId page : pages) pool_.retain(page);
  std::copy(pages.begin(), pages.end(), entries(row) + state.pages);
  const int32_t before = state.pages;
  state.pages += static_cast<int32_t>(pages.size());
  if (journal_) journal_->change(row, before, state.pages);
}

void RequestTable::truncate(RequestRow row, TokenCount tokens) {
  Row& state = open_row(row);
  const int32_t kept = checked_page_count(row, tokens);
  check(kept <= state.pages, "request row ", row, " has ", state.pages, " pages, too few to be cut to ", tokens,
        " tokens");
  check(kept == 0 || kept >= state.released, "request row ", row, " cannot be cut to ", tokens, " tokens: its first ",
        state.released, " pages were given back");
  release_entries(row, std::max(kept, state.released), state.pages);
  state.pages = kept;
  state.released = std::min(state.released, kept);
  if (journal_) journal_->keep_within(row, state.released, kept);
}

void RequestTable::replace_page(RequestRow row, int32_t index, PageId fresh) {
  const Row& state = open_row(row);
  check(index >= state.released && index < state.pages, "request row ", row, " has pages [", state.released, ", ",
        state.pages, "), none at index ", index);
  pool_.check_live(fresh);
  PageId& entry = entries(row)[index];
  pool_.release(entry);
  entry = fresh;
  if (journal_) journal_->change(row, index, index + 1);
}

void RequestTable::release_pages(RequestRow row, int32_t first, int32_t last) {
  Row& state = open_row(row);
  check(first == state.released && last >= first && last <= state.pages, "request row ", row, " has pages [",
        state.released, ", ", state.pages, ") and gives back from the front, not [", first, ", ", last, ")");
  release_entries(row, first, last);
  std::fill(entries(row) + first, entries(row) + last, kReservedPage);
  state.released = last;
  if (journal_) journal_->keep_within(row, last, state.pages);
}

int32_t RequestTable::first_page(RequestRow row) const { return open_row(row).released; }

std::span<const PageId> RequestTable::pages(RequestRow row) const {
  const Row& state = open_row(row);
  return {entries(row), static_cast<size_t>(state.pages)};
}

TokenSlot RequestTable::slot(RequestRow row, int32_t position) const {
  const Row& state = open_row(row);
  const PageSize page_size = pool_.page_size();
  const int32_t index = position >> page_size.shift();
  check(index >= state.released && index < state.pages, "position ", position, " of request row ", row, " is on page ",
        index, ", and the row has pages [", state.released, ", ", state.pages, ")");
  return page_size.slot(entries(row)[index], position & (page_size.tokens() - 1));
}

int32_t RequestTable::open_rows() const { return static_cast<int32_t>(rows_.size() - 1 - closed_.size()); }

TableView RequestTable::view() const {
  return {.pages = entries({0}),
          .stride = width_,
          .rows = static_cast<int32_t>(rows_.size()),
          .width = width_,
          .page_size = pool_.page_size(),
          .pool_pages = pool_.pages()};
}

void RequestTable::keep_journal() {
  journal_.emplace(static_cast<int32_t>(rows_.size()));
  for (size_t row = 0; row < rows_.size(); ++row)
    journal_->change({static_cast<int32_t>(row)}, rows_[row].released, rows_[row].pages);
}

bool RequestTable::take_changes(const JournalSpace& space) {
  check(journal_.has_value(), "the request table keeps no journal of its changes");
  return journal_->take(view(), space);
}

const RequestTable::Row& RequestTable::open_row(RequestRow row) const {
  check(row.value >= 0 && row.value < std::ssize(rows_), "request row ", row, " is outside the table of ", rows_.size(),
        " rows");
  check(rows_[row.value].open, "request row ", row, " is not open");
  return rows_[row.value];
}

RequestTable::Row& RequestTable::open_row(RequestRow row) {
  return const_cast<Row&>(static_cast<const RequestTable&>(*this).open_row(row));
}

int32_t RequestTable::checked_page_count(RequestRow row, TokenCount tokens) const {
  const PageSize page_size = pool_.page_size();
  check(tokens.value >= 0, "request row ", row, " cannot hold ", tokens, " tokens");
  const int32_t count = page_size.pages_for(tokens.value);
  check(count <= width_, tokens, " tokens need ", count, " pages of ", page_size.tokens(), ", and request row ", row,
        " is ", width_, " pages wide");
  return count;
}

void RequestTable::release_entries(RequestRow row, int32_t first, int32_t last) {
  for (int32_t index = first; index < last; ++index) pool_.release(entries(row)[index]);
}

PageId* RequestTable::entries(RequestRow row) const {
  return reinterpret_cast<PageId*>(table_.data()) + static_cast<int64_t>(row.value) * width_;
}

}  // namespace quire::kv
