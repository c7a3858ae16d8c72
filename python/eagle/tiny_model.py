"""For tests: small random models of the Llama family as GGUF files, and quire's own program beside them."""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from .blocks import QUANTISERS, TYPES
from .vocabulary import LETTERS

CACHE = Path(os.environ.get("QUIRE_CACHE") or Path.home() / ".cache/quire")
DEFAULT_MODEL = CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ the", "i n", "a n"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def quire(*arguments, text=None):
    """What quire prints; skips where the program was not built (QUIRE names another place than build/cpu/app)."""
    program = Path(os.environ.get("QUIRE") or Path(__file__).parents[2] / "build/cpu/app/quire")
    if not program.exists():
        pytest.skip(f"{program} is not there")
    done = subprocess.run([program, *map(str, arguments)], input=text, capture_output=True, text=True, check=True)
    return done.stdout


def quire_logits(model, ids, positions):
    """[positions, vocabulary]"""
    numbers = [",".join(map(str, values)) for values in (ids, positions)]
    shown = json.loads(quire("inspect", "logits", model, "--ids", numbers[0], "--positions", numbers[1], "--json"))
    return np.array([shown["logits"][str(position)] for position in positions])


def default_model():
    if not DEFAULT_MODEL.exists():
        pytest.skip(f"{DEFAULT_MODEL} is not there; cmake/default_model.sh fetches it")
    return DEFAULT_MODEL


def _text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(x):
    if isinstance(x, str):
        return struct.pack("<I", 8) + _text(x)
    if isinstance(x, list):
        kind, pack = (8, _text) if isinstance(x[0], str) else (5, lambda n: struct.pack("<i", n))
        return struct.pack("<IIQ", 9, kind, len(x)) + b"".join(map(pack, x))
    return struct.pack("<If", 6, x) if isinstance(x, float) else struct.pack("<II", 4, x)


def vocabulary_keys():
    tokens = SPECIAL + list(LETTERS.values()) + [merge.replace(" ", "") for merge in MERGES]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def random_blocks(random, kind, rows, columns, spread):
    """Bytes of a matrix whose numbers are of the order of `spread`: any quants, scales that fit them."""
    if kind in QUANTISERS or TYPES[kind][1] == 1:
        numbers = random.normal(0, spread, (rows, columns)).astype(np.float32)
        if kind in QUANTISERS:
            return QUANTISERS[kind](numbers).tobytes()
        if kind == "BF16":
            return (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
        return numbers.astype("<f2" if kind == "F16" else "<f4").tobytes()
    _, elements, size = TYPES[kind]
    raw = random.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    # (place of a half, its value for a spread of one)
    halves = {
        "Q4_0": [(0, 1 / 5)],
        "Q5_0": [(0, 1 / 9)],
        "Q5_1": [(0, 1 / 9), (2, -15.5 / 9)],
        "Q4_K": [(0, 1 / 150), (2, 7.5 / 150)],
        "Q5_K": [(0, 1 / 300), (2, 15.5 / 300)],
        "Q6_K": [(208, 1 / 1300)],
    }
    for place, value in halves[kind]:
        raw[:, place : place + 2] = np.frombuffer(np.float16(value * spread).tobytes(), np.uint8)
    return raw.tobytes()


def write_model(path, kinds=("Q8_0",), layers=4, width=64, ffn_width=96, heads=4, kv_heads=2, own_output=False, seed=1):
    """A model with random weights, its matrices of the types `kinds` in turn. The embedding also serves as output."""
    random = np.random.default_rng(seed)
    vocabulary = vocabulary_keys()
    tokens, dim = len(vocabulary["tokenizer.ggml.tokens"]), width // heads
    keys = {"general.architecture": "llama", "general.name": "tiny"} | {
        f"llama.{name}": value
        for name, value in {
            "block_count": layers, "context_length": 2048, "embedding_length": width, "feed_forward_length": ffn_width,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads, "rope.dimension_count": dim,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
        }.items()
    } | vocabulary  # fmt: skip
    shapes = {"token_embd.weight": (tokens, width), "output_norm.weight": (width,)}
    if own_output:
        shapes["output.weight"] = (tokens, width)
    for layer in range(layers):
        for name, shape in {
            "attn_norm": (width,), "attn_q": (heads * dim, width), "attn_k": (kv_heads * dim, width),
            "attn_v": (kv_heads * dim, width), "attn_output": (width, heads * dim), "ffn_norm": (width,),
            "ffn_gate": (ffn_width, width), "ffn_up": (ffn_width, width), "ffn_down": (width, ffn_width),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}.weight"] = shape
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    head += b"".join(_text(name) + _value(value) for name, value in keys.items())
    data, matrices = b"", 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            kind, raw = "F32", random.uniform(0.5, 1.5, shape).astype("<f4").tobytes()
        else:
            kind, matrices = kinds[matrices % len(kinds)], matrices + 1
            raw = random_blocks(random, kind, *shape, shape[1] ** -0.5)
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", TYPES[kind][0], len(data))
        data += raw + bytes(-len(raw) % 32)
    Path(path).write_bytes(head + bytes(-len(head) % 32) + data)
    return path
