import numpy as np
import pytest
import torch

from .blocks import TYPES
from .llama import Cache, Llama
from .tiny_model import default_model, quire_logits, write_model


def causal(length):
    return torch.full((1, length, length), float("-inf")).triu(1)


def logits_of(model, ids):
    """After each token of one text."""
    last, _ = model.run(torch.tensor([ids]), torch.arange(len(ids))[None], causal(len(ids)))
    return model.logits(last[0]).numpy()


def cosine(a, b):
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_those_of_quire_in_every_block_type(kind, tmp_path):
    size = dict(layers=2, width=256, ffn_width=256, own_output=True)
    path = write_model(tmp_path / "tiny.gguf", kinds=(kind,), **size)
    ids = [1, 50, 60, 70, 80, 90, 7, 8, 9, 10, 11, 12]
    own = logits_of(Llama(path, "cpu", torch.float32), ids)
    likeness = cosine(own, quire_logits(path, ids, range(len(ids))))
    assert likeness.min() > (0.998 if kind.startswith("Q") else 0.9999)  # quire rounds what goes into blocks to 8 bits


def test_logits_of_the_default_model_are_those_of_quire():
    path = default_model()
    ids = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]
    own, theirs = logits_of(Llama(path, "cpu", torch.float32), ids), quire_logits(path, ids, range(len(ids)))
    likeness = cosine(own, theirs)  # quire rounds what goes into blocks to 8 bits, in 30 layers
    assert likeness.mean() > 0.998 and likeness.min() > 0.995
    assert (own.argmax(1) == theirs.argmax(1)).mean() >= 0.9


def test_features_are_the_inputs_of_the_layers(tmp_path):
    model = Llama(write_model(tmp_path / "tiny.gguf"), "cpu", torch.float32)
    ids = torch.tensor([[1, 50, 60, 70]])
    last, (first, third) = model.run(ids, torch.arange(4)[None], causal(4), (0, 2))
    torch.testing.assert_close(first, model.embedding[ids])
    whole, model.layers = model.layers, model.layers[:2]
    torch.testing.assert_close(third, model.run(ids, torch.arange(4)[None], causal(4))[0])
    assert not torch.equal(third, last) and len(whole) == 4


def test_decoding_in_lockstep_gives_the_logits_of_whole_texts(tmp_path):
    """The second row's text begins at position 3; rotation knows only differences."""
    model = Llama(write_model(tmp_path / "tiny.gguf"), "cpu", torch.float32)
    ids = torch.randint(3, 200, (2, 9), generator=torch.Generator().manual_seed(1))
    starts, cache = torch.tensor([0, 3]), Cache(model, 2, 16)
    for position in range(9):
        hidden = (torch.arange(16) < starts[:, None]) | (torch.arange(16) > position)
        mask = torch.zeros(2, 16).masked_fill(hidden, float("-inf"))
        if position < 3:
            mask[1] = 0
        out = cache.decode(model, ids[:, position], torch.tensor([position]), mask)
    for row, start in enumerate(starts.tolist()):
        np.testing.assert_allclose(out[row].numpy(), logits_of(model, ids[row, start:].tolist())[-1], atol=2e-4)
