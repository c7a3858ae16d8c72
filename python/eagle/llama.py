"""The target: a model of the Llama family from a GGUF file, in plain PyTorch, for text in bulk.

Weights are the served ones: what the file's blocks stand for, rounded to `dtype`. The residual stream and the norms are
float32, as in the engine. GGUF files of this family hold the rows of q and k in the order that rotates neighbours
(2i, 2i + 1), so that is the rotation here.
"""

import dataclasses

import torch
import torch.nn.functional as F

from .gguf import Gguf


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    ffn_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    rope_base: float

    @staticmethod
    def of(gguf):
        keys = gguf.keys
        if keys["general.architecture"] != "llama":
            raise ValueError(f"the architecture is {keys['general.architecture']}, not llama")

        def key(name, default=None):
            return keys.get(f"llama.{name}", default)

        if key("rope.scaling.type", "none") != "none":
            raise ValueError("rope scaling is not computed here")
        heads, width = key("attention.head_count"), key("embedding_length")
        return Shape(
            layers=key("block_count"),
            width=width,
            ffn_width=key("feed_forward_length"),
            heads=heads,
            kv_heads=key("attention.head_count_kv", heads),
            head_dim=key("attention.key_length", width // heads),
            vocabulary=len(keys["tokenizer.ggml.tokens"]),
            eps=key("attention.layer_norm_rms_epsilon"),
            rope_base=key("rope.freq_base", 10000.0),
        )


class Rope:
    """Rotates neighbours (2i, 2i + 1) of each head."""

    def __init__(self, dim, base, positions, device, factors=None):
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if factors is not None:
            frequencies = frequencies / factors.double()
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)

    def at(self, positions):
        """(cos, sin), each [positions' shape, dim / 2]."""
        return self.cos[positions], self.sin[positions]


def rotate(x, cos_sin):
    """x [..., heads, dim]; cos and sin [..., dim / 2], the same for all heads."""
    cos, sin = (part.unsqueeze(-2) for part in cos_sin)
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Layer:
    def __init__(self, gguf, index, dtype, device):
        def read(name):
            return torch.from_numpy(gguf.tensor(f"blk.{index}.{name}.weight"))

        def joined(*names):
            return torch.cat([read(name) for name in names]).to(device, dtype)

        self.attn_norm, self.ffn_norm = read("attn_norm").to(device), read("ffn_norm").to(device)
        self.qkv, self.o = joined("attn_q", "attn_k", "attn_v"), joined("attn_output")
        self.gate_up, self.down = joined("ffn_gate", "ffn_up"), joined("ffn_down")


class Llama:
    def __init__(self, path, device, dtype, positions=4096):
        gguf = Gguf(path)
        self.keys, self.shape, self.device, self.dtype = gguf.keys, Shape.of(gguf), torch.device(device), dtype
        factors = torch.from_numpy(gguf.tensor("rope_freqs.weight")) if "rope_freqs.weight" in gguf.names() else None
        self.rope = Rope(self.shape.head_dim, self.shape.rope_base, positions, device, factors)
        self.embedding = torch.from_numpy(gguf.tensor("token_embd.weight")).to(device, dtype)
        self.output = self.embedding
        if "output.weight" in gguf.names():
            self.output = torch.from_numpy(gguf.tensor("output.weight")).to(device, dtype)
        self.output_norm = torch.from_numpy(gguf.tensor("output_norm.weight")).to(device)
        self.layers = [Layer(gguf, index, dtype, device) for index in range(self.shape.layers)]

    def norm(self, x, weight):
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.eps).to(self.dtype)

    def split(self, qkv, cos_sin):
        """q and k, rotated, and v of a product's rows: [..., heads, dim] each."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qk, v = qkv.unflatten(-1, (-1, self.shape.head_dim)).split([heads + kv_heads, kv_heads], -2)
        return *rotate(qk, cos_sin).split([heads, kv_heads], -2), v

    def ffn(self, layer, x):
        gate, up = F.linear(self.norm(x, layer.ffn_norm), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def walk(self, ids, cos_sin, attend, taps=()):
        """The residual stream after the last layer, and what goes into the layers `taps`, float32 [..., width].

        attend(layer's index, q, k, v) gives [..., heads x dim].
        """
        x = self.embedding[ids].float()
        inputs = {}
        for index, layer in enumerate(self.layers):
            if index in taps:
                inputs[index] = x
            q, k, v = self.split(F.linear(self.norm(x, layer.attn_norm), layer.qkv), cos_sin)
            x = x + F.linear(attend(index, q, k, v), layer.o)
            x = self.ffn(layer, x)
        return x, [inputs[tap] for tap in taps]

    def logits(self, x):
        return F.linear(self.norm(x, self.output_norm), self.output)

    @torch.no_grad()
    def run(self, ids, positions, mask, taps=()):
        """Whole texts: ids and positions [rows, length]; mask [rows, length, length] is added to the scores.

        The residual stream after the last layer, and the inputs of the layers `taps`.
        """
        group = self.shape.heads // self.shape.kv_heads
        mask = mask.unsqueeze(1).to(self.dtype)

        def attend(_, q, k, v):
            k, v = (x.repeat_interleave(group, -2).transpose(1, 2) for x in (k, v))
            return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask).transpose(1, 2).flatten(-2)

        return self.walk(ids, self.rope.at(positions), attend, taps)


class Cache:
    """Keys and values of `rows` texts in lockstep: all write the same position in a step."""

    def __init__(self, model, rows, length):
        shape = model.shape
        size = (shape.layers, rows, shape.kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(size, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)

    def decode(self, model, ids, position, mask):
        """Logits [rows, vocabulary] after ids [rows] at `position` (a tensor of one number).

        mask [rows, n] is added to the scores of positions [0, n), which hold all that may be seen.
        """
        seen = mask.shape[1]
        group = model.shape.heads // model.shape.kv_heads
        mask = mask.to(model.dtype)[:, None, None].expand(-1, model.shape.kv_heads, group, -1)

        def attend(index, q, k, v):
            keys, values = self.keys[index], self.values[index]
            keys.index_copy_(2, position, k.unsqueeze(2))
            values.index_copy_(2, position, v.unsqueeze(2))
            grouped = q.unflatten(1, (-1, group))  # the queries of one kv head as rows of one attention
            out = F.scaled_dot_product_attention(grouped, keys[:, :, :seen], values[:, :, :seen], mask)
            return out.flatten(1)

        x, _ = model.walk(ids, model.rope.at(position), attend)
        return model.logits(x)
