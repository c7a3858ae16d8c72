import time

import numpy as np
import pytest
import torch

from .generate import LOOP, Options, Planner, Writer, answers, draw, generate
from .llama import Llama
from .texts import HELD_EVERY, load_shard
from .tiny_model import write_model
from .vocabulary import Vocabulary

OPTIONS = Options(rows=HELD_EVERY + 1, length=160, most_tokens=96, most_question=24, texts_of_a_row=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Llama(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"), "cpu", torch.float32)


@pytest.fixture(scope="module")
def round_of_texts(model):
    vocabulary = Vocabulary(model.keys)
    planner = Planner(vocabulary, OPTIONS)
    plan = planner.plan(np.random.default_rng(1))
    return vocabulary, plan, list(Writer(model, vocabulary, OPTIONS).write(plan, 1))


def test_texts_begin_as_planned(round_of_texts):
    _, plan, written = round_of_texts
    assert len(written) > 2 * OPTIONS.rows
    for row, number, text in written:
        length = min(plan.prompt_lengths[row, number % 8], len(text.ids))
        np.testing.assert_array_equal(text.ids[:length], plan.prompts[row, number % 8, :length])
        assert not text.drawn[:length].any() and len(text.ids) <= OPTIONS.most_tokens


def test_rows_are_filled(round_of_texts):
    """Every position belongs to a text; only the runs that came again are missing."""
    _, _, written = round_of_texts
    tokens = sum(len(text.ids) for _, _, text in written)
    assert tokens >= OPTIONS.rows * (OPTIONS.length + 1) - LOOP * len(written)


def test_an_answered_question_has_its_turn_in_between(round_of_texts):
    vocabulary, _, written = round_of_texts
    before, after = vocabulary.turn()
    answered = 0
    for _, _, text in written:
        if text.kind == "question" and text.drawn.any():
            answer = text.drawn.argmax()
            assert text.ids[answer - len(after) : answer].tolist() == after
            assert text.drawn[answer:].all() and answer >= len(before) + len(after)
            answered += 1
    assert answered > 0


def test_greedy_tokens_are_the_models_likeliest(model, round_of_texts):
    _, _, written = round_of_texts
    looked_at = 0
    for _, _, text in written:
        if text.greedy and text.kind != "question" and len(text.ids) > 20:
            ids = torch.from_numpy(text.ids).long()[None]
            n = ids.shape[1]
            last, _ = model.run(ids, torch.arange(n)[None], torch.full((1, n, n), float("-inf")).triu(1))
            best = model.logits(last[0]).argmax(1).numpy()
            np.testing.assert_array_equal(best[:-1][text.drawn[1:]], text.ids[1:][text.drawn[1:]])
            looked_at += 1
    assert looked_at > 4


def test_no_guarded_answer_comes_to_the_same_run_twice(round_of_texts):
    _, plan, written = round_of_texts
    cut = 0
    for row, number, text in written:
        if plan.guarded[row, number % 8] and text.kind != "question":
            answer = text.ids[text.drawn].tolist()
            runs = [tuple(answer[at : at + LOOP]) for at in range(len(answer) - LOOP + 1)]
            assert len(set(runs)) == len(runs)
            cut += len(text.ids) < OPTIONS.most_tokens - LOOP
    assert cut > 0


def test_draws_follow_the_probabilities_and_the_nucleus():
    torch.manual_seed(1)
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05])
    ids = draw(chances.log().expand(20000, 4), torch.ones(20000), torch.full((20000,), 0.9))
    shares = torch.bincount(ids, minlength=4) / 20000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.02, rtol=0)
    assert (draw(chances.log().expand(9, 4), torch.zeros(9), torch.ones(9)) == 0).all()


def test_generation_goes_on_where_it_was_stopped(model, tmp_path):
    vocabulary, options, lines = Vocabulary(model.keys), OPTIONS, []
    say = lines.append
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    assert generate(model, vocabulary, options, whole, 12000, time.monotonic() + 600, say)
    assert not generate(model, vocabulary, options, parts, 12000, time.monotonic() - 1, say)
    assert generate(model, vocabulary, options, parts, 5000, time.monotonic() + 600, say)
    assert generate(model, vocabulary, options, parts, 12000, time.monotonic() + 600, say)
    assert "of 12,000 tokens" in lines[-1]
    names = sorted(path.name for path in whole.iterdir())
    assert len(names) > 1 and names == sorted(path.name for path in parts.iterdir())
    for name in names:
        for one, other in zip(load_shard(whole / name), load_shard(parts / name), strict=True):
            np.testing.assert_array_equal(one.ids, other.ids)


def test_answers_are_one_a_prompt(model):
    vocabulary = Vocabulary(model.keys)
    prompts = ["the", "a longer prompt in the middle", "an"]
    before, after = vocabulary.turn()
    for prompt, text in zip(prompts, answers(model, vocabulary, prompts, 0, False, 20), strict=True):
        asked = [*before, *vocabulary.encode(prompt), *after]
        assert text.ids[: len(asked)].tolist() == asked
        assert text.drawn.sum() == len(text.ids) - len(asked) <= 20
