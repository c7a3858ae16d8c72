"""`quire inspect model` from the outside: tiny files of both formats, written byte by byte here, and files that lie."""

import json
import os
import pathlib
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUIRE = os.environ.get("QUIRE", str(ROOT / "build" / "cpu" / "app" / "quire"))

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9  # types of GGUF values
TENSOR_F32, TENSOR_Q8_0, TENSOR_IQ2_XXS = 0, 8, 16


def run(*arguments):
    return subprocess.run([QUIRE, "inspect", "model", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def described(path):
    done = run(path, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def refusal(path):
    done = run(path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"quire: {path}")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    return done.stderr


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(keys, tensors, data=b""):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


TOKENS = ["<s>", "b", "c", "d", "e", "f"]
KEYS = [
    key("general.architecture", STRING, text("llama")),
    key("llama.block_count", U32, struct.pack("<I", 2)),
    key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 0.25)),
    key("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
    key("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 6) + b"".join(map(text, TOKENS))),
    key("tokenizer.chat_template", STRING, text("x" * 300)),
]
TENSORS = [tensor("token_embd.weight", [64, 3], TENSOR_Q8_0, 0), tensor("output_norm.weight", [8], TENSOR_F32, 224)]


@pytest.fixture
def gguf_path(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf(KEYS, TENSORS, bytes(256)))
    return path


def test_gguf_json(gguf_path):
    model = described(gguf_path)
    assert model["format"] == "GGUF version 3"
    assert model["files"] == [{"path": str(gguf_path), "bytes": gguf_path.stat().st_size}]
    assert model["facts"] == {"architecture": "llama", "layers": 2, "norm_epsilon": 0.25}
    assert model["metadata"]["tokenizer.ggml.tokens"] == {"count": 6, "first": ["<s>", "b", "c", "d"]}
    assert model["metadata"]["tokenizer.ggml.add_bos_token"] is True
    assert model["metadata"]["tokenizer.chat_template"] == "x" * 300
    assert list(model["metadata"]) == [k[8 : 8 + struct.unpack("<Q", k[:8])[0]].decode() for k in KEYS]
    assert model["tensors"] == [
        {"name": "token_embd.weight", "type": "Q8_0", "shape": [3, 64], "bytes": 204},
        {"name": "output_norm.weight", "type": "F32", "shape": [8], "bytes": 32},
    ]
    assert model["types"] == {
        "F32": {"tensors": 1, "elements": 8, "bytes": 32},
        "Q8_0": {"tensors": 1, "elements": 192, "bytes": 204},
    }
    assert model["total"] == {"tensors": 2, "elements": 200, "bytes": 236}
    assert model["blocks"] == [] and 'key "llama.embedding_length": is missing' in model["not_run"]


def test_gguf_table(gguf_path):
    done = run(gguf_path)
    assert done.returncode == 0 and done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["GGUF", "version", "3,", "200", "parameters"] in lines
    assert ["layers", "2"] in lines
    assert ["norm_epsilon", "0.25"] in lines
    assert ["token_embd.weight", "Q8_0", "3", "x", "64", "204"] in lines
    assert ["output_norm.weight", "F32", "8", "32"] in lines
    assert ["Q8_0", "1", "192", "204", "8.50"] in lines
    assert ["all", "2", "200", "236", "9.44"] in lines
    assert "(300 bytes)" in done.stdout and "x" * 100 not in done.stdout
    assert '[6 of type string: "<s>", "b", "c", "d", ...]' in done.stdout
    assert f'quire does not run it: {gguf_path}: key "llama.embedding_length": is missing\n' in done.stdout


def test_names_that_are_not_text_cannot_disturb_the_terminal(tmp_path):
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf([key(b"\x1b[2J\xff", STRING, text(b"a\nb\xfe"))], []))
    table = run(path)
    assert table.returncode == 0
    assert '"\\x1b[2J\\xff"' in table.stdout and '"a\\nb\\xfe"' in table.stdout
    assert described(path)["metadata"] == {"\x1b[2J\ufffd": "a\nb\ufffd"}


BAD_GGUF = {
    "empty": (b"", "is empty"),
    "not GGUF": (b"PK\3\4" + bytes(100), "is not a GGUF file"),
    "cut off": (gguf(KEYS, TENSORS)[:150], "past the end"),
    "no data": (gguf(KEYS, TENSORS), 'tensor "token_embd.weight" of 204 bytes at offset 0 goes past the end'),
    "keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "claims 9223372036854775808 keys"),
    "type": (gguf([], [tensor("t", [256], TENSOR_IQ2_XXS, 0)], bytes(256)), 'tensor "t": has type IQ2_XXS'),
    "newline": (gguf([key("a\nb", 99, b"\0" * 9)], []), 'key "a\\nb": has type 99'),
}


@pytest.mark.parametrize("name", BAD_GGUF)
def test_bad_gguf(name, tmp_path):
    content, part = BAD_GGUF[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert part in refusal(path)


def test_file_that_is_not_there(tmp_path):
    done = run(tmp_path / "none.gguf")
    assert done.returncode == 2 and done.stdout == ""
    assert f'"{tmp_path}/none.gguf": there is no such file or folder' in done.stderr


def safetensors(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def fact(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "head_dim": None,
    "rope_scaling": {"factor": 8.0, "long": list(range(200))},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_folder_of_one_file(folder):
    header = {"__metadata__": {"format": "pt"}, "b": fact("F32", [3], 12, 24), "a": fact("BF16", [2, 3], 0, 12)}
    (folder / "model.safetensors").write_bytes(safetensors(header, bytes(24)))
    model = described(folder)
    assert model["format"] == "safetensors"
    assert model["facts"] == {"architecture": "llama", "layers": 2, "width": 64}
    assert model["metadata"] == CONFIG
    assert model["tensors"] == [
        {"name": "a", "type": "BF16", "shape": [2, 3], "bytes": 12},
        {"name": "b", "type": "F32", "shape": [3], "bytes": 12},
    ]
    table = run(folder)
    assert table.returncode == 0
    assert ["a", "BF16", "2", "x", "3", "12"] in [line.split() for line in table.stdout.splitlines()]
    assert max(map(len, table.stdout.splitlines())) < 200


RUNNABLE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
}
COMPOSED = "qkv composed | attention attend | attention_out composed | gate_up composed | down composed | head composed"


def test_who_computes_the_blocks(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RUNNABLE))
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": fact("F32", [1], 0, 4)}, bytes(4)))
    model = described(tmp_path)
    assert "not_run" not in model
    assert model["blocks"] == [
        {"first_layer": 0, "last_layer": 1, "rows": rows, "choice": COMPOSED} for rows in (1, 512)
    ]
    table = run(tmp_path).stdout.splitlines()
    assert ["0-1", "512", *COMPOSED.split()] in [line.split() for line in table]


def test_folder_of_shards(folder):
    (folder / "one.safetensors").write_bytes(safetensors({"a": fact("F16", [2], 0, 4)}, bytes(4)))
    (folder / "two.safetensors").write_bytes(safetensors({"b": fact("F16", [2], 0, 4)}, bytes(4)))
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model = described(folder)
    names = ["one.safetensors", "two.safetensors"]
    assert [file["path"] for file in model["files"]] == [str(folder / name) for name in names]
    assert [tensor["name"] for tensor in model["tensors"]] == ["a", "b"]
    assert model["total"] == {"tensors": 2, "elements": 4, "bytes": 8}


BAD_SAFETENSORS = {
    "empty": (b"", "is empty"),
    "length past the end": (struct.pack("<Q", 50) + b"{}", "the header of 50 bytes"),
    "length without end": (struct.pack("<Q", 2**64 - 1) + b"{}", "has a header of 18446744073709551615 bytes"),
    "not JSON": (safetensors(b"{nothing}"), "not JSON"),
    "depth": (safetensors(b'{"a":' + b"[" * 100000), "nested deeper"),
    "type": (safetensors({"a": fact("I8", [4], 0, 4)}, bytes(4)), 'tensor "a": has dtype "I8"'),
    "overlap": (safetensors({"a": fact("F32", [1], 0, 4), "b": fact("F32", [1], 2, 6)}, bytes(6)), "overlap"),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_bad_safetensors(name, folder):
    content, part = BAD_SAFETENSORS[name]
    (folder / "model.safetensors").write_bytes(content)
    assert part in refusal(folder)


def test_folder_without_weights(folder):
    assert "has neither model.safetensors nor" in refusal(folder)


def test_index_that_leads_elsewhere(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    assert "is not a plain name" in refusal(folder)


def test_config_that_is_no_object(folder):
    (folder / "model.safetensors").write_bytes(safetensors({"a": fact("F32", [1], 0, 4)}, bytes(4)))
    (folder / "config.json").write_text("[]")
    assert "config.json: the JSON is not an object" in refusal(folder)
