#!/usr/bin/env python3
"""The tokenizer of a GGUF file as a folder that transformers' AutoTokenizer loads, for clients that count tokens.

    python3 bench/write_tokenizer_folder.py MODEL.gguf FOLDER

Standard library only. Known are the byte-level vocabularies that quire's tests compare with the published ones, and
SentencePiece's.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "end_to_end"))
from gguf_tokenizer import BYTE_LEVEL, metadata, tokenizer_json  # noqa: E402


def kind_of(fields):
    """The name under which tokenizer_json knows the vocabulary."""
    if fields["tokenizer.ggml.model"] == "llama":
        return "llama-spm"
    name = fields.get("tokenizer.ggml.pre", "")
    if name not in BYTE_LEVEL:
        raise SystemExit(f"the vocabulary has the splitting rule {name!r}; known are {', '.join(BYTE_LEVEL)}")
    return name


def published(tokenizer):
    """With the fields that the package `tokenizers` insists on, although they mean nothing when decoding."""
    if tokenizer["decoder"]["type"] == "ByteLevel":
        tokenizer["decoder"] |= {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return tokenizer


def config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    architecture = fields["general.architecture"]
    found = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields[f"{architecture}.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    for name in ("bos", "eos"):
        if (number := fields.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            found[f"{name}_token"] = tokens[number]
    if template := fields.get("tokenizer.chat_template"):
        found["chat_template"] = template
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    fields = metadata(arguments.model)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("tokenizer.json", published(tokenizer_json(kind_of(fields), arguments.model))),
        ("tokenizer_config.json", config(fields)),
    ):
        (arguments.folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
