#!/usr/bin/env python3
"""A model of eight billion zeros (the shape of Llama 3.1 8B, bf16), for measuring how long loading takes: the file is
sparse, so it is written at once and takes no room on a disk, and once it has been read it lies in the page cache like
any other.

    python3 bench/write_zero_model.py FOLDER
    cat FOLDER/model.safetensors >/dev/null
    quire bench throughput --model FOLDER --device cuda --filter ready

Standard library only.
"""

import json
import struct
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "rope_theta": 500000,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


def shapes():
    width, ffn, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", [vocabulary, width]
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [width]
        yield name + "self_attn.q_proj.weight", [width, width]
        yield name + "self_attn.k_proj.weight", [kv, width]
        yield name + "self_attn.v_proj.weight", [kv, width]
        yield name + "self_attn.o_proj.weight", [width, width]
        yield name + "post_attention_layernorm.weight", [width]
        yield name + "mlp.gate_proj.weight", [ffn, width]
        yield name + "mlp.up_proj.weight", [ffn, width]
        yield name + "mlp.down_proj.weight", [width, ffn]
    yield "model.norm.weight", [width]
    yield "lm_head.weight", [vocabulary, width]


def write_weights(path):
    header, end = {}, 0
    for name, shape in shapes():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def tokenizer():
    """Bytes as tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    model = {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    write_weights(folder / "model.safetensors")


if __name__ == "__main__":
    main()
