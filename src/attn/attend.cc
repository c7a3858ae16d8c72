// Picks the implementation of attention for callers.
#include "attn/attention.h"

namespace quire::attn {

void attend(const AttendArgs& args, Exec& exec) { (exec.stream() ? cuda::attend : cpu::attend)(args, exec); }

}  // namespace quire::attn
