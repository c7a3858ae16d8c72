import pytest
import torch

from .head import Head, HeadShape, causal_masks
from .llama import Rope, Shape
from .loss import soft_cross_entropy

SHAPE = HeadShape(width=32, ffn_width=48, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_base=10000.0, vocabulary=100,
                  draft_vocabulary=40, feature_layers=(1, 2, 3))  # fmt: skip


def random_head(slots):
    torch.manual_seed(1)
    head, rope = Head(SHAPE), Rope(SHAPE.head_dim, SHAPE.rope_base, 64, "cpu")
    embedded, g = torch.randn(1, slots, 32), torch.randn(1, slots, 32)
    return head, rope, embedded, g


def drafted(head, rope, embedded, g, slot, steps):
    """y of a chain that begins in `slot`, as an engine computes it: one new slot at a time, over a cache of keys."""
    masks = causal_masks(torch.zeros(1, slot + 1, dtype=torch.int64), 1, torch.float32)
    keys, values = [], []
    seen = embedded[:, : slot + 1], g[:, : slot + 1], rope.at(torch.arange(slot + 1)[None])
    y = head.layer(*seen, (keys, values), masks[0])
    found, cached = [y[:, -1]], (keys[0], values[0])
    for step in range(1, steps):
        at = slot + step
        q, k, v = head._qkv(embedded[:, at : at + 1], found[-1][:, None], rope.at(torch.tensor([[at]])))
        cached = tuple(torch.cat([old, new], 1) for old, new in zip(cached, (k, v), strict=True))
        attended = head._attend(q, [cached[0]], [cached[1]], torch.zeros(1, 1, at + 1))
        x = found[-1][:, None] + head.o_proj(attended)
        n = head.post_attention_layernorm(x)
        x = x + head.down_proj(torch.nn.functional.silu(head.gate_proj(n)) * head.up_proj(n))
        found.append(head.norm(x)[:, 0])
    return found


@pytest.mark.parametrize(("layers", "expected"), [(30, (2, 15, 27)), (7, (2, 3, 4)), (6, (3, 4, 5)), (3, (0, 1, 2))])
def test_features_are_of_ascending_layers(layers, expected):
    names = ("width", "ffn_width", "heads", "kv_heads", "head_dim", "eps", "rope_base", "vocabulary")
    target = Shape(layers=layers, **{name: getattr(SHAPE, name) for name in names})
    assert HeadShape.of(target, 40).feature_layers == expected


def test_training_steps_are_the_drafts_of_an_engine():
    head, rope, embedded, g = random_head(slots=12)
    text = torch.zeros(1, 12, dtype=torch.int64)
    steps = list(head.steps(embedded, g, rope.at(torch.arange(12)[None]), causal_masks(text, 4, torch.float32)))
    for slot in (0, 3, 8):
        for step, y in enumerate(drafted(head, rope, embedded, g, slot, 4)):
            torch.testing.assert_close(steps[step][:, slot + step], y, atol=1e-5, rtol=1e-4)


def test_texts_of_a_row_do_not_see_each_other():
    head, rope, embedded, g = random_head(slots=10)
    text = torch.tensor([[0] * 4 + [1] * 6])
    position = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    together = list(head.steps(embedded, g, rope.at(position), causal_masks(text, 3, torch.float32)))
    masks = causal_masks(text[:, 4:], 3, torch.float32)
    alone = list(head.steps(embedded[:, 4:], g[:, 4:], rope.at(position[:, 4:]), masks))
    for step in range(3):  # a step's first slots would need a chain that began in front of the text
        torch.testing.assert_close(together[step][:, 4 + step :], alone[step][:, step:], atol=1e-5, rtol=1e-4)


def test_loss_in_pieces_has_the_gradients_of_the_whole():
    torch.manual_seed(2)
    y, matrix = torch.randn(50, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    chances, weights = torch.randn(50, 20).softmax(1), torch.rand(50)
    whole = (weights * -(chances * (y @ matrix.T).log_softmax(1)).sum(1)).sum()
    expected = torch.autograd.grad(3 * whole, (y, matrix))
    loss = soft_cross_entropy(y, matrix, chances, weights, dtype=torch.float32)
    torch.testing.assert_close(loss, whole)
    for own, other in zip(torch.autograd.grad(3 * loss, (y, matrix)), expected, strict=True):
        torch.testing.assert_close(own, other)


def test_products_in_bfloat16_change_little_and_have_gradients():
    head, rope, embedded, g = random_head(slots=12)
    text, cos_sin = torch.zeros(1, 12, dtype=torch.int64), rope.at(torch.arange(12)[None])
    exact = list(head.steps(embedded, g, cos_sin, causal_masks(text, 3, torch.float32)))
    chances, weights = torch.randn(12, 40).softmax(1).bfloat16(), torch.ones(12)
    with torch.autocast("cpu", torch.bfloat16):
        near = list(head.steps(embedded, g, cos_sin, causal_masks(text, 3, torch.bfloat16)))
        loss = sum(soft_cross_entropy(y.flatten(0, 1), head.lm_head.weight, chances, weights) for y in near)
    for one, other in zip(exact, near, strict=True):
        assert torch.nn.functional.cosine_similarity(one, other, dim=-1).min() > 0.999
    loss.backward()
    features = [name for name, parameter in head.named_parameters() if parameter.grad is None]
    assert all(name.startswith("fc") for name in features) and head.lm_head.weight.grad.abs().sum() > 0
