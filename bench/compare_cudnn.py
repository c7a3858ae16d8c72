#!/usr/bin/env python3
"""quire's causal prefill beside cuDNN's attention, reached through PyTorch, on one GPU, in one run.

    python3 bench/compare_cudnn.py --quire build/cpu/app/quire --json cudnn.json

gpu_comparison.py says how. cuDNN has no pages here; its keys and values are whole tensors, with a copy of every KV head
for each of its query heads, which is the better case for it.
"""

from gpu_comparison import compare, gpu_parser, parse, torch


class Cudnn:
    def __init__(self):
        self.name = f"cuDNN {torch.backends.cudnn.version()}"

    def takes(self, line):
        plain = line.type == "bf16" and line.dim == line.value_dim <= 128
        return plain and line.kind == "prefill" and line.page is None

    def calls(self, inputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        line = inputs.line
        copies = line.heads // line.kv_heads

        def heads_first(rows):  # (batch, heads, tokens, dim)
            return rows.view(line.batch, line.tokens, -1, rows.shape[-1]).transpose(1, 2)

        q = heads_first(inputs.q).contiguous()
        layers = [[heads_first(rows).repeat_interleave(copies, 1) for rows in layer] for layer in inputs.layers]

        def attend(layer):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(q, *layers[layer], is_causal=True).transpose(1, 2)

        return [attend]


def main():
    args = parse(gpu_parser(__file__, __doc__, ["prefill/"]))
    compare(args, Cudnn())


if __name__ == "__main__":
    main()
