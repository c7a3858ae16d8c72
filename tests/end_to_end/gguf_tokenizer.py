"""The vocabulary of a GGUF file as the tokenizer.json that its model was published with. Standard library only."""

import mmap
import struct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def scalar(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        size = self.scalar("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.scalar(SCALARS[kind])
        element, count = self.scalar("I"), self.scalar("Q")
        return [self.value(element) for _ in range(count)]


def metadata(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = Reader(data)
        assert reader.scalar("I") == 0x46554747 and reader.scalar("I") in (2, 3)
        reader.scalar("Q")  # tensors
        return {reader.text(): reader.value(reader.scalar("I")) for _ in range(reader.scalar("Q"))}


def byte_level(*before, use_regex):
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "Sequence", "pretokenizers": [*before, last]}


def words(number):
    pattern = {"Regex": WORDS % number}
    return byte_level({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}, use_regex=False)


BYTE_LEVEL = {
    "gpt-2": byte_level(use_regex=True),
    "smollm": byte_level({"type": "Digits", "individual_digits": True}, use_regex=True),
    "llama-bpe": words(r"\p{N}{1,3}"),
    "qwen2": words(r"\p{N}"),
}

SPM_NORMALIZER = [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]
SPM_DECODER = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


def merges_by_score(tokens, types, scores):
    """Ranked merges in the place of scores: the best tokens first, of one token's ways the longer left part first."""
    ids = {token: number for number, token in enumerate(tokens) if types[number] == NORMAL}
    ways = []
    for token, number in ids.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        ways += [(scores[number], left, right) for left, right in splits if left in ids and right in ids]
    ways.sort(key=lambda way: (way[0], len(way[1]), len(way[2])), reverse=True)
    return [[left, right] for _, left, right in ways]


def added(number, token, kind):
    special = kind in (CONTROL, UNKNOWN)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": number, "content": token, **flags}


def bos_before(token, number):
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {token: {"id": token, "ids": [number], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


def tokenizer_json(name, path):
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata(path).items()}
    tokens, types = fields["tokens"], fields["token_type"]
    model = {"type": "BPE", "vocab": {token: number for number, token in enumerate(tokens)}}
    found = {"version": "1.0", "model": model, "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    kinds = (CONTROL, UNKNOWN, USER_DEFINED)
    found["added_tokens"] = [added(n, t, types[n]) for n, t in enumerate(tokens) if types[n] in kinds]
    if name == "llama-spm":
        model |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        model["merges"] = merges_by_score(tokens, types, fields["scores"])
        found["normalizer"] = {"type": "Sequence", "normalizers": SPM_NORMALIZER}
        found["decoder"] = {"type": "Sequence", "decoders": SPM_DECODER}
    else:
        model |= {"merges": fields["merges"], "ignore_merges": name == "llama-bpe"}
        found["normalizer"] = {"type": "NFC"} if name == "qwen2" else None
        found["pre_tokenizer"], found["decoder"] = BYTE_LEVEL[name], {"type": "ByteLevel"}
    if name in ("llama-bpe", "llama-spm"):
        found["post_processor"] = bos_before(tokens[fields["bos_token_id"]], fields["bos_token_id"])
    return found
