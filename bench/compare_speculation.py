#!/usr/bin/env python3
"""quire with speculative decoding beside quire without: two servers, the same prompts, in turns.

    python3 bench/compare_speculation.py --model FILE --threads 2 [--head HEAD]

One server runs with --speculative-algorithm (NGRAM, or with a head EAGLE3), one without: a server with a head also
computes the head's keys and values for requests that do not speculate. Each prompt of bench/texts/prompts.json (40 of
five kinds) is answered in pairs, once by each, while the other is idle. Both answers must be the same text. Prompts are
in the prefix caches before, so the time is that of decoding. A kind's speedup is the geometric mean over its prompts of
the median over the pairs; its lower bound is that of a 90 % interval of the mean logarithm over all pairs.

Three ways to draw: greedy; greedy with loops cut, each answer ending where a run of 12 tokens comes a second time,
since small models repeat themselves and loops are drafted for nothing; and temperature 0.7. With --concurrency 16 each
pair is 16 answers at once.
"""

import concurrent.futures
import json
import math
import statistics
import time
import urllib.request
from pathlib import Path

from comparison_options import comparison_parser, machine_and_commit, parse_with_model
from local_server import Server

LOOP = 12  # tokens of a run that comes again
PROMPTS = Path(__file__).parent / "texts/prompts.json"


def prompts_by_kind():
    held = json.loads(PROMPTS.read_text())

    def whole(prompt):
        for name, text in held["texts"].items():
            prompt = prompt.replace("{" + name + "}", text)
        return prompt

    return {kind: [whole(prompt) for prompt in prompts] for kind, prompts in held["kinds"].items()}


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def answer(server, prompt, tokens, temperature, seed=1):
    message = [{"role": "user", "content": prompt}]
    body = dict(model="default", messages=message, max_tokens=tokens, temperature=temperature, top_p=0.95, seed=seed)
    return post(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def tokens_before_a_loop(server, text, most):
    ids = post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    seen = set()
    for end in range(LOOP, len(ids) + 1):
        run = tuple(ids[end - LOOP : end])
        if run in seen:
            return max(1, end - LOOP)
        seen.add(run)
    return most


def timed_answers(server, args, prompt, tokens, temperature):
    """The answers, as many at once as asked for, and the time that all of them took."""
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as threads:
        begin = time.perf_counter()
        asked = [
            threads.submit(answer, server, prompt, tokens, temperature, seed=1 + i) for i in range(args.concurrency)
        ]
        texts = [one.result() for one in asked]
        return texts, time.perf_counter() - begin


def log_ratios(servers, args, prompt, temperature, cut_loops):
    """How many times as fast each pair was with drafts, as logarithms. servers: without drafts, with them."""
    tokens = args.new_tokens
    for server in servers:
        answer(server, prompt, 1, temperature)
    if cut_loops:
        tokens = tokens_before_a_loop(servers[0], answer(servers[0], prompt, tokens, temperature), tokens)
    ratios = []
    for pair in range(args.pairs):
        taken = {}
        for speculative in (False, True) if pair % 2 else (True, False):
            taken[speculative] = timed_answers(servers[speculative], args, prompt, tokens, temperature)
        if taken[True][0] != taken[False][0]:
            raise RuntimeError(f"the answer to {prompt!r} is another with drafts")
        ratios.append(math.log(taken[False][1] / taken[True][1]))
    return ratios


def result_of(name, prompts):
    """prompts: the logarithms of each prompt's pairs."""
    pairs = [ratio for ratios in prompts for ratio in ratios]
    spread = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0
    return dict(
        name=name,
        speedup=math.exp(statistics.mean(map(statistics.median, prompts))),
        lower_bound=math.exp(statistics.mean(pairs) - 1.645 * spread),
        worst_prompt=math.exp(min(map(statistics.median, prompts))),
        prompts=len(prompts),
        pairs=len(pairs),
    )


def show(result):
    figures = "{speedup:6.2f}x  at least {lower_bound:.2f}x  worst prompt {worst_prompt:.2f}x".format(**result)
    print(f"{result['name']:50}{figures}", flush=True)


def accept_length(server):
    with urllib.request.urlopen(server.url + "/server_info") as response:
        return json.load(response)["internal_states"][0]["avg_spec_accept_length"]


def main():
    parser = comparison_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="of each prompt")
    parser.add_argument("--new-tokens", type=int, default=256, help="most of an answer")
    parser.add_argument("--concurrency", type=int, default=1, help="answers at once")
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--head", help="of an EAGLE head: then the algorithm is EAGLE3")
    args = parse_with_model(parser)
    algorithm = "EAGLE3" if args.head else "NGRAM"
    command = [args.quire, "serve", "--model", args.model, "--threads", args.threads, "--log-level", "error"]
    command += ["--device", "cpu"]
    drafting = [*command, "--speculative-algorithm", algorithm]
    if args.head:
        drafting += ["--speculative-draft-model-path", args.head]
    results = []
    with Server(command) as plain, Server(drafting) as server:
        for way, temperature, cut_loops in (("greedy", 0, False), ("loops_cut", 0, True), ("t=0.7", 0.7, False)):
            every = []
            for kind, prompts in prompts_by_kind().items():
                asked = prompts[: args.prompts]
                of_kind = [log_ratios((plain, server), args, prompt, temperature, cut_loops) for prompt in asked]
                every += of_kind
                results.append(result_of(f"speculation/batch={args.concurrency}/{way}/{kind}", of_kind))
                show(results[-1])
            results.append(result_of(f"speculation/batch={args.concurrency}/{way}/all", every))
            show(results[-1])
        length = accept_length(server)
    path = args.out / f"{args.machine}-speculation-{algorithm.lower()}-batch{args.concurrency}.json"
    options = f"--threads {args.threads} --pairs {args.pairs} --new-tokens {args.new_tokens} --prompts {args.prompts}"
    command = f"bench/compare_speculation.py {options} --concurrency {args.concurrency}{' --head HEAD' if args.head else ''}"
    record = machine_and_commit(args) | dict(command=command, model=Path(args.model).name, algorithm=algorithm)
    path.write_text(json.dumps(record | dict(accept_length=length, results=results), indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
