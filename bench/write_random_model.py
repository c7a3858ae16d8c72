#!/usr/bin/env python3
"""A model of a billion random weights as Q4_K_M, for comparisons of speed: 16 layers of width 2048, feed-forward width
8192, 32 query and 8 kv heads of 64, the embedding (Q6_K) also as head. Its vocabulary is that of another GGUF file.

    python3 bench/write_random_model.py VOCABULARY.gguf OUT.gguf

Needs numpy. The same bytes on every machine.
"""

import struct
import sys
from pathlib import Path

import numpy as np

LAYERS, WIDTH, FFN_WIDTH, HEADS, KV_HEADS, HEAD_DIM = 16, 2048, 8192, 32, 8, 64
# Files' numbers of the types, elements and bytes of a block.
TYPES = {"F32": (0, 1, 4), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
TEXT, ARRAY = 8, 9
VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Keys:
    """The metadata of a GGUF file: {name: value's bytes, its type in front}."""

    def __init__(self, path):
        self.data, self.at = memoryview(Path(path).read_bytes()), 24
        self.packed = {}
        for _ in range(struct.unpack_from("<Q", self.data, 16)[0]):
            name = self._text()
            begin, kind = self.at, self._number("<I")
            self._skip(kind)
            self.packed[name] = bytes(self.data[begin : self.at])

    def _number(self, form):
        (number,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return number

    def _text(self):
        length = self._number("<Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def _skip(self, kind):
        if kind == TEXT:
            self._text()
        elif kind == ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            for _ in range(count):
                self._skip(kind)
        else:
            self.at += VALUE_BYTES[kind]


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(x):
    if isinstance(x, str):
        return struct.pack("<I", TEXT) + text(x)
    return struct.pack("<If", 6, x) if isinstance(x, float) else struct.pack("<II", 4, x)


def metadata(vocabulary_keys):
    shape = {
        "block_count": LAYERS, "context_length": 8192, "embedding_length": WIDTH, "feed_forward_length": FFN_WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0,
    }  # fmt: skip
    keys = {"general.architecture": value("llama"), "general.name": value("random"), "general.file_type": value(15)}
    keys |= {f"llama.{name}": value(x) for name, x in shape.items()}
    return keys | {name: packed for name, packed in vocabulary_keys.items() if name.startswith("tokenizer.ggml.")}


def tensors(vocabulary):
    """{name: (shape, innermost first; type)}. Q4_K_M has Q6_K values and down projections in half of the layers."""
    all_tensors = {"token_embd.weight": ((WIDTH, vocabulary), "Q6_K"), "output_norm.weight": ((WIDTH,), "F32")}
    for layer in range(LAYERS):
        eighth = LAYERS // 8
        finer = layer < eighth or layer >= LAYERS - eighth or (layer - eighth) % 3 == 2
        for name, shape, kind in (
            ("attn_norm", (WIDTH,), "F32"),
            ("attn_q", (WIDTH, HEADS * HEAD_DIM), "Q4_K"),
            ("attn_k", (WIDTH, KV_HEADS * HEAD_DIM), "Q4_K"),
            ("attn_v", (WIDTH, KV_HEADS * HEAD_DIM), "Q6_K" if finer else "Q4_K"),
            ("attn_output", (HEADS * HEAD_DIM, WIDTH), "Q4_K"),
            ("ffn_norm", (WIDTH,), "F32"),
            ("ffn_gate", (WIDTH, FFN_WIDTH), "Q4_K"),
            ("ffn_up", (WIDTH, FFN_WIDTH), "Q4_K"),
            ("ffn_down", (FFN_WIDTH, WIDTH), "Q6_K" if finer else "Q4_K"),
        ):
            all_tensors[f"blk.{layer}.{name}.weight"] = (shape, kind)
    return all_tensors


def numbers(random, shape, kind):
    """Random blocks, their scales such that sums over a row stay of the order of one."""
    _, elements, size = TYPES[kind]
    if kind == "F32":
        return np.ones(shape, "<f4").tobytes()
    raw = random.integers(0, 256, (np.prod(shape) // elements, size), dtype=np.uint8)
    spread = shape[0] ** -0.5
    scales = ((0, spread / 300), (2, spread * 7.5 / 300)) if kind == "Q4_K" else ((208, spread / 1300),)
    for offset, scale in scales:
        raw[:, offset : offset + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return raw.tobytes()


def main():
    vocabulary_keys = Keys(sys.argv[1]).packed
    (vocabulary,) = struct.unpack_from("<Q", vocabulary_keys["tokenizer.ggml.tokens"], 8)
    keys, all_tensors = metadata(vocabulary_keys), tensors(vocabulary)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(keys))
    head += b"".join(text(name) + packed for name, packed in keys.items())
    offset = 0
    for name, (shape, kind) in all_tensors.items():
        number, elements, size = TYPES[kind]
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", number, offset)
        offset += (int(np.prod(shape)) // elements * size + 31) // 32 * 32
    random = np.random.default_rng(1)
    with open(sys.argv[2], "wb") as out:
        out.write(head + bytes(-len(head) % 32))
        for shape, kind in all_tensors.values():
            data = numbers(random, shape, kind)
            out.write(data + bytes(-len(data) % 32))


if __name__ == "__main__":
    main()
