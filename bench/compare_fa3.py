#!/usr/bin/env python3
"""quire's decode and causal prefill beside FlashAttention-3, on one Hopper GPU, in one run.

    pip download --no-deps vllm==0.26.0 && unzip -j vllm-*.whl '*/_vllm_fa3_C.abi3.so'
    python3 bench/compare_fa3.py --quire build/cpu/app/quire --library _vllm_fa3_C.abi3.so --from "vLLM 0.26.0"

gpu_comparison.py says how. The library is FA3 as vLLM builds it. Of its two ways the faster counts for each line: the
plan of a step made once for all layers (`get_scheduler_metadata`, as vLLM does), or in every call. Prefill is also
measured without pages.
"""

from gpu_comparison import compare, gpu_parser, load_library, parse, torch


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
        line, most_rows = inputs.line, self.most_query_rows(inputs.line)
        return self.operators.get_scheduler_metadata(
            line.batch, most_rows, max(line.lengths), line.heads, line.kv_heads, line.dim, line.value_dim,
            torch.bfloat16, inputs.lengths, inputs.cu_q,
            None, None, None, None,  # cu_seqlens_k, cu_seqlens_k_new, seqused_q, leftpad_k
            line.page, 0, True,  # page size, new keys, causal
            -1, -1, False,  # window, softcap
            0, None, 0,  # splits and packing as it thinks best, no multiprocessor left out
        )  # fmt: skip

    def attend(self, inputs, layer, plan):
        line, (keys, values) = inputs.line, inputs.layers[layer]
        if line.page is None:
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        self.operators.fwd(
            inputs.q, keys, values, None, None, None, inputs.out,  # k_new, v_new, q_v
            inputs.cu_q, None if line.page else inputs.cu_q, None,  # cu_seqlens of q, k, k_new
            None, inputs.lengths if line.page else None,  # seqused of q, k
            self.most_query_rows(line), max(line.lengths), inputs.table if line.page else None,
            None, None, None, None, None,  # kv_batch_idx, leftpad_k, rotary cos, sin and seqlens
            None, None, None,  # descale of q, k, v
            inputs.scale, True, -1, -1, 0.0, True,  # causal, window, softcap, rotary interleaved
            plan, 0, None, 0,  # splits and packing as it thinks best, no multiprocessor left out
            None, 1, 0, None,  # sinks; context parallel: world, rank, seqused
        )  # fmt: skip
        return inputs.out

    @staticmethod
    def most_query_rows(line):
        return 1 if line.kind == "decode" else max(line.lengths)


def main():
    parser = gpu_parser(__file__, __doc__, ["decode/", "prefill/"])
    parser.add_argument("--library", required=True, help="_vllm_fa3_C.abi3.so of a wheel of vLLM")
    parser.add_argument("--from", dest="source", default="vLLM", help="where it is from, for the record")
    args = parse(parser, ["library"])
    compare(args, Fa3(args.library, args.source))


if __name__ == "__main__":
    main()
