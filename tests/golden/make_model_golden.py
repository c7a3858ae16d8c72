"""Makes tiny_logits.json and smollm2_logits.json: what Hugging Face's transformers computes, in float32 on the CPU.

Weights of quantised files are first turned into float32 by the gguf package. Of these models there are two goldens: one
with exact activations, from which quire's difference is what 8-bit activations cost, and one with the inputs of every
product rounded as quire rounds them (blocks of 32, scale = largest magnitude / 127), which quire must meet closely.

Needs torch, transformers, gguf and numpy, which nothing else here does; the output is committed.

    python tests/golden/make_model_golden.py SMOLLM2.gguf
"""

import json
import pathlib
import re
import sys
import tempfile

import gguf
import numpy as np
import tiny_models
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

HERE = pathlib.Path(__file__).resolve().parent
TINY_POSITIONS = [5, 17, 33, 47]
TINY_SHARE = 4  # of the logits, every fourth is kept
TEXT = (
    "A quire is a small stack of folded sheets. Printers used to gather such quires, sew them through the fold and "
    "bind them into a book, so a long text never had to lie on one long strip of paper. The keys and values of a "
    "language model can be kept in the same way: in pages of equal size, which are handed out as a text grows and "
    "given back when it ends. Nothing has to be moved, and two texts that begin alike may share their first pages.\n\n"
    "def pages_for(tokens, size=16):\n    return (tokens + size - 1) // size\n"
)


def numbers(tensor):
    """The float32 numbers of a tiny model's tensor, in its shape."""
    type = gguf.GGMLQuantizationType[tensor.type]
    raw = tensor.rows if len(tensor.shape) > 1 else tensor.rows.reshape(-1)
    if tensor.type in ("F32", "F16"):
        found = raw.reshape(-1).view({"F32": "<f4", "F16": "<f2"}[tensor.type]).astype(np.float32)
    else:
        found = gguf.quants.dequantize(raw, type)
    return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32).reshape(tensor.shape))


def loaded(config, weights):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"} and (not missing or config.tie_word_embeddings), missing
    model.tie_weights()
    return model.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def rounded_to_8_bits(_, inputs):
    blocks = inputs[0].reshape(*inputs[0].shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return (torch.where(scale > 0, torch.round(blocks / scale) * scale, 0.0).reshape(inputs[0].shape),)


def with_8_bit_activations(model):
    """As quire rounds them: past the last layer's attention rows have 16 bits, which are as good as exact here, and of logits those
    that are compared."""
    last = model.config.num_hidden_layers - 1
    fine = re.compile(rf"lm_head|model\.layers\.{last}\.(self_attn\.o_proj|mlp\..*)")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not fine.fullmatch(name):
            module.register_forward_pre_hook(rounded_to_8_bits)
    return model


def config_for(spec):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(tiny_models.config_of(spec)))
        return AutoConfig.from_pretrained(folder)


def tiny_golden(spec):
    model = loaded(config_for(spec), {name: numbers(t) for name, t in tiny_models.tensors_of(spec).items()})
    golden = tiny_sample(logits_of(model, tiny_models.IDS))
    if spec.quantised:
        golden["with_8_bit_activations"] = tiny_sample(logits_of(with_8_bit_activations(model), tiny_models.IDS))
    return golden


def tiny_sample(logits):
    return {
        "argmax": logits.argmax(-1).tolist(),
        "logits": {str(p): [round(float(x), 5) for x in logits[p][::TINY_SHARE]] for p in TINY_POSITIONS},
    }


# --- the default model


def halves(weight, heads):
    """From neighbours (2 i, 2 i + 1) back to halves (i, i + dim / 2)."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def smollm2_config(reader):
    def field(name):
        return reader.get_field(f"llama.{name}").contents()

    return LlamaConfig(
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True,
    )


def smollm2_weights(reader, config):
    names = {tiny_models.gguf_name(n): n for n in smollm2_names(config.num_hidden_layers)}
    weights = {}
    for tensor in reader.tensors:
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            found = halves(found, config.num_attention_heads)
        if tensor.name.endswith("attn_k.weight"):
            found = halves(found, config.num_key_value_heads)
        weights[names[tensor.name]] = torch.tensor(found, dtype=torch.float32)
    return weights


def smollm2_names(layers):
    spec = tiny_models.Spec("llama", layers=layers, tied=True)
    return tiny_models.tensors_of(spec).keys()


def smollm2_float32(path):
    reader = gguf.GGUFReader(path)
    config = smollm2_config(reader)
    return loaded(config, smollm2_weights(reader, config))


def smollm2_golden(path):
    ids = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)(TEXT)["input_ids"]
    model = smollm2_float32(path)
    exact = sample(logits_of(model, ids))
    rounded = sample(logits_of(with_8_bit_activations(model), ids))
    return {"text": TEXT, "ids": ids, **exact, "with_8_bit_activations": rounded}


def sample(logits):
    top = {}
    for position in range(3, len(logits), 12):
        best = np.argsort(-logits[position], kind="stable")[:10]
        top[str(position)] = [[int(i), round(float(logits[position][i]), 4)] for i in best]
    return {"argmax": logits.argmax(-1).tolist(), "top": top}


def main():
    torch.manual_seed(0)
    tiny = {name: tiny_golden(spec) for name, spec in tiny_models.MODELS.items()}
    write("tiny_logits.json", {"ids": tiny_models.IDS, "models": tiny})
    write("smollm2_logits.json", smollm2_golden(pathlib.Path(sys.argv[1])))


def write(name, golden):
    lines = json.dumps(golden, separators=(",", ":")).replace('},"', '},\n"').replace(',"logits"', ',\n"logits"')
    (HERE / name).write_text(lines + "\n")


if __name__ == "__main__":
    main()
