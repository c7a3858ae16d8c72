import numpy as np
import pytest

from .blocks import QUANTISERS, dequantise


@pytest.mark.parametrize(("kind", "most"), [("Q8_0", 0.006), ("Q4_1", 0.08)])
def test_quantised_numbers_come_back_nearly(kind, most):
    rows = np.random.default_rng(1).normal(0, 0.1, (64, 96)).astype(np.float32)
    back = dequantise(kind, QUANTISERS[kind](rows).tobytes()).reshape(rows.shape)
    assert np.sqrt(np.mean((back - rows) ** 2) / np.mean(rows**2)) < most


@pytest.mark.parametrize("kind", QUANTISERS)
def test_what_blocks_can_hold_comes_back_exactly(kind):
    quants = np.arange(32, dtype=np.float32) % 16
    rows = np.stack([quants * 0.25, quants * 0, quants * 0 + 3])
    rows[0, 0] = 127 * 0.25 if kind == "Q8_0" else 0
    back = dequantise(kind, QUANTISERS[kind](rows).tobytes()).reshape(rows.shape)
    np.testing.assert_allclose(back, rows, rtol=0.001)


def test_fitted_q4_1_is_nearer_than_the_range_alone():
    rows = np.random.default_rng(2).standard_t(3, (128, 64)).astype(np.float32)

    def error(rounds):
        back = dequantise("Q4_1", QUANTISERS["Q4_1"](rows, rounds).tobytes()).reshape(rows.shape)
        return np.mean((back - rows) ** 2)

    assert error(6) < 0.97 * error(1)
