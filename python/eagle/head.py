"""The head: one layer that guesses the target's next tokens from its features (docs/speculation.md has the formulas).

Slot p holds token p and g of token p - 1 and guesses token p + 1. In training, step i of STEPS is what the head does
when it drafts its (i + 1)th token: slot p then has, in place of g, the output of step i - 1 in slot p - 1, and it sees
the keys that were made from features (step 0) only up to slot p - i, then one key of each later step:

    step 2, slot 7:   step 0's keys of slots 0 1 2 3 4 5,  step 1's key of slot 6,  step 2's key of slot 7

All steps guess the same next token in a slot, so the target's answers need no shifting.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class HeadShape:
    width: int
    ffn_width: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_base: float
    vocabulary: int
    draft_vocabulary: int
    feature_layers: tuple

    @staticmethod
    def of(target, draft_vocabulary):
        """The target's own shape, features by EAGLE's rule; in models too small for it, of the last three layers."""
        layers = target.layers
        names = ("width", "ffn_width", "heads", "kv_heads", "head_dim", "eps", "rope_base", "vocabulary")
        features = (2, layers // 2, layers - 3) if layers >= 7 else (layers - 3, layers - 2, layers - 1)
        same = {name: getattr(target, name) for name in names}
        return HeadShape(**same, draft_vocabulary=draft_vocabulary, feature_layers=features)


class Norm(nn.Module):
    """In float32, whatever comes in."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def rotate_halves(x, cos_sin):
    """x [..., heads, dim]: dim i with dim i + dim / 2; cos and sin [..., dim / 2], the same for all heads."""
    cos, sin = (part.unsqueeze(-2) for part in cos_sin)
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def shifted(x, slots):
    """What lay `slots` slots earlier; zeros where nothing did. Slots are dim 1."""
    return x if slots == 0 else F.pad(x, (0, 0) * (x.dim() - 2) + (slots, 0))[:, :-slots]


class Head(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        width, q, kv = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        def norm():
            return Norm(width, shape.eps)

        self.fc_norm = nn.ModuleList(norm() for _ in shape.feature_layers)
        self.fc = linear(len(shape.feature_layers) * width, width)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = norm(), norm(), norm()
        self.q_proj, self.k_proj, self.v_proj = linear(2 * width, q), linear(2 * width, kv), linear(2 * width, kv)
        self.o_proj = linear(q, width)
        self.gate_proj, self.up_proj = linear(width, shape.ffn_width), linear(width, shape.ffn_width)
        self.down_proj = linear(shape.ffn_width, width)
        self.norm = norm()
        self.lm_head = linear(width, shape.draft_vocabulary)

    def begin_from(self, target, token_ids):
        """The output layer and its norm begin as the target's."""
        with torch.no_grad():
            self.lm_head.weight.copy_(target.output[token_ids].float())
            self.norm.weight.copy_(target.output_norm)

    def g(self, features):
        """Features, a list of [..., width], become one state."""
        return self.fc(torch.cat([norm(x) for norm, x in zip(self.fc_norm, features, strict=True)], -1))

    def _qkv(self, embedded, x, cos_sin):
        inputs = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], -1)
        dim = self.shape.head_dim
        q, k, v = (project(inputs).unflatten(-1, (-1, dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return rotate_halves(q, cos_sin).to(q.dtype), rotate_halves(k, cos_sin).to(k.dtype), v

    def _attend(self, q, keys, values, mask):
        """q [rows, slots, heads, dim]; keys[j], values[j] of step j; mask [rows, slots, slots] for step 0's scores."""
        step, dim = len(keys) - 1, self.shape.head_dim
        q = q.unflatten(2, (self.shape.kv_heads, -1)) * dim**-0.5  # [rows, slots, kv, group, dim]
        first = torch.einsum("bqkgd,bskd->bkgqs", q, keys[0]) + mask[:, None, None].to(q.dtype)
        own = [shifted(keys[j], step - j) for j in range(1, step + 1)]
        scores = [first, *((q * key.unsqueeze(3)).sum(-1).permute(0, 2, 3, 1).unsqueeze(-1) for key in own)]
        chances = torch.cat(scores, -1).softmax(-1)
        slots = first.shape[-1]
        out = torch.einsum("bkgqs,bskd->bqkgd", chances[..., :slots], values[0])
        for j in range(1, step + 1):
            share = chances[..., slots + j - 1].permute(0, 3, 1, 2).unsqueeze(-1)
            out = out + share * shifted(values[j], step - j).unsqueeze(3)
        return out.flatten(2)

    def layer(self, embedded, x, cos_sin, earlier, mask):
        """One step over all slots. `earlier`: the lists of the steps' keys and values, which it adds its own to."""
        q, k, v = self._qkv(embedded, x, cos_sin)
        keys, values = earlier
        keys.append(k)
        values.append(v)
        with torch.autocast(q.device.type, enabled=False):  # which would keep all scores in float32
            attended = self._attend(q, keys, values, mask)
        x = x + self.o_proj(attended)
        n = self.post_attention_layernorm(x)
        x = x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))
        return self.norm(x)

    def steps(self, embedded, g, cos_sin, masks):
        """Yields each step's y [rows, slots, width]; masks[i] hides from step i the keys of step 0 that it may not see.

        g is what slot p is given, that is, g of token p - 1, zeros in a text's first slot.
        """
        earlier, x = ([], []), g
        for mask in masks:
            y = self.layer(embedded, x, cos_sin, earlier, mask)
            yield y
            x = shifted(y, 1)


def causal_masks(text, steps, dtype):
    """masks[i] [rows, slots, slots]: 0 where slot p of step i sees step 0's key of slot s: same text, s <= p - i.

    text [rows, slots]: which text of its row a slot belongs to.
    """
    slots = torch.arange(text.shape[1], device=text.device)
    same = text[:, :, None] == text[:, None, :]
    masks = []
    for step in range(steps):
        seen = same & (slots[None, :] <= slots[:, None] - step)
        masks.append(torch.zeros(seen.shape, dtype=dtype, device=text.device).masked_fill_(~seen, float("-inf")))
    return masks
