"""What the target says about packed rows: the head's inputs, and the answers that it learns."""

import dataclasses

import torch

from .head import causal_masks


@dataclasses.dataclass
class View:
    embedded: torch.Tensor  # [rows, slots, width]
    features: list  # of [rows, slots, width] float32
    cos_sin: tuple
    masks: list  # of the head's steps
    position: torch.Tensor  # [rows, slots]
    last: torch.Tensor  # [rows, slots, width]: the residual stream after the last layer


class Answers:
    """The target's probabilities over the draft vocabulary, renormalised, and its likeliest token of all."""

    def __init__(self, target, token_ids):
        """token_ids: the draft vocabulary, ascending."""
        self.target, self.draft = target, len(token_ids)
        inside = torch.zeros(target.shape.vocabulary, dtype=torch.bool, device=target.device)
        inside[token_ids] = True
        order = torch.cat([token_ids, (~inside).nonzero().squeeze(1)])
        self.output = target.output[order]  # the draft vocabulary first

    @torch.no_grad()
    def __call__(self, last, chunk=8192):
        """last [n, width] > probabilities [n, tokens], their entropies, whether the likeliest token is among them."""
        chances, entropies, inside = [], [], []
        for part in last.split(chunk):
            logits = torch.nn.functional.linear(self.target.norm(part, self.target.output_norm), self.output)
            logs = logits[:, : self.draft].float().log_softmax(1)
            exact = logs.exp()
            chances.append(exact.to(torch.bfloat16))
            entropies.append(-(exact * logs).sum(1))
            inside.append(logits.argmax(1) < self.draft)
        return torch.cat(chances), torch.cat(entropies), torch.cat(inside)


def view_of(target, rope, rows, steps, feature_layers, mask_dtype):
    """rows: a dict of tensors as in texts.Rows, on the target's device. rope: the head's own."""
    masks = causal_masks(rows["text"], steps, mask_dtype)
    last, features = target.run(rows["ids"], rows["position"], masks[0], feature_layers)
    embedded = target.embedding[rows["ids"]].float()
    return View(embedded, features, rope.at(rows["position"]), masks, rows["position"], last)
