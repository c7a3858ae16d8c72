// Prefill's calls (prefill_kernel_cuda.cuh), each to the kernels of its types.
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/prefill_tile_cuda.cuh"

namespace quire::attn::cuda {
namespace {

template <class T>
void launch(const prefill_kernels::Prefill& p, const GpuChoice& choice, cudaStream_t stream) {
  if (choice.splits_keys)
    prefill_kernels::launch<T, true>(p, choice.blocks, stream);
  else
    prefill_kernels::launch<T, false>(p, choice.blocks, stream);
}

}  // namespace

void prefill(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const float scale = args.scale * args.kv.key_scale;
  const int32_t group = args.q.heads / args.kv.kv_heads;
  const prefill_kernels::Prefill p{.key_boxes = {},
                                   .value_boxes = {},
                                   .query_boxes = {},
                                   .args = args,
                                   .queries_in_boxes = prefill_kernels::kRowsEach % group == 0,
                                   .group = group,
                                   .box = choice.box,
                                   .next = args.arena->counts(Buf::split_next_tile),
                                   .factor = args.softcap > 0 ? kLog2e : scale * kLog2e,
                                   .cap_scale = args.softcap > 0 ? scale / args.softcap : 0,
                                   .by_group = GroupDivider::by(group),
                                   .partial = PartialResults::in(*args.arena),
                                   .arrivals = args.arena->counts(Buf::split_arrivals)};
  if (args.q.type == Dtype::bf16)
    launch<__nv_bfloat16>(p, choice, stream_of(exec));
  else
    launch<__half>(p, choice, stream_of(exec));
}

}  // namespace quire::attn::cuda
