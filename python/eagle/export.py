"""Writes a trained head in quire's own file format (docs/speculation.md), and reads it back."""

import json
import struct
from pathlib import Path

import numpy as np
import torch

from .blocks import QUANTISERS, bytes_of, dequantise
from .gguf import Gguf
from .head import Head, HeadShape

OUTSIDE_LAYER = ("fc", "norm", "lm_head")
MLP = ("gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
NUMBERS = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "U8": np.dtype("u1")}
NAMES = {dtype: name for name, dtype in NUMBERS.items()}


def fingerprint(path):
    """FNV-1a of 64 bits over the target's norms."""
    gguf = Gguf(path)
    layers = gguf.keys[f"{gguf.keys['general.architecture']}.block_count"]
    kinds = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    names = [f"blk.{layer}.{kind}.weight" for layer in range(layers) for kind in kinds] + ["output_norm.weight"]
    value = 0xCBF29CE484222325
    for name in names:
        if name in gguf.names():
            for byte in gguf.tensor(name).astype("<f4").tobytes():
                value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def file_name(name):
    """What the file calls the module's parameter `name`."""
    first = name.split(".")[0]
    if first in ATTENTION:
        return f"midlayer.self_attn.{name}"
    if first in MLP:
        return f"midlayer.mlp.{name}"
    return name if first in OUTSIDE_LAYER or first == "fc_norm" else f"midlayer.{name}"


def config_of(shape, target_fingerprint, temperature):
    return dict(
        target_fingerprint=target_fingerprint,
        feature_layers=list(shape.feature_layers),
        alignment="token",
        hidden_size=shape.width,
        intermediate_size=shape.ffn_width,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.eps,
        rope_theta=shape.rope_base,
        vocab_size=shape.vocabulary,
        draft_vocab_size=shape.draft_vocabulary,
        fc_norm=True,
        norm_output=True,
        temperature=temperature,
    )


def shape_of(config):
    return HeadShape(
        width=config["hidden_size"],
        ffn_width=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=config["rms_norm_eps"],
        rope_base=config["rope_theta"],
        vocabulary=config["vocab_size"],
        draft_vocabulary=config["draft_vocab_size"],
        feature_layers=tuple(config["feature_layers"]),
    )


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, []
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        data.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = Path(f"{path}.part")
    part.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    part.replace(path)


def read_safetensors(path):
    raw = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], NUMBERS[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def write_head(path, head, token_ids, target_fingerprint, temperature, layer_type, output_type, notes):
    """Matrices in blocks: `output_type` for the output layer, `layer_type` for the others; norms in float32."""
    tensors, types = {}, {}
    for name, parameter in head.named_parameters():
        array, name = parameter.detach().float().cpu().numpy(), file_name(name)
        if array.ndim == 2:
            types[name] = output_type if name == "lm_head.weight" else layer_type
            array = QUANTISERS[types[name]](array)
        tensors[name] = array
    ids = np.asarray(token_ids, np.int64)
    tensors["d2t"] = (ids - np.arange(len(ids))).astype(np.int32)
    metadata = dict(
        format="quire-eagle-head",
        version="1",
        config=json.dumps(config_of(head.shape, target_fingerprint, temperature)),
        types=json.dumps(types),
        notes=notes,
    )
    write_safetensors(path, tensors, metadata)


def read_head(path):
    """(head with the numbers that the blocks stand for, the draft vocabulary's ids)"""
    tensors, metadata = read_safetensors(path)
    types, shape = json.loads(metadata["types"]), shape_of(json.loads(metadata["config"]))
    head = Head(shape)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            name = file_name(name)
            array = tensors[name]
            if name in types:
                if array.shape[1] != bytes_of(types[name], parameter.shape[1]):
                    raise ValueError(f"{path}: {name} has rows of another length")
                array = dequantise(types[name], array.tobytes())
            parameter.copy_(torch.from_numpy(array.reshape(parameter.shape).copy()))
    ids = tensors["d2t"].astype(np.int64) + np.arange(len(tensors["d2t"]))
    return head, torch.from_numpy(ids)
