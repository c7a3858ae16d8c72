// Decode's calls (decode_kernel_cuda.cuh), each to the kernels of its type of keys.
#include <bit>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_call_cuda.cuh"
#include "attn/gpu_sizes.h"

namespace quire::attn::cuda {

void decode(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const MetadataArena& arena = *args.arena;
  const int32_t group = args.q.heads / args.kv.kv_heads;
  const decode_kernels::Decode d{.args = args,
                                 .cut = {.group = group,
                                         .tile_shift = std::countr_zero(static_cast<uint32_t>(choice.tile_rows())),
                                         .branch = args.keys.branch_lengths ? args.keys.most_branch_tokens : 0,
                                         .window = args.window,
                                         .round = DecodeSizes{.element = static_cast<int32_t>(size_of(args.kv.type)),
                                                              .row_tiles = choice.row_tiles,
                                                              .dim = args.kv.key_dim}
                                                      .round(),
                                         .slots_of_worker = choice.slots_of_worker,
                                         .is_causal = args.keys.causal,
                                         .is_fixed = choice.is_fixed},
                                 .batch = arena.limits().batch,
                                 .workers = choice.blocks / args.kv.kv_heads,
                                 .by_group = GroupDivider::by(group),
                                 .rows = choice.split_rows,
                                 .sums_rows = choice.sums_rows,
                                 .team = choice.team,
                                 .stages = choice.stages,
                                 .key_bytes = static_cast<int32_t>(args.kv.key_stride * size_of(args.kv.type)),
                                 .value_bytes = static_cast<int32_t>(args.kv.value_stride * size_of(args.kv.type)),
                                 .keys_are_old = args.keys_are_settled && args.keys.set != Set::encoder,
                                 .reads_once = choice.is_one_tile,
                                 .partial = PartialResults::in(arena),
                                 .arrivals = arena.counts(Buf::split_arrivals)};
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::f8e4m3)
    decode_kernels::launch_for<__nv_fp8_e4m3>(d, choice, stream);
  else if (args.kv.type == Dtype::bf16)
    decode_kernels::launch_for<__nv_bfloat16>(d, choice, stream);
  else
    decode_kernels::launch_for<__half>(d, choice, stream);
}

}  // namespace quire::attn::cuda
