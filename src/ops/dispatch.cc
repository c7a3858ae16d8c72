// Which implementation of an operation serves a call: the one for exec's device. On a CPU the instruction set is chosen
// behind x_cpu.cc.
#include "base/check.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::ops {
namespace {

template <class Args>
void serve(const char* operation, void (*cpu)(const Args&, Exec&), const Args& args, Exec& exec) {
  check(exec.device() == Device::cpu, operation, " has no implementation for ", exec.device());
  cpu(args, exec);
}

}  // namespace

void embed(const EmbedArgs& args, Exec& exec) { serve("embed", cpu::embed, args, exec); }
void gather_rows(const GatherArgs& args, Exec& exec) { serve("gather_rows", cpu::gather_rows, args, exec); }
void quantise(const QuantiseArgs& args, Exec& exec) { serve("quantise", cpu::quantise, args, exec); }
void rms_norm(const RmsNormArgs& args, Exec& exec) { serve("rms_norm", cpu::rms_norm, args, exec); }
void add_rows(const AddRowsArgs& args, Exec& exec) { serve("add_rows", cpu::add_rows, args, exec); }
void rope_angles(const RopeAnglesArgs& args, Exec& exec) { serve("rope_angles", cpu::rope_angles, args, exec); }
void rope(const RopeArgs& args, Exec& exec) { serve("rope", cpu::rope, args, exec); }
void matmul(const MatmulArgs& args, Exec& exec) {
  (exec.device() == Device::cuda ? cuda::matmul : cpu::matmul)(args, exec);
}

}  // namespace quire::ops
