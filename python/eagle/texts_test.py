import numpy as np

from .texts import Text, load_shard, pack, save_shard


def some_texts(count, longest, seed=1):
    random = np.random.default_rng(seed)
    return [
        Text(random.integers(0, 49152, n).astype(np.int32), random.random(n) < 0.5, "task", bool(n % 2), bool(n % 3))
        for n in random.integers(1, longest, count)
    ]


def test_a_shard_comes_back(tmp_path):
    texts = some_texts(20, 50)
    save_shard(tmp_path / "shard", texts)
    for text, back in zip(texts, load_shard(tmp_path / "shard"), strict=True):
        np.testing.assert_array_equal(text.ids, back.ids)
        np.testing.assert_array_equal(text.drawn, back.drawn)
        assert (text.kind, text.greedy, text.held) == (back.kind, back.greedy, back.held)


def test_packed_rows_hold_every_text_once_and_whole():
    texts = some_texts(300, 90)
    rows = pack(texts, 64)
    assert len(rows.ids) < 1.1 * sum(min(64, len(text.ids)) for text in texts) / 64
    for index, text in enumerate(texts):
        where = np.argwhere(rows.source == index)
        assert len(set(where[:, 0])) == 1 and (np.diff(where[:, 1]) == 1).all()
        row, slots = where[0, 0], where[:, 1]
        np.testing.assert_array_equal(rows.ids[row, slots], text.ids[:64])
        np.testing.assert_array_equal(rows.position[row, slots], np.arange(len(slots)))
        np.testing.assert_array_equal(rows.wanted[row, slots], [*text.drawn[1:64], False])
        assert len(set(rows.text[row, slots])) == 1
