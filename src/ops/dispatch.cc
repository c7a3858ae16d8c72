// Which implementation of an operation serves a call: the one for exec's device. On a CPU the instruction set is chosen
// behind x_cpu.cc.
#include "ops/embed.h"
#include "ops/logits.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quire::ops {
namespace {

template <class Args>
using OperationFn = void(const Args&, Exec&);

template <class Args>
void serve(OperationFn<Args>* on_cpu, OperationFn<Args>* on_gpu, const Args& args, Exec& exec) {
  (exec.device() == Device::cpu ? on_cpu : on_gpu)(args, exec);
}

}  // namespace

void embed(const EmbedArgs& args, Exec& exec) { serve(cpu::embed, cuda::embed, args, exec); }
void gather_rows(const GatherArgs& args, Exec& exec) { serve(cpu::gather_rows, cuda::gather_rows, args, exec); }
void quantise(const QuantiseArgs& args, Exec& exec) { serve(cpu::quantise, cuda::quantise, args, exec); }
void rms_norm(const RmsNormArgs& args, Exec& exec) { serve(cpu::rms_norm, cuda::rms_norm, args, exec); }
void add_rows(const AddRowsArgs& args, Exec& exec) { serve(cpu::add_rows, cuda::add_rows, args, exec); }
void rope_angles(const RopeAnglesArgs& args, Exec& exec) { serve(cpu::rope_angles, cuda::rope_angles, args, exec); }
void rope(const RopeArgs& args, Exec& exec) { serve(cpu::rope, cuda::rope, args, exec); }
void logits(const LogitsArgs& args, Exec& exec) { serve(cpu::logits, cuda::logits, args, exec); }
void matmul(const MatmulArgs& args, Exec& exec) { serve(cpu::matmul, cuda::matmul, args, exec); }

}  // namespace quire::ops
