#include "ops/embed.h"

#include <algorithm>

#include "ops/by_row.h"

namespace quire::ops {
namespace {

struct EmbedOp {
  EmbedArgs args;
  int64_t row_bytes;  // of the table

  void run_row(int64_t row) const {
    const std::byte* blocks = args.table.data + args.ids[row] * row_bytes;
    dequantise(args.table.type, blocks, {args.out.row(row), static_cast<size_t>(args.out.dim)});
  }
};

struct GatherOp {
  GatherArgs args;

  void run_row(int64_t row) const { std::copy_n(args.in.row(args.index[row]), args.in.dim, args.out.row(row)); }
};

template <class T>
void check_rows(const char* operation, const char* what, const Rows<T>& rows) {
  check(rows.rows >= 0 && rows.dim > 0, operation, " with ", rows.rows, " rows of ", rows.dim, " ", what);
  check(rows.stride >= rows.dim || rows.rows <= 1, operation, " with a row stride of ", rows.stride, " ", what,
        ", shorter than ", rows.dim);
  check(rows.data != nullptr || rows.rows == 0, operation, " with ", rows.rows, " rows ", what, " and no address");
}

// Every index is below the limit, unless the operation is recorded and there is nothing to check yet.
void check_indices(const char* operation, const int32_t* index, const int32_t* live_rows, int64_t limit,
                   const Exec& exec) {
  check(index != nullptr, operation, " needs the address of its indices");
  if (exec.capturing()) return;
  for (int32_t row = 0; row < *live_rows; ++row)
    check(index[row] >= 0 && index[row] < limit, operation, " of index ", index[row], " (row ", row, "), outside ",
          limit);
}

}  // namespace

void embed(const EmbedArgs& args, Exec& exec) {
  check_rows("embed", "out", args.out);
  check(args.table.data != nullptr, "embed needs a table");
  check(args.table.inputs == args.out.dim, "embed from rows of ", args.table.inputs, " to rows of ", args.out.dim);
  check_live_rows("embed", args.live_rows, args.out.rows, exec);
  check_indices("embed", args.ids, args.live_rows, args.table.outputs, exec);
  const EmbedOp op{args, bytes_of(args.table.type, args.table.inputs)};
  launch_by_row(ByRow<EmbedOp>{op, args.live_rows, rows_worth_an_item(args.out.dim)}, exec);
}

void gather_rows(const GatherArgs& args, Exec& exec) {
  check_rows("gather_rows", "in", args.in);
  check_rows("gather_rows", "out", args.out);
  check(args.in.dim == args.out.dim, "gather_rows from rows of ", args.in.dim, " to rows of ", args.out.dim);
  check_live_rows("gather_rows", args.live_rows, args.out.rows, exec);
  check_indices("gather_rows", args.index, args.live_rows, args.in.rows, exec);
  launch_by_row(ByRow<GatherOp>{{args}, args.live_rows, rows_worth_an_item(args.out.dim)}, exec);
}

}  // namespace quire::ops
