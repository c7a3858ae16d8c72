"""How often a head is right on texts that it has not seen.

A draft counts when it is the very token that the text goes on with, as in verification. For a text in hand all drafts
of all rounds can be had in one pass, as in training: the (i + 1)th draft of a chain is only looked at where the i
drafts before it were right, and there what it was given is the text itself. So the lengths below are exact: a round is
walked from each token where one begins, and brings the drafts that were right in a row, and one token more.
"""

import numpy as np
import torch

from .head import shifted
from .target_view import view_of


class Tally:
    """What was right, over texts."""

    def __init__(self, steps):
        self.right, self.able = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
        self.tokens = self.rounds = 0

    def add(self, hits, wanted):
        """hits [steps, slots] of one text: draft step i is right in slot p; wanted [slots]: the next token is drawn."""
        for step, row in enumerate(hits):
            able = wanted.copy()
            able[:step] = False  # a chain that began in front of the text
            self.right[step] += (row & able).sum()
            self.able[step] += able.sum()
        tokens, rounds = walk(hits, wanted)
        self.tokens, self.rounds = self.tokens + tokens, self.rounds + rounds

    def hits(self):
        """By draft step, each over all tokens that it could guess."""
        return (self.right / np.maximum(1, self.able)).tolist()

    def length(self):
        """Tokens of a round."""
        return self.tokens / max(1, self.rounds)

    def __str__(self):
        hits = " ".join(f"{hit:.3f}" for hit in self.hits())
        return f"hits {hits}; {self.length():.2f} tokens a round of {len(self.able)} drafts; {self.tokens} tokens"


def walk(hits, wanted):
    """(tokens, rounds) of one text in rounds of one chain each."""
    steps, slots = hits.shape
    at = tokens = rounds = 0
    while at < slots:
        if not wanted[at]:
            at += 1
            continue
        right = 0
        while right < steps and at + right < slots and wanted[at + right] and hits[right, at + right]:
            right += 1
        one_more = int(at + right < slots and wanted[at + right])  # else the text ends with a draft
        tokens, rounds, at = tokens + right + one_more, rounds + 1, at + right + one_more
    return tokens, rounds


@torch.no_grad()
def logits_of_steps(target, head, rope, rows, steps):
    """Each draft step's logits [rows x slots, draft vocabulary]. rows: a dict of tensors as in texts.Rows."""
    on_gpu = target.device.type == "cuda"
    view = view_of(target, rope, rows, steps, head.shape.feature_layers, torch.bfloat16 if on_gpu else torch.float32)
    with torch.autocast(target.device.type, torch.bfloat16, enabled=on_gpu):
        g = shifted(head.g(view.features).float(), 1).masked_fill((view.position == 0)[..., None], 0)
        return [head.lm_head(y.flatten(0, 1)) for y in head.steps(view.embedded, g, view.cos_sin, view.masks)]


def passes(rows, device, most_rows, rows_of_a_pass=16):
    """Slices of the first rows, with their tensors on the device."""
    count = len(rows.ids) if most_rows is None else min(most_rows, len(rows.ids))
    for begin in range(0, count, rows_of_a_pass):
        part = slice(begin, min(begin + rows_of_a_pass, count))
        tensors = {name: torch.from_numpy(getattr(rows, name)[part]).to(device) for name in ("text", "position")}
        yield part, tensors | {"ids": torch.from_numpy(rows.ids[part]).to(device, torch.int64)}


def following(ids):
    """The next slot's token; a row's last slot has none and is never wanted."""
    return np.concatenate([ids[:, 1:], ids[:, :1]], axis=1)


def way_and_kind(text):
    way = "greedy" if text.greedy else "drawn"
    return [way, f"{way}, {text.kind}"]


@torch.no_grad()
def measure(target, head, rope, token_ids, rows, texts, steps, most_rows=None, groups=way_and_kind):
    """{group: Tally} over the first rows; groups(text) are those that a text counts for."""
    tallies = {}
    for part, tensors in passes(rows, target.device, most_rows):
        shape = rows.ids[part].shape
        best = [token_ids[logits.argmax(-1)] for logits in logits_of_steps(target, head, rope, tensors, steps)]
        hits = torch.stack(best).view(steps, *shape).cpu().numpy() == following(rows.ids[part])
        for row in range(shape[0]):
            source = rows.source[part][row]
            for index in np.unique(source[source >= 0]):
                slots = np.flatnonzero(source == index)
                for group in groups(texts[index]):
                    tally = tallies.setdefault(group, Tally(steps))
                    tally.add(hits[:, row, slots], rows.wanted[part][row, slots])
    return dict(sorted(tallies.items()))


@torch.no_grad()
def best_temperature(target, head, rope, token_ids, rows, texts, most_rows=None):
    """What logits are divided by so that the first draft's probabilities are right: least log loss on greedy texts.

    A next token outside the draft vocabulary says nothing about its probabilities and is left out.
    """
    temperatures = torch.arange(0.5, 2.01, 0.05)
    place = torch.full((target.shape.vocabulary,), -1, device=target.device)
    place[token_ids] = torch.arange(len(token_ids), device=target.device)
    greedy = np.array([text.greedy for text in texts])
    loss = torch.zeros(len(temperatures), dtype=torch.float64)
    for part, tensors in passes(rows, target.device, most_rows):
        wanted = rows.wanted[part] & greedy[rows.source[part]] & (rows.source[part] >= 0)
        wanted = torch.from_numpy(wanted).to(target.device).flatten()
        tokens = torch.from_numpy(following(rows.ids[part])).to(target.device, torch.int64).flatten()
        wanted &= place[tokens] >= 0
        logits = logits_of_steps(target, head, rope, tensors, 1)[0][wanted].float()
        drawn = logits.gather(1, place[tokens[wanted]][:, None]).squeeze(1)
        for i, temperature in enumerate(temperatures.tolist()):
            loss[i] += ((logits / temperature).logsumexp(1) - drawn / temperature).sum().item()
    return temperatures[loss.argmin()].item()
