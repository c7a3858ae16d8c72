"""The block types of GGUF files in numpy: what their bytes mean, and how Q8_0 and Q4_1 are made.

A block is a run of consecutive elements of a row that share their scales; the layouts are those of src/base/blocks.cc.
"""

import numpy as np

# name: (number in GGUF files, elements of a block, bytes of a block)
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
}
NAMES = {number: name for name, (number, _, _) in TYPES.items()}


def bytes_of(kind, elements):
    _, block, size = TYPES[kind]
    if elements % block:
        raise ValueError(f"{elements} elements are not whole blocks of {kind}")
    return elements // block * size


def _half(raw, at):
    """Column of float32: the half at byte `at` of every block."""
    return raw[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(raw):
    """[blocks, n] bytes > [blocks, 2n]: the lower halves, then the upper ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _fifth_bits(raw):
    """[blocks, 4] bytes > [blocks, 32] of 0 or 16."""
    return np.unpackbits(raw, axis=1, bitorder="little") << 4


def _group_scales(packed):
    """The 6-bit scales and minima of the 8 groups of Q4_K and Q5_K: [blocks, 8] each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 63, high >> 4 | (middle >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_values(raw, quants):
    scales, minima = _group_scales(raw[:, 4:16])
    scales, minima = _half(raw, 0) * scales, _half(raw, 2) * minima
    return (scales[:, :, None] * quants.astype(np.float32) - minima[:, :, None]).reshape(len(raw), 256)


def _groups_of_nibbles(raw):
    """[blocks, 128] bytes > [blocks, 8 groups, 32]."""
    pairs = raw.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q8_0(raw):
    return raw[:, 2:].view(np.int8).astype(np.float32) * _half(raw, 0)


def _q4_0(raw):
    return (_nibbles(raw[:, 2:]).astype(np.float32) - 8) * _half(raw, 0)


def _q4_1(raw):
    return _nibbles(raw[:, 4:]).astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def _q5_0(raw):
    quants = _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])
    return (quants.astype(np.float32) - 16) * _half(raw, 0)


def _q5_1(raw):
    quants = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return quants.astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def _q4_k(raw):
    return _k_values(raw, _groups_of_nibbles(raw[:, 16:]))


def _q5_k(raw):
    bits = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_values(raw, _groups_of_nibbles(raw[:, 48:]) | bits << 4)


def _q6_k(raw):
    nibbles = raw[:, :128].reshape(-1, 2, 1, 2, 32)  # half, below or above, quarter of the pair
    nibbles = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    quants = (nibbles | high << 4).astype(np.float32) - 32
    scales = _half(raw, 208) * raw[:, 192:208].view(np.int8).astype(np.float32)
    return (quants.reshape(-1, 16, 16) * scales[:, :, None]).reshape(-1, 256)


_MEANINGS = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def dequantise(kind, data):
    """The float32 numbers that the bytes stand for, flat."""
    raw = np.frombuffer(data, np.uint8)
    if kind == "F32":
        return raw.view("<f4").astype(np.float32)
    if kind == "F16":
        return raw.view("<f2").astype(np.float32)
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return _MEANINGS[kind](raw.reshape(-1, TYPES[kind][2])).reshape(-1)


def _rounded_half(numbers):
    return numbers.astype("<f2")


def _half_bytes(halves):
    return halves.view(np.uint8).reshape(-1, 2)


def quantise_q8_0(rows):
    """[rows, n] float32 > [rows, bytes] uint8. The scale is rounded first: quants fit the one that is stored."""
    blocks = rows.astype(np.float32).reshape(-1, 32)
    scale = _rounded_half(np.abs(blocks).max(1, keepdims=True) / 127)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    quants = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    raw = np.concatenate([_half_bytes(scale), quants.view(np.uint8)], axis=1)
    return raw.reshape(len(rows), -1)


def _q4_1_quants(blocks, scale, least):
    return np.clip(np.rint((blocks - least) / np.where(scale == 0, 1, scale)), 0, 15)


def quantise_q4_1(rows, rounds=6):
    """[rows, n] float32 > [rows, bytes] uint8.

    Starts from the range of each block, then alternates: quants for a scale and a minimum, and the scale and the
    minimum that are best for these quants by least squares. A block keeps the best of what was seen.
    """
    blocks = rows.astype(np.float32).reshape(-1, 32)
    least, most = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    scale = (most - least) / 15
    best_error = np.full((len(blocks), 1), np.inf, np.float32)
    best = [np.zeros_like(scale, "<f2"), np.zeros_like(scale, "<f2"), np.zeros(blocks.shape, np.uint8)]
    for _ in range(rounds):
        halves = _rounded_half(scale), _rounded_half(least)
        scale, least = (half.astype(np.float32) for half in halves)
        quants = _q4_1_quants(blocks, scale, least)
        error = np.square(quants * scale + least - blocks).sum(1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best = [np.where(better, new, old) for new, old in zip((*halves, quants.astype(np.uint8)), best, strict=True)]
        mean_q, mean_x = quants.mean(1, keepdims=True), blocks.mean(1, keepdims=True)
        spread = np.square(quants - mean_q).sum(1, keepdims=True)
        slope = ((quants - mean_q) * (blocks - mean_x)).sum(1, keepdims=True) / np.where(spread == 0, 1, spread)
        scale = np.where(spread == 0, scale, slope)
        least = mean_x - scale * mean_q
    scale, least, quants = best
    nibbles = quants[:, :16] | quants[:, 16:] << 4
    raw = np.concatenate([_half_bytes(scale), _half_bytes(least), nibbles], axis=1)
    return raw.reshape(len(rows), -1)


QUANTISERS = {"Q8_0": quantise_q8_0, "Q4_1": quantise_q4_1}
