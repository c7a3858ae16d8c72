"""Writes tokenizer_golden.json: what the Python package `tokenizers` makes of the lines of tokenizer_lines.py with five
vocabularies. Each tokenizer is built here from the tokens and merges of a GGUF file and the definition that its model
was published with.

    make_tokenizer_golden.py VOCAB_FOLDER SMOLLM.gguf

VOCAB_FOLDER holds ggml-vocab-{gpt-2,llama-bpe,llama-spm,qwen2}.gguf. Needs the packages tokenizers and gguf.
"""

import json
import pathlib
import sys

import tokenizers
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import tokenizer_lines

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*before, use_regex):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])


def words(number):
    return byte_level(pre_tokenizers.Split(Regex(WORDS % number), "isolated"), use_regex=False)


PRE_TOKENIZERS = {
    "gpt-2": byte_level(use_regex=True),
    "smollm": byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "llama-bpe": words(r"\p{N}{1,3}"),
    "qwen2": words(r"\p{N}"),
}


class Metadata:
    def __init__(self, path):
        self.fields = GGUFReader(path).fields

    def __call__(self, name, otherwise=None):
        field = self.fields.get("tokenizer.ggml." + name)
        return otherwise if field is None else field.contents()


def merges_by_score(tokens, types, scores):
    """The ranked merges that stand for sentencepiece's scores: all ways to make a token of two others, the best tokens
    first, of one token's ways the longer left part first."""
    ids = {token: number for number, token in enumerate(tokens) if types[number] == NORMAL}
    ways = []
    for token, number in ids.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        splits = [(left, right) for left, right in splits if left in ids and right in ids]
        ways += [(scores[number], left, right) for left, right in sorted(splits, key=lambda s: (ids[s[0]], ids[s[1]]))]
    ways.sort(key=lambda way: (way[0], len(way[1]), len(way[2])), reverse=True)
    return [(left, right) for _, left, right in ways]


def sentencepiece_tokenizer(metadata, tokens, types):
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = merges_by_score(tokens, types, metadata("scores"))
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def byte_level_tokenizer(name, metadata, tokens):
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata("merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=name == "llama-bpe"))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build(name, path):
    metadata = Metadata(path)
    tokens, types = metadata("tokens"), metadata("token_type")
    is_bytes = metadata("model") == "gpt2"
    tokenizer = (
        byte_level_tokenizer(name, metadata, tokens) if is_bytes else sentencepiece_tokenizer(metadata, tokens, types)
    )
    special = [t for t, kind in zip(tokens, types) if kind in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == USER_DEFINED])
    if name in ("llama-bpe", "llama-spm"):
        bos = metadata("bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    assert tokenizer.get_vocab_size() == len(tokens)
    return tokenizer


def golden(tokenizer, lines):
    special = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
    texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in special]
    without_special = [tokenizer.decode(ids, skip_special_tokens=True) for ids in special]
    tokenizer.encode_special_tokens = True
    plain = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
    return {
        "ids": sum(map(len, special)),
        "sample": special[:: tokenizer_lines.SAMPLE],
        "special": tokenizer_lines.blocks(special),
        "plain": tokenizer_lines.blocks(plain),
        "decoded": tokenizer_lines.blocks(texts),
        "decoded_without_special": tokenizer_lines.blocks(without_special),
    }


def main():
    folder, smollm = pathlib.Path(sys.argv[1]), sys.argv[2]
    lines = tokenizer_lines.lines()
    paths = {name: folder / f"ggml-vocab-{name}.gguf" for name in ("gpt-2", "llama-bpe", "llama-spm", "qwen2")}
    found = {
        "made_with": f"tokenizers {tokenizers.__version__}",
        "lines": tokenizer_lines.digest(lines),
        "vocabularies": {},
    }
    for name, path in {**paths, "smollm": smollm}.items():
        found["vocabularies"][name] = golden(build(name, path), lines)
        print(name, found["vocabularies"][name]["ids"], "ids")
    out = pathlib.Path(__file__).with_name("tokenizer_golden.json")
    out.write_text(json.dumps(found, separators=(",", ":")).replace('},"', '},\n"') + "\n")


main()
