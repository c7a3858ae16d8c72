#!/usr/bin/env python3
"""quire's decode and causal prefill beside FlashAttention-3, on one Hopper GPU, in one run.

    pip download --no-deps vllm==0.26.0 && unzip -j vllm-*.whl '*/_vllm_fa3_C.abi3.so'
    python3 bench/compare_fa3.py --quire build/cpu/app/quire --library _vllm_fa3_C.abi3.so --from "vLLM 0.26.0"

gpu_comparison.py says how. The library is FA3 as vLLM builds it. Of its two ways the faster counts for each line: the
plan of a step made once for all layers (`get_scheduler_metadata`, as vLLM does), or in every call. Prefill is also
measured without pages.
"""

from gpu_comparison import compare, gpu_parser, load_library, parse, torch


WHOLE_CONTEXT = dict(is_causal=True, window_size_left=-1, window_size_right=-1)
ITS_OWN_CHOICE = dict(num_splits=0, pack_gqa=None, sm_margin=0)
UNUSED_BY_PLAN = ("cu_seqlens_k", "cu_seqlens_k_new", "seqused_q", "leftpad_k")
UNUSED = (
    *("k_new", "v_new", "q_v", "cu_seqlens_k_new", "seqused_q", "kv_batch_idx", "leftpad_k", "q_descale", "k_descale"),
    *("v_descale", "rotary_cos", "rotary_sin", "seqlens_rotary", "s_aux", "cp_tot_seqused_k"),
)


class Fa3:
    def __init__(self, library, source):
        self.name = f"FA3 of {source}"
        self.operators = load_library(library, "_vllm_fa3_C", ["fwd", "get_scheduler_metadata"])

    def takes(self, line):
        return line.type == "bf16" and not line.latent and (line.page is not None or line.kind == "prefill")

    def calls(self, inputs):
        plans = [None, self.plan(inputs)] if inputs.line.page else [None]
        return [lambda layer, plan=plan: self.attend(inputs, layer, plan) for plan in plans]

    def plan(self, inputs):
        line = inputs.line
        return self.operators.get_scheduler_metadata(
            batch_size=line.batch, **most_rows(line),
            num_heads=line.heads, num_heads_k=line.kv_heads, headdim=line.dim, headdim_v=line.value_dim,
            qkv_dtype=torch.bfloat16, has_softcap=False,
            cu_seqlens_q=inputs.cu_q, seqused_k=inputs.lengths, page_size=line.page, max_seqlen_k_new=0,
            **WHOLE_CONTEXT, **ITS_OWN_CHOICE, **dict.fromkeys(UNUSED_BY_PLAN),
        )  # fmt: skip

    def attend(self, inputs, layer, plan):
        keys, values = inputs.layers[layer]
        if inputs.line.page:
            where = dict(seqused_k=inputs.lengths, cu_seqlens_k=None, page_table=inputs.table)
        else:
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            where = dict(seqused_k=None, cu_seqlens_k=inputs.cu_q, page_table=None)
        self.operators.fwd(
            q=inputs.q, k=keys, v=values, out=inputs.out, cu_seqlens_q=inputs.cu_q, **where, **most_rows(inputs.line),
            softmax_scale=inputs.scale, softcap=0.0, is_rotary_interleaved=True, cp_world_size=1, cp_rank=0,
            scheduler_metadata=plan, **WHOLE_CONTEXT, **ITS_OWN_CHOICE, **dict.fromkeys(UNUSED),
        )  # fmt: skip
        return inputs.out


def most_rows(line):
    return dict(max_seqlen_q=1 if line.kind == "decode" else max(line.lengths), max_seqlen_k=max(line.lengths))


def main():
    parser = gpu_parser(__file__, __doc__, ["decode/", "prefill/"])
    parser.add_argument("--library", required=True, help="_vllm_fa3_C.abi3.so of a wheel of vLLM")
    parser.add_argument("--from", dest="source", default="vLLM", help="where it is from, for the record")
    args = parse(parser, ["library"])
    compare(args, Fa3(args.library, args.source))


if __name__ == "__main__":
    main()
