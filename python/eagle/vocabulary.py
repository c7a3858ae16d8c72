"""Text to ids and back for byte-level BPE vocabularies of GGUF files, and the chat template's ids.

Made for the program's own prompts: letters and digits are told apart by Python's `re`, which agrees with the published
expressions on all common text.
"""

import itertools
import re

import jinja2

CONTROL, USER_DEFINED = 3, 4
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
# What a text is split at before words are told apart.
PRE_TOKENIZERS = {"gpt-2": re.compile(r"(?!)"), "smollm": re.compile(r"(\d)")}


def _byte_letters():
    """The printable letter that stands for each byte."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + i) for i, byte in enumerate(others)}


LETTERS = _byte_letters()
BYTES = {letter: byte for byte, letter in LETTERS.items()}


class Vocabulary:
    def __init__(self, keys):
        kind, pre = keys["tokenizer.ggml.model"], keys.get("tokenizer.ggml.pre", "gpt-2")
        if kind != "gpt2" or pre not in PRE_TOKENIZERS:
            raise ValueError(f"vocabularies of kind {kind}, {pre} are not read here")
        self.tokens = keys["tokenizer.ggml.tokens"]
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(keys["tokenizer.ggml.merges"])}
        types = keys["tokenizer.ggml.token_type"]
        special = [token for token, kind in zip(self.tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)]
        self.special = set(special)
        self._special = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")
        self._first_split = PRE_TOKENIZERS[pre]
        self.end_of_turn = keys["tokenizer.ggml.eos_token_id"]
        self.end_of_text = self.ids.get("<|endoftext|>", self.end_of_turn)  # between raw texts
        self._known = {}  # ids of words: prompts share them
        self.template = keys.get("tokenizer.chat_template")

    def encode(self, text):
        """Ids of a text; the names of special tokens in it stand for these."""
        ids = []
        for part in self._special.split(text) if self.special else [text]:
            if part in self.special:
                ids.append(self.ids[part])
            else:
                words = (word for piece in self._first_split.split(part) for word in WORDS.findall(piece))
                ids += [number for word in words for number in self._word(word)]
        return ids

    def decode(self, ids):
        data = b""
        for token in (self.tokens[number] for number in ids):
            data += token.encode() if token in self.special else bytes(BYTES[letter] for letter in token)
        return data.decode(errors="replace")

    def _word(self, word):
        if word not in self._known:
            self._known[word] = self._merged(word)
        return self._known[word]

    def _merged(self, word):
        parts = [LETTERS[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in itertools.pairwise(parts)]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == len(self.ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [self.ids[part] for part in parts]

    def turn(self):
        """(ids before the user's words, ids between these and the answer), by the model's own chat template."""
        mark = "USER-WORDS"
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        names = {"bos_token": "", "eos_token": self.tokens[self.end_of_turn]}
        text = environment.from_string(self.template).render(
            messages=[{"role": "user", "content": mark}], add_generation_prompt=True, **names
        )
        before, after = text.split(mark)
        return self.encode(before), self.encode(after)
