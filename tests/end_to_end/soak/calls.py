"""Random calls of every endpoint, valid ones and others, all from one seed."""

import json
import random
import re

TEXTS = ["a", "Once upon a time", "The capital of France is", "\u00e9\u20ac\U0001f600 \u0000 \ufffd", "x" * 80, " \n\t "]
SYSTEM = "You are a helpful assistant that answers in short sentences. " * 2
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
]
REGEXES = ["[ab]{1,5}", "(yes|no)", "\\d{2,4}"]
EBNF = 'root ::= "a" ("b" | "c")*'
TOOL = {"type": "function", "function": {"name": "clock", "parameters": SCHEMAS[0]}}


def keeps_constraint(path, body, answer):
    """Whether an answer of /generate that ended by itself keeps its constraint; None: there is nothing to tell."""
    params = body.get("sampling_params", {})
    if path != "/generate" or not {"regex", "ebnf", "json_schema"} & params.keys():
        return None
    if {"stop", "stop_token_ids", "ignore_eos"} & params.keys():  # which end it early, or not at all
        return None
    answers = answer if isinstance(answer, list) else [answer]
    ended = [one["text"] for one in answers if one["meta_info"]["finish_reason"]["type"] == "stop"]
    return all(map(keeps(params), ended)) if ended else None


def keeps(params):
    if "json_schema" in params:
        return lambda text: has_form(json.loads(params["json_schema"]), json.loads(text))
    pattern = params.get("regex", "a(b|c)*")
    return lambda text: re.fullmatch(pattern, text) is not None


def has_form(schema, value):
    if schema == SCHEMAS[0]:
        return isinstance(value, dict) and list(value) == ["a"] and isinstance(value["a"], int)
    return isinstance(value, list) and len(value) <= 3 and all(item in ("x", "y") for item in value)


class Calls:
    def __init__(self, seed, context):
        self.chance, self.context = random.Random(seed), context
        self.number = 0

    def maybe(self, probability, **fields):
        return fields if self.chance.random() < probability else {}

    # --- valid

    def text(self):
        if self.chance.random() < 0.5:
            return SYSTEM + self.chance.choice(TEXTS)  # a prefix that others have, too
        return "".join(self.chance.choice(TEXTS) for _ in range(self.chance.randint(1, 3)))

    def ids(self):
        return [self.chance.randrange(256) for _ in range(self.chance.randint(1, 500))]

    def new_tokens(self):
        return self.chance.choice([1, 2, 8, 30, 60, 200])

    def sampling(self):
        chance = self.chance
        return {
            **self.maybe(0.7, temperature=chance.choice([0, 0.7, 1.5])),
            **self.maybe(0.3, top_p=chance.choice([0.1, 0.9, 1.0])),
            **self.maybe(0.2, top_k=chance.choice([1, 5, 40])),
            **self.maybe(0.2, min_p=0.1),
            **self.maybe(0.2, frequency_penalty=0.5, presence_penalty=-0.5),
            **self.maybe(0.2, ignore_eos=True),
            **self.maybe(0.2, stop=chance.choice(["a", ["b", "\n"], ["never said"]])),
            **self.maybe(0.1, stop_token_ids=[chance.randrange(256)]),
        }

    def openai(self):
        return {
            **self.sampling(),
            **self.maybe(0.5, seed=self.chance.randrange(1 << 31)),
            **self.maybe(0.2, n=self.chance.randint(1, 4)),
            **self.maybe(0.1, cache_salt="salt"),
            **self.maybe(0.6, stream=True, **self.maybe(0.5, stream_options={"include_usage": True})),
            **self.maybe(0.1, logit_bias={"97": -100, "98": 5}),
        }

    def completion(self):
        prompt = self.chance.choice([self.text, self.ids, lambda: [self.text(), self.text()]])()
        more = {**self.maybe(0.2, echo=True), **self.maybe(0.2, logprobs=self.chance.randint(0, 5))}
        return "POST", "/v1/completions", {"prompt": prompt, "max_tokens": self.new_tokens(), **self.openai(), **more}

    def chat(self):
        messages = [{"role": "system", "content": SYSTEM}] if self.chance.random() < 0.5 else []
        messages.append({"role": "user", "content": self.text()})
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": self.chance.choice(SCHEMAS[:1])}}
        more = self.chance.choice([
            {}, {}, {}, {"logprobs": True, "top_logprobs": 3}, {"response_format": {"type": "json_object"}},
            {"response_format": schema}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"},
        ])  # fmt: skip
        body = {"messages": messages, "max_tokens": self.new_tokens(), **self.openai(), **more}
        return "POST", "/v1/chat/completions", body

    def generate(self, rid=None):
        params = {"max_new_tokens": self.new_tokens(), **self.sampling()}
        params |= self.chance.choice([{}, {}, {}, {"regex": self.chance.choice(REGEXES)}, {"ebnf": EBNF},
                                      {"json_schema": json.dumps(self.chance.choice(SCHEMAS))}])  # fmt: skip
        many = self.chance.random() < 0.2
        body = {"text": [self.text(), self.text()] if many else self.text()}
        if not many and self.chance.random() < 0.4:
            body = {"input_ids": self.ids()}
        body |= {"sampling_params": params, **self.maybe(0.5, stream=True),
                 **self.maybe(0.2, return_logprob=True, top_logprobs_num=2)}  # fmt: skip
        return "POST", "/generate", body | ({"rid": rid} if rid else {})

    def small(self):
        return self.chance.choice([
            ("GET", "/health", None), ("GET", "/health_generate", None), ("GET", "/metrics", None),
            ("GET", "/get_load", None), ("GET", "/v1/loads", None), ("GET", "/v1/models", None),
            ("GET", "/get_model_info", None), ("GET", "/server_info", None), ("GET", "/", None),
            ("POST", "/flush_cache", None), ("POST", "/tokenize", {"prompt": self.text()}),
            ("POST", "/detokenize", {"tokens": self.ids()}),
            ("POST", "/v1/embeddings", {"input": [self.text(), "b"]}),
        ])  # fmt: skip

    def valid(self):
        return self.chance.choices([self.completion, self.chat, self.generate, self.small], [4, 4, 4, 3])[0]()

    def next_rid(self):
        self.number += 1
        return f"soak-{self.number}-{self.chance.randrange(1 << 30):x}"

    # --- others: answered with a 4xx, whatever else is going on

    def wrong(self):
        bad = self.chance.choice([
            {"prompt": "a", "max_tokens": -2}, {"prompt": "a", "temperature": "hot"}, {"prompt": None},
            {"prompt": "a", "lora_path": "x"}, {"prompt": [-1]}, {"prompt": [1 << 40]}, {"prompt": ["a"] * 500},
            {"prompt": "a", "n": 0}, {"prompt": "a", "n": 10**9}, {"prompt": "a", "logit_bias": {"x": 1}},
            {"prompt": "a", "model": 5}, {"prompt": [0] * (self.context + 5)}, {"prompt": "a", "stop": 5},
        ])  # fmt: skip
        chat = self.chance.choice([
            {"messages": []}, {"messages": "hi"}, {"messages": [{"role": "nobody", "content": "x"}]},
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}},
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
        ])  # fmt: skip
        generate = self.chance.choice([
            {}, {"text": "a", "input_ids": [1]}, {"text": "a", "sampling_params": {"regex": "("}},
            {"text": "a", "sampling_params": {"ebnf": "root ::= missing"}}, {"input_ids": [10**12]},
            {"text": "a", "sampling_params": {"json_schema": "{"}}, {"text": "a", "sampling_params": 5},
        ])  # fmt: skip
        return self.chance.choice([
            ("POST", "/v1/completions", bad), ("POST", "/v1/chat/completions", chat), ("POST", "/generate", generate),
            ("POST", "/v1/completions", b'{"prompt": "a"'), ("POST", "/generate", b"\xff\xfe"),
            ("POST", "/generate", b'{"a":' * 5000), ("POST", "/v1/completions", b'{"prompt":"a","prompt":"b"}'),
            ("GET", "/no/such/path", None), ("DELETE", "/generate", None), ("POST", "/abort_request", {}),
            ("GET", "/v1/models/no-such-model", None), ("POST", "/detokenize", {"tokens": [10**9]}),
        ])  # fmt: skip

    # --- anything: what comes back may be any answer or none, but not a server error

    def mutated(self, data):
        data = bytearray(data)
        for _ in range(self.chance.choice([1, 1, 3, 20])):
            at = self.chance.randrange(len(data))
            kind = self.chance.randrange(3)
            if kind == 0:
                data[at] = self.chance.randrange(256)
            elif kind == 1:
                del data[at : at + self.chance.randint(1, 8)]
            else:
                data[at:at] = self.chance.choice([b"\r\n", b"\0", b"{", b"[[[", b'"', b"-1", b"1e999", b"\\u0000", b"%"])
            if not data:
                return b"\n"
        return bytes(data)

    def garbage(self):
        chance = self.chance
        return chance.choice([
            bytes(chance.randrange(256) for _ in range(chance.randint(1, 400))),
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
            b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n\r\n",
            b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
            b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(20),
            b"\x16\x03\x01\x00\xc8" + bytes(100),
            b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" * 3,
        ])  # fmt: skip
