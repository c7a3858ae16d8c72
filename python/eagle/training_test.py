import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from . import training
from .export import fingerprint, read_head, write_head
from .llama import Llama
from .texts import Text
from .tiny_model import write_model

PROGRAM = Path(__file__).parents[1] / "train_eagle.py"
OPTIONS = training.Options(steps=40, batch_tokens=512, length=64, rate=3e-3, draft_vocabulary=128, draft_steps=3,
                           checkpoint_every=10, measure_every=20, held_rows=4)  # fmt: skip


def quiet(line):
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def texts():
    """Texts that a head can learn: they count, so what comes next is known from the token alone."""
    random = np.random.default_rng(1)
    starts, lengths = random.integers(10, 60, 64), random.integers(20, 64, 64)
    return [
        Text((start + np.arange(n)).astype(np.int32), np.arange(n) > 2, "task", True, i % 8 == 0)
        for i, (start, n) in enumerate(zip(starts, lengths, strict=True))
    ]


def trainer(model, path, options=OPTIONS):
    return training.Trainer(Llama(model, "cpu", torch.float32), texts(), options, path, quiet)


def numbers(head):
    return {name: parameter.detach().clone() for name, parameter in head.named_parameters()}


def test_losses_fall_in_every_draft_step(model, tmp_path):
    own = trainer(model, tmp_path / "checkpoint.pt", dataclasses.replace(OPTIONS, draft_vocabulary=264))
    losses = torch.stack([own.train_step() for _ in range(40)])
    assert (losses[-5:].mean(0) < 0.8 * losses[:5].mean(0)).all()


def test_the_output_layer_waits_until_its_time(model, tmp_path):
    own = trainer(model, tmp_path / "checkpoint.pt")
    before = own.head.lm_head.weight.detach().clone()
    for _ in range(8):
        own.train_step()
    assert torch.equal(before, own.head.lm_head.weight)
    own.train_step()
    assert not torch.equal(before, own.head.lm_head.weight)


def test_an_interrupted_run_ends_with_the_same_bits(model, tmp_path):
    """Stopped at a checkpoint, after the output layer began to learn."""
    whole = trainer(model, tmp_path / "whole.pt")
    assert whole.run(time.monotonic() + 600)
    first = trainer(model, tmp_path / "parts.pt")
    while first.step < 20:
        first.train_step()
        if first.step % 10 == 0:
            first.save()
    second = trainer(model, tmp_path / "parts.pt")
    assert second.step == 20
    assert second.run(time.monotonic() + 600)
    for name, parameter in numbers(whole.head).items():
        assert torch.equal(parameter, numbers(second.head)[name]), name
    assert whole.curve[-1] == second.curve[-1]


def test_passes_of_a_batch_add_up(model, tmp_path):
    one = trainer(model, tmp_path / "one.pt", dataclasses.replace(OPTIONS, noise=0.0))
    many = trainer(model, tmp_path / "many.pt", dataclasses.replace(OPTIONS, noise=0.0, pass_tokens=128))
    torch.testing.assert_close(one.train_step(), many.train_step(), atol=1e-4, rtol=1e-4)


def test_a_run_with_other_options_is_refused(model, tmp_path):
    own = trainer(model, tmp_path / "checkpoint.pt")
    own.save()
    with pytest.raises(SystemExit, match="other texts or options"):
        trainer(model, tmp_path / "checkpoint.pt", dataclasses.replace(OPTIONS, rate=1e-4))


def test_the_file_reads_back(model, tmp_path):
    own = trainer(model, tmp_path / "checkpoint.pt")
    own.train_step()
    path = tmp_path / "head.safetensors"
    write_head(path, own.head, own.token_ids, fingerprint(model), 1.1, "Q8_0", "Q4_1", "a test")
    back, ids = read_head(path)
    assert torch.equal(ids, own.token_ids) and back.shape == own.head.shape
    for name, parameter in numbers(own.head).items():
        error = (numbers(back)[name] - parameter).norm() / parameter.norm()
        assert error < (0.1 if name == "lm_head.weight" else 0.01), name


def test_the_file_is_one_of_safetensors(model, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    own = trainer(model, tmp_path / "checkpoint.pt")
    path = tmp_path / "head.safetensors"
    write_head(path, own.head, own.token_ids, fingerprint(model), 1.0, "Q8_0", "Q4_1", "a test")
    tensors = safetensors.load_file(path)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (64, 2 * 64 // 32 * 34)
    assert tensors["lm_head.weight"].shape == (128, 64 // 32 * 20) and tensors["norm.weight"].dtype == np.float32
    assert (np.diff(tensors["d2t"]) >= 0).all()


def run(model, folder, *more):
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps({"texts": {"it": "in the end"}, "kinds": {"chat": ["an", "a"], "rewrite": ["{it}"]}}))
    arguments = [
        "--device", "cpu", "--tokens", "9000", "--rows", "33", "--length", "160", "--most-tokens", "96",
        "--most-question", "24", "--texts-of-a-row", "8", "--steps", "12", "--batch-tokens", "768",
        "--draft-vocabulary", "128", "--draft-steps", "3", "--measure-every", "6", "--new-tokens", "8",
        "--prompts", prompts,
    ]  # fmt: skip
    command = [sys.executable, PROGRAM, model, folder, *arguments, *more]
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)


def test_the_program_from_texts_to_a_measured_head(model, tmp_path):
    """Stopped by its clock at once, it says so; given again, it goes on to the end."""
    stopped = run(model, tmp_path, "--minutes", "0")
    assert stopped.returncode == 75, stopped.stderr
    done = run(model, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "head.safetensors").stat().st_size < 120_000
    for words in ("step 12 of 12", "held texts, greedy", "prompts, T 0.7, rewrite", "tokens a round"):
        assert words in done.stdout
