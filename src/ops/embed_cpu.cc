#include <algorithm>
#include <span>

#include "ops/by_row.h"
#include "ops/check_args.h"

namespace quire::ops {
namespace {

void check_index(const char* operation, const int32_t* index, int64_t row, int64_t limit) {
  check(index[row] >= 0 && index[row] < limit, operation, " of index ", index[row], " (row ", row, "), outside ",
        limit);
}

struct EmbedOp {
  static constexpr const char* kName = "embed";
  EmbedArgs args;
  int64_t row_bytes;  // of the table

  void check_row(int64_t row) const { check_index(kName, args.ids, row, args.table.outputs); }

  void run_row(int64_t row) const {
    const std::byte* blocks = args.table.data + args.ids[row] * row_bytes;
    const std::span<float> out{args.out.row(row), static_cast<size_t>(args.out.dim)};
    dequantise(args.table.type, blocks, out);
    if (args.scale == 1) return;
    for (float& x : out) x *= args.scale;
  }
};

struct GatherOp {
  static constexpr const char* kName = "gather_rows";
  GatherArgs args;

  void check_row(int64_t row) const { check_index(kName, args.index, row, args.in.rows); }

  void run_row(int64_t row) const { std::copy_n(args.in.row(args.index[row]), args.in.dim, args.out.row(row)); }
};

template <class T>
void check_rows(const char* operation, const char* what, const Rows<T>& rows) {
  check(rows.rows >= 0 && rows.dim > 0, operation, " with ", rows.rows, " rows of ", rows.dim, " ", what);
  check(rows.stride >= rows.dim || rows.rows <= 1, operation, " with a row stride of ", rows.stride, " ", what,
        ", shorter than ", rows.dim);
  check(rows.data != nullptr || rows.rows == 0, operation, " with ", rows.rows, " rows ", what, " and no address");
}

}  // namespace

void check_args(const EmbedArgs& args) {
  check_rows("embed", "out", args.out);
  check(args.table.data != nullptr && args.ids != nullptr, "embed needs a table and ids");
  check(args.table.inputs == args.out.dim, "embed from rows of ", args.table.inputs, " to rows of ", args.out.dim);
}

void cpu::embed(const EmbedArgs& args, Exec& exec) {
  check_args(args);
  const EmbedOp op{args, args.table.row_stride()};
  launch_by_row(op, args.live_rows, args.out.rows, args.out.dim, exec);
}

void check_args(const GatherArgs& args) {
  check_rows("gather_rows", "in", args.in);
  check_rows("gather_rows", "out", args.out);
  check(args.in.dim == args.out.dim, "gather_rows from rows of ", args.in.dim, " to rows of ", args.out.dim);
  check(args.index != nullptr, "gather_rows needs the address of its indices");
}

void cpu::gather_rows(const GatherArgs& args, Exec& exec) {
  check_args(args);
  launch_by_row(GatherOp{args}, args.live_rows, args.out.rows, args.out.dim, exec);
}

}  // namespace quire::ops
