"""Tiny random models of every family, written as Hugging Face folders and as GGUF files.

Deterministic: the same numbers on every machine. Needs numpy only; both formats are written here, byte by byte, so that
quire's readers are held to the formats and not to a library of ours. A model's folder and file hold the same numbers.

    python tests/golden/tiny_models.py OUT_FOLDER
"""

import dataclasses
import json
import math
import pathlib
import struct
import sys

import numpy as np

VOCABULARY = 320
CONTEXT = 2048
EPSILON = 1e-5
THETA = 10000.0

# Files' numbers of the types, elements and bytes of a block.
GGUF_TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
}  # fmt: skip

# Of a block of random bytes: where the scale lies and what it is for numbers of about one; the same for the minimum.
BLOCK_SCALES = {
    "Q4_0": ((0, 1 / 4.6),), "Q5_0": ((0, 1 / 9.2),), "Q8_0": ((0, 1 / 74),),
    "Q4_1": ((0, 1 / 4.6), (2, -7.5 / 4.6)), "Q5_1": ((0, 1 / 9.2), (2, -15.5 / 9.2)),
    "Q4_K": ((0, 1 / 300), (2, 7.5 / 300)), "Q5_K": ((0, 1 / 600), (2, 15.5 / 600)), "Q6_K": ((208, 1 / 1300),),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Spec:
    family: str
    type: str = "F32"  # of the matrices; "mixed": K-quants by role
    layers: int = 3
    width: int = 64
    ffn_width: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False
    window: int = 0  # tokens that a row sees, itself included; 0: all
    rope: dict | None = None  # as Hugging Face writes it
    seed: int = 1

    @property
    def quantised(self):
        return self.type not in ("F32", "F16", "BF16")


MIXED = {"q": "Q4_K", "k": "Q5_K", "v": "Q6_K", "o": "Q4_K", "gate": "Q5_K", "up": "Q4_K", "down": "Q6_K",
         "embedding": "Q4_K", "output": "Q6_K"}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
GRANITE = {"attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}

MODELS = {
    "llama": Spec("llama"),
    "llama_tied_bf16": Spec("llama", type="BF16", tied=True, head_dim=32, seed=2),
    "llama_f16": Spec("llama", type="F16", head_dim=32, kv_heads=4, seed=3),
    "llama_rope_llama3": Spec("llama", rope=LLAMA3, head_dim=32, seed=4),
    "llama_rope_linear": Spec("llama", rope={"rope_type": "linear", "factor": 2.0}, seed=5),
    "llama_rope_yarn": Spec("llama", rope=YARN, head_dim=32, seed=6),
    "mistral": Spec("mistral", window=12, seed=7),
    "mistral_open": Spec("mistral", type="BF16", kv_heads=1, seed=8),
    "qwen2": Spec("qwen2", tied=True, width=128, head_dim=32, seed=9),
    "qwen3": Spec("qwen3", head_dim=32, seed=10),
    "qwen3_bf16": Spec("qwen3", type="BF16", tied=True, layers=4, width=128, head_dim=32, seed=11),
    "smollm3": Spec("smollm3", layers=5, tied=True, seed=12),
    "olmo2": Spec("olmo2", head_dim=32, seed=19),
    "olmo2_bf16": Spec("olmo2", type="BF16", kv_heads=4, layers=4, seed=20),
    "granite": Spec("granite", seed=21),
    "granite_f16": Spec("granite", type="F16", head_dim=32, seed=22),
    "llama_q4_0": Spec("llama", type="Q4_0", seed=13),
    "llama_q4_1": Spec("llama", type="Q4_1", tied=True, head_dim=32, seed=14),
    "llama_q5_0": Spec("llama", type="Q5_0", seed=15),
    "qwen2_q5_1": Spec("qwen2", type="Q5_1", seed=16),
    "qwen3_q8_0": Spec("qwen3", type="Q8_0", seed=17),
    "olmo2_q8_0": Spec("olmo2", type="Q8_0", seed=23),
    "granite_q4_1": Spec("granite", type="Q4_1", seed=24),
    "llama_k_quants": Spec("llama", type="mixed", width=256, ffn_width=512, heads=8, head_dim=32, seed=18),
}

# The text that goldens are made of: fixed, in the vocabulary, with repeated tokens.
IDS = [(17 * i * i + 29 * i + 11) % VOCABULARY for i in range(48)]


# --- numbers


@dataclasses.dataclass
class Tensor:
    type: str
    shape: tuple  # outermost first
    rows: np.ndarray  # bytes, [outer, bytes of a row]


def to_bf16(numbers):
    bits = numbers.astype("<f4").view("<u4").astype("<u8")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # to nearest, ties to even


def dense(numbers, type):
    numbers = np.atleast_1d(numbers)
    stored = {"F32": lambda: numbers.astype("<f4"), "F16": lambda: numbers.astype("<f2"),
              "BF16": lambda: to_bf16(numbers)}[type]()  # fmt: skip
    outer = numbers.shape[0] if numbers.ndim > 1 else 1
    return Tensor(type, numbers.shape, np.ascontiguousarray(stored).view(np.uint8).reshape(outer, -1))


def blocks(random, type, outputs, inputs, spread):
    _, elements, size = GGUF_TYPES[type]
    count = outputs * inputs // elements
    raw = random.randint(0, 256, (count, size)).astype(np.uint8)
    factor = spread * (0.5 + random.random_sample(count))
    for offset, scale in BLOCK_SCALES[type]:
        raw[:, offset : offset + 2] = (factor * scale).astype("<f2").view(np.uint8).reshape(count, 2)
    return Tensor(type, (outputs, inputs), raw.reshape(outputs, -1))


def tensors_of(spec):
    """Every tensor under its Hugging Face name, rows in Hugging Face's order."""
    random = np.random.RandomState(spec.seed)
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def matrix(role, outputs, inputs, spread=0.1):
        spread *= math.sqrt(64 / spec.width)
        type = MIXED[role] if spec.type == "mixed" else spec.type
        if spec.quantised:
            return blocks(random, type, outputs, inputs, spread)
        return dense((random.random_sample((outputs, inputs)) * 2 - 1) * spread * math.sqrt(3), type)

    def vector(size, around, spread=0.2):
        type = "F32" if spec.quantised else spec.type
        return dense(around + (random.random_sample(size) * 2 - 1) * spread, type)

    # A tied embedding is small, or every token would predict itself.
    tensors = {"model.embed_tokens.weight": matrix("embedding", VOCABULARY, spec.width, 0.1 if spec.tied else 1.0)}
    for layer in range(spec.layers):
        of_layer = {
            "input_layernorm.weight": vector(spec.width, 1),
            # Wide enough that attention looks at few tokens: a wrong angle or mask shows.
            "self_attn.q_proj.weight": matrix("q", queries, spec.width, 0.25),
            "self_attn.k_proj.weight": matrix("k", keys, spec.width, 0.25),
            "self_attn.v_proj.weight": matrix("v", keys, spec.width),
            "self_attn.o_proj.weight": matrix("o", spec.width, queries),
            "post_attention_layernorm.weight": vector(spec.width, 1),
            "mlp.gate_proj.weight": matrix("gate", spec.ffn_width, spec.width),
            "mlp.up_proj.weight": matrix("up", spec.ffn_width, spec.width),
            "mlp.down_proj.weight": matrix("down", spec.width, spec.ffn_width),
        }
        if spec.family == "qwen2":
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                of_layer[f"self_attn.{name}_proj.bias"] = vector(size, 0, 0.5)
        if spec.family == "qwen3":
            for name in ("q", "k"):
                of_layer[f"self_attn.{name}_norm.weight"] = vector(spec.head_dim, 1)
        if spec.family == "olmo2":  # norms after each half, and of all heads together
            del of_layer["input_layernorm.weight"]
            of_layer["post_feedforward_layernorm.weight"] = vector(spec.width, 1)
            of_layer["self_attn.q_norm.weight"] = vector(queries, 1)
            of_layer["self_attn.k_norm.weight"] = vector(keys, 1)
        tensors.update({f"model.layers.{layer}.{name}": tensor for name, tensor in of_layer.items()})
    tensors["model.norm.weight"] = vector(spec.width, 1)
    if not spec.tied:
        tensors["lm_head.weight"] = matrix("output", VOCABULARY, spec.width)
    return tensors


# --- a Hugging Face folder


def config_of(spec):
    config = {
        "model_type": spec.family,
        "architectures": ["SmolLM3ForCausalLM" if spec.family == "smollm3" else spec.family.title() + "ForCausalLM"],
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied,
        "rope_scaling": spec.rope,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if spec.family == "mistral":
        config["sliding_window"] = spec.window or None
    if spec.family == "qwen2":
        del config["head_dim"]  # always width / heads
    if spec.family == "granite":
        config |= GRANITE
    return config


def write_folder(spec, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(spec), indent=2))
    header, offset, tensors = {}, 0, tensors_of(spec)
    for name, tensor in tensors.items():
        end = offset + tensor.rows.size
        header[name] = {"dtype": tensor.type, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(tensor.rows.tobytes() for tensor in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return folder


# --- a GGUF file

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name, family="llama"):
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, last = rest.rpartition(".")
    if family == "olmo2" and stem == "post_attention_layernorm":  # where llama's comes before the feed-forward half
        return f"blk.{layer}.post_attention_norm.{last}"
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{last}"


def with_adjacent_pairs(tensor, heads):
    """From halves (i, i + dim / 2) to neighbours (2 i, 2 i + 1), as converters of these families leave the rows."""
    rows = tensor.rows.reshape(heads, 2, -1, tensor.rows.shape[-1])
    return Tensor(tensor.type, tensor.shape, np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(tensor.rows.shape))


def llama3_factors(spec):
    """What llama3's rule divides each frequency by: long waves by the factor, short ones by nothing, a ramp between."""
    rope = spec.rope
    longest = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    shortest = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for i in range(spec.head_dim // 2):
        wave = 2 * math.pi * THETA ** (2 * i / spec.head_dim)
        kept = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        ramp = 1 / ((1 - kept) / rope["factor"] + kept)
        factors.append(rope["factor"] if wave > longest else 1.0 if wave < shortest else ramp)
    return dense(np.array(factors), "F32")


def gguf_tensors(spec):
    tensors = {}
    for name, tensor in tensors_of(spec).items():
        if spec.family in ("llama", "mistral", "smollm3", "granite"):
            if name.endswith("q_proj.weight"):
                tensor = with_adjacent_pairs(tensor, spec.heads)
            if name.endswith("k_proj.weight"):
                tensor = with_adjacent_pairs(tensor, spec.kv_heads)
        tensors[gguf_name(name, spec.family)] = tensor
    if spec.rope and spec.rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(spec)
    return tensors


def gguf_metadata(spec):
    family = "llama" if spec.family == "mistral" else spec.family
    keys = {
        "block_count": spec.layers,
        "context_length": CONTEXT,
        "embedding_length": spec.width,
        "feed_forward_length": spec.ffn_width,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": THETA,
        "rope.dimension_count": spec.head_dim,
    }
    if spec.family == "granite":
        keys["attention.scale"] = GRANITE["attention_multiplier"]
        keys["embedding_scale"] = GRANITE["embedding_multiplier"]
        keys["residual_scale"] = GRANITE["residual_multiplier"]
        keys["logit_scale"] = GRANITE["logits_scaling"]
    if spec.window:
        keys["attention.sliding_window"] = spec.window
    if spec.rope and spec.rope["rope_type"] in ("linear", "yarn"):
        keys["rope.scaling.type"] = spec.rope["rope_type"]
        keys["rope.scaling.factor"] = spec.rope["factor"]
    if spec.rope and spec.rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = spec.rope["original_max_position_embeddings"]
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in keys.items()}}


def gguf_text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def write_gguf(spec, path, more_keys=()):
    """more_keys: {name: packed value}, such as a vocabulary's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = {name: gguf_value(value) for name, value in gguf_metadata(spec).items()} | dict(more_keys)
    tensors = gguf_tensors(spec)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(gguf_text(name) + value for name, value in keys.items())
    body = b""
    for name, tensor in tensors.items():
        head += gguf_text(name) + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", dim) for dim in reversed(tensor.shape))
        head += struct.pack("<IQ", GGUF_TYPES[tensor.type][0], len(body))
        body += tensor.rows.tobytes()
        body += bytes(-len(body) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


def main():
    out = pathlib.Path(sys.argv[1])
    for name, spec in MODELS.items():
        write_gguf(spec, out / f"{name}.gguf")
        if not spec.quantised:
            write_folder(spec, out / name)
        print(name)


if __name__ == "__main__":
    main()
