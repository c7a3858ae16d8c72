#!/usr/bin/env python3
"""quire's latent decode (MLA) beside FlashMLA, on one Hopper GPU, in one run.

    pip download --no-deps vllm==0.26.0 && unzip -j vllm-*.whl '*/_flashmla_C.abi3.so'
    python3 bench/compare_flashmla.py --quire build/cpu/app/quire --library _flashmla_C.abi3.so --from "vLLM 0.26.0"

gpu_comparison.py says how. The library is FlashMLA as vLLM builds it; it has pages of 64 only. The plan of a step is
made once for all layers.
"""

from gpu_comparison import compare, gpu_parser, load_library, parse

PAGE = 64


class FlashMla:
    def __init__(self, library, source):
        self.name = f"FlashMLA of {source}"
        self.attend = load_library(library, "_flashmla_C", ["dense_decode_fwd"]).dense_decode_fwd

    def takes(self, line):
        return line.kind == "decode" and line.latent and line.page == PAGE and line.type == "bf16"

    def calls(self, inputs):
        line = inputs.line
        rows = (line.batch, 1, line.heads)  # one query of each request
        q, out = inputs.q.view(*rows, line.dim), inputs.out.view(*rows, line.value_dim)

        def attend(layer, plan, splits):
            keys = inputs.layers[layer][0]
            return self.attend(
                q=q, kcache=keys, out_=out, head_size_v=line.value_dim,
                seqlens_k=inputs.lengths, block_table=inputs.table, softmax_scale=inputs.scale,
                is_causal=False, tile_scheduler_metadata=plan, num_splits=splits,
            )  # fmt: skip

        *_, plan, splits = attend(0, None, None)
        return [lambda layer: attend(layer, plan, splits)[0]]


def main():
    parser = gpu_parser(__file__, __doc__, ["/latent"])
    parser.add_argument("--library", required=True, help="_flashmla_C.abi3.so of a wheel of vLLM")
    parser.add_argument("--from", dest="source", default="vLLM", help="where it is from, for the record")
    args = parse(parser, ["library"])
    compare(args, FlashMla(args.library, args.source))


if __name__ == "__main__":
    main()
