// The reference: what attention means, read straight from a KeyView, in plain loops of double.
#include "attn/attend_row_ref.h"

namespace quire::attn {
namespace {

// Where sequence b's keys lie, by position: first the pages, then the row's own branch.
class SequenceKeys {
 public:
  SequenceKeys(const KeyView& keys, int32_t b)
      : keys_(keys),
        pages_(keys.pages + (keys.rows ? keys.rows[b].value : b) * keys.stride +
               (keys.first_page ? keys.first_page[b] : 0)),
        start_(keys.starts_at_first_page ? int64_t{keys.first_page[b]} * keys.page_size.tokens() : 0),
        end_(start_ + keys.lengths[b]) {}

  int64_t start() const { return start_; }
  int64_t end() const { return end_; }
  TokenSlot in_pages(int64_t position) const {
    const auto key = static_cast<int32_t>(position - start_);
    const PageSize size = keys_.page_size;
    return size.slot(pages_[key >> size.shift()], key & (size.tokens() - 1));
  }
  TokenSlot in_branch(int64_t row, int64_t position) const {
    return keys_.branch_slots[row * keys_.branch_stride + (position - end_)];
  }

 private:
  const KeyView& keys_;
  const PageId* pages_;
  int64_t start_;
  int64_t end_;
};

void attend_branch_row(const AttendArgs& args, const SequenceKeys& keys, int64_t row) {
  const int64_t end = keys.end() + args.keys.branch_lengths[row];
  attend_row_ref(args, row, windowed(keys.start(), end, end - 1, args.window), [&](int64_t position) {
    return position < keys.end() ? keys.in_pages(position) : keys.in_branch(row, position);
  });
}

// rows_after: how many rows of the sequence follow this one; the last row's position is the last key's.
void attend_causal_row(const AttendArgs& args, const SequenceKeys& keys, int64_t row, int64_t rows_after) {
  const int64_t end = keys.end() - rows_after;
  attend_row_ref(args, row, windowed(keys.start(), end, end - 1, args.window),
                 [&](int64_t position) { return keys.in_pages(position); });
}

void attend_sequence(const AttendArgs& args, int32_t b) {
  const SequenceKeys keys(args.keys, b);
  const int64_t last = args.keys.cu_q[b + 1];
  for (int64_t row = args.keys.cu_q[b]; row < last; ++row) {
    if (args.keys.branch_lengths)
      attend_branch_row(args, keys, row);
    else if (args.keys.causal)
      attend_causal_row(args, keys, row, last - 1 - row);
    else
      attend_row_ref(args, row, {keys.start(), keys.end()}, [&](int64_t position) { return keys.in_pages(position); });
  }
}

void run(const AttendArgs& args, Exec&) {
  const int32_t live = *args.keys.live;
  for (int32_t b = 0; b < live; ++b) attend_sequence(args, b);
  for (int64_t row = args.keys.cu_q[live]; row < args.q.rows; ++row)
    for (int32_t head = 0; head < args.q.heads; ++head) store_row_ref(args, row, head, nullptr);
}

}  // namespace

namespace ref {
void attend(const AttendArgs& args, Exec& exec) {
  check_args(args);
  if (!exec.capturing()) check_rows(args);
  exec.launch(run, args);
}
}  // namespace ref

}  // namespace quire::attn
