"""Trains a head on the target's own texts. The target runs in the same step: no features are stored.

A checkpoint holds all that the next step depends on: weights, moments, which step it is. Batches and noise are drawn
from (seed, step), and a checkpoint rounds the moments of the run that goes on to the type in which it stores them
(bfloat16), so a run that was interrupted at a checkpoint ends with the same bits as one that was not.
"""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import torch

from .evaluation import measure
from .head import Head, HeadShape, shifted
from .llama import Rope
from .loss import soft_cross_entropy, terms
from .target_view import Answers, view_of
from .texts import pack


@dataclasses.dataclass
class Options:
    steps: int = 1800
    batch_tokens: int = 65536  # slots of an optimizer step
    pass_tokens: int = 65536  # slots that go through the models at once
    length: int = 768  # of a row
    rate: float = 1e-3
    output_rate: float = 0.3  # of the output layer, as a share of `rate`
    output_from: float = 0.2  # share of the steps for which the output layer stays the target's
    draft_vocabulary: int = 16384
    draft_steps: int = 4
    decay: float = 0.8  # weight of a draft step against the one before
    noise: float = 0.01  # of features, relative
    clip: float = 0.5
    checkpoint_every: int = 100
    measure_every: int = 200
    held_rows: int = 96
    seed: int = 1
    compile: bool = True


def draft_vocabulary(texts, vocabulary, size):
    """The tokens that the model drew most often, ascending; the lower id first among equals."""
    counts = np.bincount(np.concatenate([text.ids[text.drawn] for text in texts]), minlength=vocabulary)
    chosen = np.argsort(-counts, kind="stable")[: min(size, vocabulary)]
    return np.sort(chosen), counts[chosen].sum() / max(1, counts.sum())


def on_device(rows, chosen, device):
    fields = ("ids", "text", "position", "wanted")
    return {name: torch.from_numpy(getattr(rows, name)[chosen]).to(device) for name in fields} | {
        "ids": torch.from_numpy(rows.ids[chosen]).to(device, torch.int64)
    }


class Trainer:
    def __init__(self, target, texts, options, path, say):
        self.target, self.options, self.path, self.say = target, options, Path(path), say
        self.device = target.device
        learned, held = [text for text in texts if not text.held], [text for text in texts if text.held]
        self.rows = pack(learned, options.length)
        self.held = pack(held, options.length)
        self.held_texts = held
        ids, covered = draft_vocabulary(learned, target.shape.vocabulary, options.draft_vocabulary)
        self.token_ids = torch.from_numpy(ids).to(self.device)
        say(
            f"{len(learned)} texts in {len(self.rows.ids)} rows of {options.length}, {self.rows.wanted.mean():.0%} of "
            f"the slots learned from, {len(held)} texts held; draft vocabulary {len(ids)}: {covered:.2%} of the answers"
        )
        self.shape = HeadShape.of(target.shape, len(ids))
        torch.manual_seed(options.seed)
        self.head = Head(self.shape)
        self.head.begin_from(target, self.token_ids)
        self.head.to(self.device)
        self.rope = Rope(self.shape.head_dim, self.shape.rope_base, options.length, self.device)
        self.answers = Answers(target, self.token_ids)
        self.terms = torch.compile(terms) if options.compile and self.device.type == "cuda" else terms
        self.optimizer = self._optimizer()
        self.step = 0
        self.curve = []
        self._resume()

    # --- where a run stands

    def _data_print(self):
        """Tells texts apart from those of an earlier run."""
        return [int(self.rows.ids.sum(dtype=np.int64)), *self.rows.ids.shape]

    def _settings(self):
        """What must stay as it was when a run goes on. With more or fewer steps it takes up the new schedule."""
        loose = ("steps", "checkpoint_every", "measure_every", "compile", "held_rows", "pass_tokens")
        return {k: v for k, v in dataclasses.asdict(self.options).items() if k not in loose}

    def _resume(self):
        if not self.path.exists():
            return
        saved = torch.load(self.path, map_location="cpu", weights_only=True)
        if saved["data"] != self._data_print() or saved["settings"] != self._settings():
            raise SystemExit(f"{self.path} is of a run with other texts or options; take another folder, or delete it")
        self.head.load_state_dict(saved["head"])
        for parameter, moments in zip(self.head.parameters(), saved["moments"], strict=True):
            if moments is not None:
                count, first, second = moments
                self.optimizer.state[parameter] = {
                    "step": count.to(self._count_device()),
                    "exp_avg": first.float().to(self.device),
                    "exp_avg_sq": second.float().to(self.device),
                }
        self.step, self.curve = saved["step"], saved["curve"]
        self.say(f"goes on at step {self.step} of {self.options.steps}")

    def _count_device(self):
        return self.device if self.device.type == "cuda" else "cpu"  # where the fused AdamW keeps its counts

    def save(self):
        moments = []
        for parameter in self.head.parameters():
            state = self.optimizer.state.get(parameter)
            if state:
                pair = [state[name].bfloat16() for name in ("exp_avg", "exp_avg_sq")]
                for name, narrow in zip(("exp_avg", "exp_avg_sq"), pair, strict=True):
                    state[name].copy_(narrow)
                moments.append([state["step"].cpu(), *(x.cpu() for x in pair)])
            else:
                moments.append(None)
        saved = dict(
            head={name: x.cpu() for name, x in self.head.state_dict().items()},
            moments=moments,
            step=self.step,
            curve=self.curve,
            data=self._data_print(),
            settings=self._settings(),
            token_ids=self.token_ids.cpu(),
            shape=dataclasses.asdict(self.shape),
        )
        part = self.path.with_suffix(".part")
        torch.save(saved, part)
        part.replace(self.path)

    # --- a step

    def _optimizer(self):
        output = list(self.head.lm_head.parameters())
        rest = [parameter for name, parameter in self.head.named_parameters() if not name.startswith("lm_head")]
        groups = [{"params": rest, "share": 1.0}, {"params": output, "share": self.options.output_rate}]
        return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=self.device.type == "cuda")

    def _rate(self):
        """Warm for 3 % of the steps, then half a cosine down to nothing."""
        warm = max(1, self.options.steps * 3 // 100)
        if self.step < warm:
            return self.options.rate * (self.step + 1) / warm
        share = (self.step - warm) / max(1, self.options.steps - warm)
        return self.options.rate * 0.5 * (1 + math.cos(math.pi * share))

    def _batch(self):
        """The rows of this step: each epoch takes all rows in an order of its own."""
        count = max(1, self.options.batch_tokens // self.options.length)
        total = len(self.rows.ids)
        chosen = []
        for number in range(self.step * count, (self.step + 1) * count):
            epoch, at = divmod(number, total)
            if getattr(self, "_order_of", None) != epoch:
                self._order = np.random.default_rng([self.options.seed, epoch]).permutation(total)
                self._order_of = epoch
            chosen.append(self._order[at])
        return np.array(chosen)

    def _given(self, view, random):
        """g of the token before, in each slot; zeros in a text's first."""
        noisy = [
            x * (1 + self.options.noise * (2 * torch.rand(x.shape, generator=random, device=self.device) - 1))
            for x in view.features
        ]
        return shifted(self.head.g(noisy).float(), 1).masked_fill((view.position == 0)[..., None], 0)

    def _pass(self, chosen, random, wanted_in_batch):
        """Adds the gradients of some rows; what their guesses cost by draft step, above what the target itself does."""
        options = self.options
        rows = on_device(self.rows, chosen, self.device)
        product_type = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        view = view_of(self.target, self.rope, rows, options.draft_steps, self.shape.feature_layers, product_type)
        places = rows["wanted"].flatten().nonzero().squeeze(1)
        chances, entropies, inside = self.answers(view.last.flatten(0, 1)[places])
        depth = view.position.flatten()[places]
        losses, total = [], 0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            given = self._given(view, random)
            for i, y in enumerate(self.head.steps(view.embedded, given, view.cos_sin, view.masks)):
                weights = (inside & (depth >= i)).float() / wanted_in_batch
                y = y.flatten(0, 1)[places]
                loss = soft_cross_entropy(y, self.head.lm_head.weight, chances, weights, self.terms, product_type)
                losses.append(loss.detach() - (weights * entropies).sum())
                total = total + options.decay**i * loss
        total.backward()
        return torch.stack(losses)

    def train_step(self):
        options = self.options
        random = torch.Generator(self.device).manual_seed(options.seed * 1000003 + self.step)
        chosen = self._batch()
        trains_output = self.step >= options.output_from * options.steps
        self.head.lm_head.weight.requires_grad_(trains_output)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate() * group["share"]
        wanted = max(1, int(self.rows.wanted[chosen].sum()))
        rows_of_a_pass = max(1, options.pass_tokens // options.length)
        passes = [chosen[at : at + rows_of_a_pass] for at in range(0, len(chosen), rows_of_a_pass)]
        losses = sum(self._pass(part, random, wanted) for part in passes)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses

    def measure(self):
        result = measure(self.target, self.head, self.rope, self.token_ids, self.held, self.held_texts,
                         self.options.draft_steps, self.options.held_rows)  # fmt: skip
        self.curve.append([self.step, {name: [*tally.hits(), tally.length()] for name, tally in result.items()}])
        for name, tally in result.items():
            self.say(f"  step {self.step}, held texts, {name:18} {tally}")

    def run(self, deadline):
        """Whether all steps were done before the deadline. The last steps before it are saved, too."""
        options, begin, since = self.options, time.monotonic(), self.step
        while self.step < options.steps:
            losses = self.train_step()
            done, late = self.step == options.steps, time.monotonic() > deadline
            if self.step % 20 == 0 or self.step == since + 1 or done or late:
                spent = time.monotonic() - begin
                numbers = " ".join(f"{loss:.3f}" for loss in losses.tolist())
                pace = spent / (self.step - since)
                left = (options.steps - self.step) * pace
                self.say(
                    f"step {self.step} of {options.steps}: losses {numbers}; {pace:.2f} s a step, {left:.0f} s to go"
                )
            if self.step % options.measure_every == 0 or done:
                self.measure()
            if self.step % options.checkpoint_every == 0 or done or late:
                self.save()
            if late and not done:
                return False
        return True
