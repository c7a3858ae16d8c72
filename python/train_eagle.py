#!/usr/bin/env python3
"""Trains an EAGLE head for a model of the Llama family, from text that the model writes itself.

    python3 python/train_eagle.py MODEL.gguf FOLDER

Four phases, each of which goes on where it was stopped when the same command is given again (exit code 75: not done
yet): the model writes texts, the head learns from them, it is written to FOLDER/head.safetensors, and that file is
measured on held texts and on prompts of its own. Needs PyTorch, numpy and jinja2; docs/speculation.md tells the rest.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from eagle import generate, training
from eagle.evaluation import best_temperature, measure
from eagle.export import fingerprint, read_head, write_head
from eagle.generate import answers
from eagle.head import Head, HeadShape
from eagle.llama import Llama, Rope
from eagle.texts import load_all, pack
from eagle.vocabulary import Vocabulary

PHASES = ("generate", "train", "export", "evaluate")
NOT_DONE = 75
PROMPTS = Path(__file__).parents[1] / "bench/texts/prompts.json"
BEGIN = time.monotonic()


def say(line):
    print(f"[{time.monotonic() - BEGIN:5.0f} s] {line}", flush=True)


def add_options(parser, defaults, names):
    """One option for each field of a dataclass that is named."""
    for field in dataclasses.fields(defaults):
        if field.name in names:
            value = getattr(defaults, field.name)
            parser.add_argument("--" + field.name.replace("_", "-"), type=type(value), default=value, metavar="N")


def options_of(kind, args):
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in vars(args).items() if name in names})


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("folder", type=Path, help="for texts, checkpoint and head")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which the phase saves and ends")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=12_000_000, help="to generate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layer-type", default="Q8_0", choices=("Q8_0", "Q4_1"), help="blocks of fc and the layer")
    parser.add_argument("--output-type", default="Q4_1", choices=("Q8_0", "Q4_1"), help="blocks of the output layer")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="texts and prompts by kind, as JSON")
    parser.add_argument("--new-tokens", type=int, default=256, help="of an answer to these")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="torch.compile for nothing")
    texts = parser.add_argument_group("texts")
    add_options(texts, generate.Options(), ("rows", "length", "most_tokens", "most_question", "texts_of_a_row"))
    learning = parser.add_argument_group("training")
    names = {field.name for field in dataclasses.fields(training.Options)} - {"seed", "compile", "length"}
    add_options(learning, training.Options(), names)
    return parser.parse_args()


def loaded(args):
    """Weights in float16, which keeps what a block's scale says; the residual stream is float32 anyhow."""
    target = Llama(args.model, args.device, torch.float16 if args.device == "cuda" else torch.float32)
    say(f"{args.model.name} on {args.device}")
    return target, Vocabulary(target.keys)


def train(args, target):
    options = dataclasses.replace(options_of(training.Options, args), length=args.most_tokens)
    trainer = training.Trainer(target, load_all(args.folder), options, args.folder / "checkpoint.pt", say)
    return trainer.run(args.deadline)


def held_rows(args):
    held = [text for text in load_all(args.folder) if text.held]
    return pack(held, args.most_tokens), held


def export(args, target):
    saved = torch.load(args.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
    head = Head(HeadShape(**saved["shape"] | {"feature_layers": tuple(saved["shape"]["feature_layers"])}))
    head.load_state_dict(saved["head"])
    head.to(target.device)
    token_ids = saved["token_ids"].to(target.device)
    rope = Rope(head.shape.head_dim, head.shape.rope_base, args.most_tokens, target.device)
    temperature = best_temperature(target, head, rope, token_ids, *held_rows(args), args.held_rows)
    path = args.folder / "head.safetensors"
    notes = f"trained for {saved['step']} steps on {args.model.name}'s own text"
    write_head(path, head, saved["token_ids"], fingerprint(args.model), round(temperature, 2), args.layer_type,
               args.output_type, notes)  # fmt: skip
    say(f"{path}: {path.stat().st_size:,} bytes, temperature {temperature:.2f}")


def prompts_by_kind(path):
    """{kind: [prompt]}, with the file's texts in their places."""
    held = json.loads(path.read_text())

    def whole(prompt):
        for name, text in held["texts"].items():
            prompt = prompt.replace("{" + name + "}", text)
        return prompt

    return {kind: [whole(prompt) for prompt in prompts] for kind, prompts in held["kinds"].items()}


def kind_and_all(text):
    return [text.kind, "all"]


def evaluate(args, target, vocabulary):
    head, token_ids = read_head(args.folder / "head.safetensors")
    head, token_ids = head.to(target.device), token_ids.to(target.device)
    rope = Rope(head.shape.head_dim, head.shape.rope_base, target.rope.cos.shape[0], target.device)
    for group, tally in measure(target, head, rope, token_ids, *held_rows(args), args.draft_steps).items():
        say(f"held texts, {group:18} {tally}")
    prompts = prompts_by_kind(args.prompts)
    kinds = [kind for kind, of_kind in prompts.items() for _ in of_kind]
    words = [prompt for of_kind in prompts.values() for prompt in of_kind]
    for way, temperature, loops_cut in (("greedy", 0, False), ("greedy, loops cut", 0, True), ("T 0.7", 0.7, False)):
        texts = answers(target, vocabulary, words, temperature, loops_cut, args.new_tokens)
        for text, kind in zip(texts, kinds, strict=True):
            text.kind = kind
        rows = pack(texts, max(len(text.ids) for text in texts))
        tallies = measure(target, head, rope, token_ids, rows, texts, args.draft_steps, groups=kind_and_all)
        for group, tally in tallies.items():
            say(f"prompts, {way}, {group:10} {tally}")


def main():
    args = parsed()
    args.deadline = BEGIN + 60 * args.minutes
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    target, vocabulary = loaded(args)
    if "generate" in args.phases:
        options = options_of(generate.Options, args)
        if not generate.generate(target, vocabulary, options, args.folder, args.tokens, args.deadline, say):
            return NOT_DONE
        torch.cuda.empty_cache()  # of keys and values
    if "train" in args.phases and not train(args, target):
        return NOT_DONE
    if "export" in args.phases:
        export(args, target)
    if "evaluate" in args.phases:
        evaluate(args, target, vocabulary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
