"""A tiny model with random weights that can be served: its vocabulary is the bytes, some words and a few special tokens.

It answers at once, so that a soak spends its time in the server and not in products of matrices.
"""

import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
import tiny_models  # noqa: E402
from tiny_models import Spec, gguf_text, gguf_value  # noqa: E402

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
NORMAL, CONTROL = 1, 3
TEMPLATE = (
    "{% for message in messages %}<|{{ 'assistant' if message.role == 'assistant' else 'user' }}|>"
    "{{ message.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|>"
)


def byte_letters():
    """The letter that stands for each byte in vocabularies of this kind: itself where it can be seen."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}


def tokens():
    letters = byte_letters()
    words = [f"w{i}" for i in range(tiny_models.VOCABULARY - 256 - len(SPECIAL))]
    return [letters[byte] for byte in range(256)] + SPECIAL + words


def array(type, values, packed):
    return struct.pack("<IIQ", 9, type, len(values)) + b"".join(packed(value) for value in values)


def vocabulary_keys():
    names = tokens()
    types = [CONTROL if name in SPECIAL else NORMAL for name in names]
    prefix = "tokenizer.ggml."
    return {
        prefix + "model": gguf_value("gpt2"),
        prefix + "pre": gguf_value("gpt-2"),
        prefix + "tokens": array(8, names, gguf_text),
        prefix + "token_type": array(5, types, lambda type: struct.pack("<i", type)),
        prefix + "merges": array(8, [], gguf_text),
        prefix + "bos_token_id": gguf_value(names.index("<s>")),
        prefix + "eos_token_id": gguf_value(names.index("</s>")),
        prefix + "add_bos_token": struct.pack("<I?", 7, True),
        "tokenizer.chat_template": gguf_value(TEMPLATE),
    }


def write(path, type="Q8_0", **changes):
    spec = Spec("llama", type=type, layers=2, width=64, ffn_width=96, tied=True, **changes)
    return tiny_models.write_gguf(spec, pathlib.Path(path), vocabulary_keys())
