#!/usr/bin/env python3
"""quire's decode beside FlashInfer, on one GPU, in one run.

    pip install --target flashinfer flashinfer-python==0.3.1
    python3 bench/compare_flashinfer.py --quire build/cpu/app/quire --library flashinfer

gpu_comparison.py says how. FlashInfer compiles its kernels when they are first asked for: nvcc and ninja must be there,
and the first run takes some minutes. Its decode runs on tensor cores. The plan of a step is made beforehand.
"""

import sys
from pathlib import Path

from gpu_comparison import compare, gpu_parser, parse, prefix_sums, torch

WORKSPACE_BYTES = 256 << 20


class FlashInfer:
    def __init__(self, folder):
        sys.path.insert(0, str(Path(folder).resolve()))
        try:
            import flashinfer
        except ImportError as error:
            raise SystemExit(f"FlashInfer is not in {folder}, or something it needs is missing: {error}")
        self.name = f"FlashInfer {flashinfer.__version__}"
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper
        self.workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def takes(self, line):
        return line.kind == "decode" and not line.latent and line.page is not None and line.type in ("bf16", "f8e4m3")

    def calls(self, inputs):
        line = inputs.line
        begins = prefix_sums(inputs.page_counts)
        last_page = (inputs.lengths - 1) % line.page + 1
        step = self.wrapper(self.workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True,
                            paged_kv_indptr_buffer=torch.empty_like(begins),
                            paged_kv_indices_buffer=torch.empty_like(inputs.page_ids),
                            paged_kv_last_page_len_buffer=torch.empty_like(last_page))
        step.plan(begins, inputs.page_ids, last_page, line.heads, line.kv_heads, line.dim, line.page,
                  q_data_type=torch.bfloat16, kv_data_type=inputs.layers[0][0].dtype)
        return [lambda layer: step.run(inputs.q, inputs.layers[layer], out=inputs.out)]


def main():
    parser = gpu_parser(__file__, __doc__, ["decode/"])
    parser.add_argument("--library", required=True, help="the folder that FlashInfer was installed into")
    args = parse(parser, ["library"])
    compare(args, FlashInfer(args.library))


if __name__ == "__main__":
    main()
