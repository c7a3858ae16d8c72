#!/usr/bin/env python3
"""Writes the seeds that no editor can: the smallest GGUF files, safetensors folders and torch files that quire takes.

    python fuzz/make_corpus.py

Needs numpy. The other folders of fuzz/corpus are written by hand.
"""

import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "tests" / "golden"))
import tiny_models  # noqa: E402
import torch_file  # noqa: E402
from tiny_models import Spec, config_of, gguf_text, write_folder, write_gguf  # noqa: E402

tiny_models.VOCABULARY = 8
SMALL = dict(layers=1, width=32, ffn_width=32, heads=2, kv_heads=1, head_dim=16, tied=True)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip

MODELS = {
    "llama_q4_0": Spec("llama", type="Q4_0", **SMALL),
    "llama3_rope_q8_0": Spec("llama", type="Q8_0", rope=LLAMA3, **SMALL),
    "mistral_window_q5_1": Spec("mistral", type="Q5_1", window=12, **SMALL),
    "qwen2_yarn_q4_1": Spec("qwen2", type="Q4_1", rope=YARN, **SMALL),
    "qwen3_bf16": Spec("qwen3", type="BF16", **SMALL),
    "smollm3_q5_0": Spec("smollm3", type="Q5_0", **SMALL),
    "olmo2_q4_0": Spec("olmo2", type="Q4_0", **SMALL),
    "granite_q4_0": Spec("granite", type="Q4_0", **SMALL),
}
FOLDERS = {
    "llama_bf16": Spec("llama", type="BF16", rope=LLAMA3, **SMALL),
    "mistral_f16": Spec("mistral", type="F16", window=12, **SMALL),
    "qwen2_bf16": Spec("qwen2", type="BF16", rope=YARN, **SMALL),
}


# --- vocabularies in GGUF metadata

STRING, ARRAY, U32, I32, F32, BOOL = 8, 9, 4, 5, 6, 7


def packed(type, value):
    if type == STRING:
        return gguf_text(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[type], value)


def key(name, type, value):
    if isinstance(value, list):
        return gguf_text(name) + struct.pack("<IIQ", ARRAY, type, len(value)) + b"".join(packed(type, v) for v in value)
    return gguf_text(name) + struct.pack("<I", type) + packed(type, value)


def metadata_file(path, keys, version=3):
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(keys)) + b"".join(keys))


def byte_level_keys(pre):
    return [
        key("tokenizer.ggml.model", STRING, "gpt2"),
        key("tokenizer.ggml.pre", STRING, pre),
        key("tokenizer.ggml.tokens", STRING, ["a", "b", "ab", "\u0120", "\u0120ab", "<|im_end|>", "1", "[T]"]),
        key("tokenizer.ggml.token_type", I32, [1, 1, 1, 1, 1, 3, 1, 4]),
        key("tokenizer.ggml.merges", STRING, ["a b", "\u0120 ab"]),
        key("tokenizer.ggml.eos_token_id", U32, 5),
        key("tokenizer.ggml.add_bos_token", BOOL, False),
        key("tokenizer.chat_template", STRING, "{{ messages }}"),
    ]


def sentence_piece_keys():
    tokens = ["<unk>", "<s>", "</s>", "<0x20>", "<0xC3>", "\u2581", "a", "b", "ab", "\u2581ab"]
    return [
        key("tokenizer.ggml.model", STRING, "llama"),
        key("tokenizer.ggml.tokens", STRING, tokens),
        key("tokenizer.ggml.scores", F32, [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0]),
        key("tokenizer.ggml.token_type", I32, [2, 3, 3, 6, 6, 1, 1, 1, 1, 1]),
        key("tokenizer.ggml.bos_token_id", U32, 1),
        key("tokenizer.ggml.eos_token_id", U32, 2),
        key("tokenizer.ggml.unknown_token_id", U32, 0),
        key("tokenizer.ggml.add_space_prefix", BOOL, True),
    ]


# --- folders as one file: config.json, the index, the tensors


def write_parts(spec, path, sharded):
    folder = write_folder(spec, path.with_suffix(".work"))
    tensors = (folder / "model.safetensors").read_bytes()
    names = json.loads(tensors[8 : 8 + struct.unpack("<Q", tensors[:8])[0]])
    index = json.dumps({"weight_map": {name: "shard.safetensors" for name in names}}) if sharded else ""
    border = b"\n--\n"
    path.write_bytes(json.dumps(config_of(spec)).encode() + border + index.encode() + border + tensors)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


# --- state dicts


def write_state_dicts(folder):
    torch_file.save(folder / "none", {})
    torch_file.save(folder / "types", {dtype: (dtype, [2, 1], bytes(2 * size))
                                       for dtype, (_, size) in torch_file.STORAGES.items()})
    torch_file.save(folder / "shapes", {str(len(shape)): ("BOOL", shape, bytes(8)) for shape in ([8], [2, 4], [2, 2, 2])})


def main():
    gguf, safetensors, torch = (ROOT / "corpus" / name for name in ("gguf", "safetensors", "torch_file"))
    for folder in (gguf, safetensors, torch):
        folder.mkdir(parents=True, exist_ok=True)
    for name, spec in MODELS.items():
        write_gguf(spec, gguf / name)
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        metadata_file(gguf / f"byte_level_{pre}", byte_level_keys(pre))
    metadata_file(gguf / "sentence_piece", sentence_piece_keys(), version=2)
    for name, spec in FOLDERS.items():
        write_parts(spec, safetensors / name, sharded=False)
    write_parts(FOLDERS["llama_bf16"], safetensors / "sharded", sharded=True)
    write_state_dicts(torch)


if __name__ == "__main__":
    main()
