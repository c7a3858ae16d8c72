"""The texts that a head learns from, as files of token ids, and how they are packed into rows.

A shard is what one round of generation wrote: texts of different lengths one after the other, and for each token
whether it is of an answer that the model drew. A text belongs to the held part when its row of the round does, and what
a held row was asked about came from held rows, so no held text's words are learned from.
"""

import dataclasses
from pathlib import Path

import numpy as np

HELD_EVERY = 32  # one row of so many is held


@dataclasses.dataclass
class Text:
    ids: np.ndarray  # int32
    drawn: np.ndarray  # bool: of the answer
    kind: str
    greedy: bool
    held: bool


KINDS = ("question", "task", "raw")


def save_shard(path, texts):
    lengths = [len(text.ids) for text in texts]
    flags = [KINDS.index(text.kind) | text.greedy << 4 | text.held << 5 for text in texts]
    ids = np.concatenate([text.ids for text in texts])
    arrays = dict(
        lengths=np.array(lengths, np.int32),
        flags=np.array(flags, np.uint8),
        ids=ids.astype(np.uint16 if ids.max() < 1 << 16 else np.uint32),
        drawn=np.packbits(np.concatenate([text.drawn for text in texts])),
    )
    part = Path(f"{path}.part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


def load_shard(path):
    with np.load(path) as arrays:
        lengths, flags, ids = arrays["lengths"], arrays["flags"], arrays["ids"].astype(np.int32)
        drawn = np.unpackbits(arrays["drawn"], count=len(ids)).astype(bool)
    ends = np.cumsum(lengths)
    return [
        Text(ids[end - length : end], drawn[end - length : end], KINDS[flag & 15], bool(flag & 16), bool(flag & 32))
        for end, length, flag in zip(ends, lengths, flags, strict=True)
    ]


def shards(folder):
    return sorted(Path(folder).glob("shard-*.npz"))


def load_all(folder):
    return [text for path in shards(folder) for text in load_shard(path)]


@dataclasses.dataclass
class Rows:
    """Texts packed into rows of one length; what is left of a row holds no text."""

    ids: np.ndarray  # [rows, length] int32
    text: np.ndarray  # [rows, length] int32: which text of the row, -1 for none
    position: np.ndarray  # [rows, length] int32 in the text
    wanted: np.ndarray  # [rows, length] bool: the next token is of the same text and was drawn
    source: np.ndarray  # [rows, length] int32: index into the packed list of texts


def _first_fit(lengths, length):
    """Rows as lists of indices: longest first, each into the row with the least room that is enough."""
    rows, by_room = [], [[] for _ in range(length + 1)]
    for index in np.argsort(-lengths, kind="stable"):
        need = lengths[index]
        room = next((room for room in range(need, length) if by_room[room]), None)
        if room is None:
            room = length
            by_room[length].append(len(rows))
            rows.append([])
        row = by_room[room].pop()
        rows[row].append(int(index))
        by_room[room - need].append(row)
    return rows


def pack(texts, length):
    """All texts, cut to `length`, in as few rows as a simple fitting gives."""
    lengths = np.array([min(len(text.ids), length) for text in texts])
    plan = _first_fit(lengths, length)
    shape = (len(plan), length)
    rows = Rows(np.zeros(shape, np.int32), np.full(shape, -1, np.int32), np.zeros(shape, np.int32),
                np.zeros(shape, bool), np.full(shape, -1, np.int32))  # fmt: skip
    for row, members in enumerate(plan):
        begin = 0
        for number, index in enumerate(members):
            text, end = texts[index], begin + lengths[index]
            rows.ids[row, begin:end] = text.ids[: lengths[index]]
            rows.text[row, begin:end] = number
            rows.position[row, begin:end] = np.arange(lengths[index])
            rows.wanted[row, begin : end - 1] = text.drawn[1 : lengths[index]]
            rows.source[row, begin:end] = index
            begin = end
    return rows
