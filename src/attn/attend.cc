// Picks the implementation of attention for callers: the fast one of the machine that quire was built for.
#include "attn/attention.h"

namespace quire::attn {

void attend(const AttendArgs& args, Exec& exec) { cpu::attend(args, exec); }

}  // namespace quire::attn
