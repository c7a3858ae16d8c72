"""Questions with one answer each: greedy, of every kind, asked again and again while everything else goes on."""

import asyncio
import json
import random

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22, 333]}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
CHUNK = 512  # a prompt's part in one step, at most


def made(seed, context):
    """(prompt's ids, parameters, body's further fields)"""
    chance = random.Random(seed)
    begun = [chance.randrange(256) for _ in range(300)]
    ids = lambda count: [chance.randrange(256) for _ in range(count)]  # noqa: E731
    logprobs = {"return_logprob": True, "top_logprobs_num": 3}
    return [
        (ids(1), {"max_new_tokens": 40}, logprobs),
        (ids(16), {"max_new_tokens": 1}, logprobs),
        (begun + ids(5), {"max_new_tokens": 30}, logprobs),
        (begun + ids(150), {"max_new_tokens": 30}, logprobs),  # longer than most that others have in common
        (ids(CHUNK - 1), {"max_new_tokens": 8}, logprobs),
        (ids(CHUNK), {"max_new_tokens": 8}, logprobs),
        (ids(CHUNK + 1), {"max_new_tokens": 8}, logprobs),
        (ids(context // 4), {"max_new_tokens": 200}, {}),
        (ids(40), {"max_new_tokens": 100, "frequency_penalty": 0.7, "presence_penalty": 0.3}, logprobs),
        (ids(40), {"max_new_tokens": 60, "repetition_penalty": 1.3}, logprobs),
        (ids(40), {"max_new_tokens": 40, "logit_bias": {"97": -100, "98": 3}}, logprobs),
        (ids(40), {"max_new_tokens": 40, "json_schema": json.dumps(SCHEMA)}, logprobs),
        (ids(40), {"max_new_tokens": 40, "regex": "([a-c]{3} )*", "ignore_eos": True}, {}),
        (ids(40), {"max_new_tokens": 12, "temperature": 0.8, "top_p": 0.9, "sampling_seed": 7}, logprobs),
        (ids(60), {"max_new_tokens": 4}, {**logprobs, "logprob_start_len": 0}),
    ]


def bits(answer):
    """What must be the same: not the times, nor what came from the cache."""
    meta = answer["meta_info"]
    scored = [meta.get(f"{side}_{kind}_logprobs") or [] for side in ("input", "output") for kind in ("token", "top")]
    return json.dumps([answer["text"], answer["output_ids"], meta["completion_tokens"], meta["finish_reason"], scored])


def whole_of(events):
    """The last event of a stream, with the prompt's logprobs, which stand in one of those before."""
    last = events[-1] if events else {}
    for name in ("input_token_logprobs", "input_top_logprobs"):
        for event in events:
            if event.get("meta_info", {}).get(name):
                last["meta_info"][name] = event["meta_info"][name]
    return last


class Questions:
    def __init__(self, client, context, same_bits):
        self.client, self.same_bits = client, same_bits
        self.all, self.answers = made(1, context), []

    def body(self, number):
        ids, params, more = self.all[number]
        asked = {"temperature": 0, "ignore_eos": "json_schema" not in params, **params}
        return {"input_ids": ids, "sampling_params": asked, **more}

    async def learn(self):
        """Each alone, before anybody else comes."""
        self.answers = [await self.answer_to(number) for number in range(len(self.all))]

    async def ask(self, chance):
        """What is wrong with the answer to one of them, or None."""
        number = chance.randrange(len(self.all))
        answer = await self.answer_to(number, chance.random() < 0.5)
        if answer is None:
            return None  # somebody aborted all
        before = self.answers[number]
        if self.same_bits and bits(answer) != bits(before):
            return f"number {number}\n  before: {bits(before)[:1500]}\n  now:    {bits(answer)[:1500]}"
        return self.implausible(number, answer)

    def implausible(self, number, answer):
        """Of an answer whose bits may be others: what every answer has in common."""
        meta, params = answer["meta_info"], self.all[number][1]
        reason = meta["finish_reason"]["type"]
        if reason == "length" and meta["completion_tokens"] != params["max_new_tokens"]:
            return f"number {number} has {meta['completion_tokens']} tokens: {meta}"
        if "json_schema" in params and (reason != "stop" or json.loads(answer["text"])["a"] not in (1, 22, 333)):
            return f"number {number} does not keep its schema: {answer}"
        for (logprob, token, _), top in zip(meta.get("output_token_logprobs", []), meta.get("output_top_logprobs", [])):
            if not logprob <= 0 or any(a[0] < b[0] for a, b in zip(top, top[1:])):
                return f"number {number} has token {token} at {logprob}, and {top}"
        return None

    async def answer_to(self, number, stream=False):
        """None when it was aborted. A full queue is asked again."""
        while True:
            got = await self.client.call("POST", "/generate", {**self.body(number), "stream": stream})
            if got is None:
                return None
            if got.status == 200:
                answer = whole_of(got.events()) if stream else got.json()
                aborted = answer.get("meta_info", {}).get("finish_reason", {}).get("type") == "abort"
                return None if aborted or "error" in answer else answer
            if b"aborted" in got.body:
                return None
            if got.status != 503:
                raise AssertionError(f"question {number}: status {got.status}: {got.body[:300]}")
            await asyncio.sleep(0.05)

    async def miscounted(self, metrics):
        """What the counters say of all questions asked once, by as many clients as do not fill the queue."""
        before = await metrics.read()
        answers = []
        for first in range(0, len(self.all), 5):
            answers += await asyncio.gather(*map(self.answer_to, range(first, min(first + 5, len(self.all)))))
        metas = [answer["meta_info"] for answer in answers]
        expected = {
            "sglang:num_requests_total": len(metas),
            "sglang:num_aborted_requests_total": 0,
            "sglang:e2e_request_latency_seconds_count": len(metas),
            "sglang:time_to_first_token_seconds_count": len(metas),
            "sglang:prompt_tokens_total": sum(meta["prompt_tokens"] for meta in metas),
            "sglang:cached_tokens_total": sum(meta["cached_tokens"] for meta in metas),
            "sglang:generation_tokens_total": sum(meta["completion_tokens"] for meta in metas),
            "sglang:generation_tokens_histogram_sum": sum(meta["completion_tokens"] for meta in metas),
            "sglang:http_responses_total//generate/200": len(metas),
        }
        for _ in range(50):  # an answer may be on its way before it is counted
            after = await metrics.read()
            wrong = {name: (after.get(name, 0) - before.get(name, 0), count) for name, count in expected.items()
                     if after.get(name, 0) - before.get(name, 0) != count}  # fmt: skip
            if not wrong:
                return None
            await asyncio.sleep(0.1)
        return f"(counted, expected) of the last {len(metas)}: {wrong}"
