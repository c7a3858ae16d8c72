// How much a template may cost. Templates come with model files and see text of strangers, so everything that either
// can make large has a limit; passing one throws CheckError naming it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::text {

struct TemplateLimits {
  size_t source_bytes = size_t{1} << 20;    // of the template itself
  int syntax_depth = 200;                   // nesting of blocks and expressions, chains of operators included
  int evaluation_depth = 1000;              // nesting of what is being evaluated, calls of macros included
  int value_depth = 100;                    // lists in lists, dicts in dicts
  uint64_t steps = 20'000'000;              // evaluated nodes, and work on long values in units of some bytes
  size_t value_bytes = size_t{16} << 20;    // any one string
  size_t value_items = size_t{1} << 20;     // any one list or dict
  size_t memory_bytes = size_t{256} << 20;  // all values and unfinished output that are alive at once
  size_t output_bytes = size_t{16} << 20;   // the rendered text
};

}  // namespace quire::text
