#!/usr/bin/env python3
"""quire with speculative decoding beside quire without: two servers, the same prompts, in turns.

    python3 bench/compare_speculation.py --model FILE --threads 2 --drafts both --concurrency 1

One server drafts, one does not. --drafts: `ngram`, by a text's own words; `head`, by an EAGLE head alone; `both`, which
is what a server does where nobody asks. The head is the one that comes with the program for the model; --head names
another. Each prompt of bench/texts/prompts.json (40 of five kinds) is answered in pairs, once by each server, while the
other is idle; who is first changes from pair to pair. Both answers must be the same text; on a GPU, which rounds
otherwise where a step has several rows, same_texts says how many were. Prompts are in the prefix caches before, so the
time, by token, is that of decoding, and of HTTP. Servers that were begun answer a prompt of each kind first, which is
not measured: memory that nobody has touched is slow, and what a step costs is not known yet. A kind's speedup is the
geometric mean over its prompts of the median over the pairs; its lower bound is that of a 90 % interval of the mean
logarithm over all pairs. accept_length is the tokens that a verification gave, by kind; ngram_drafts and head_drafts
are how many drafts of each were verified, and ..._came how many of them came true.

Three ways to draw: greedy; greedy with loops cut, each answer ending where a run of 12 tokens comes a second time,
since small models repeat themselves and loops are drafted for nothing; and temperature 0.7. With --concurrency 16 each
pair is 16 answers at once.

A run may be made in pieces: with --minutes M it ends after about so long, with exit code 75, and the same command
goes on where it was, with servers that are begun anew; code 0 says that all is measured. What is
measured so far lies in a file beside the record, which is written when all is there. --ways and --kinds measure some of
it, into the same file.
"""

import collections
import concurrent.futures
import hashlib
import json
import math
import re
import statistics
import sys
import time
import urllib.request
from pathlib import Path

from comparison_options import comparison_parser, machine_and_commit, parse_with_model
from local_server import Server

LOOP = 12  # tokens of a run that comes again
PROMPTS = Path(__file__).parent / "texts/prompts.json"
WAYS = {"greedy": (0, False), "loops_cut": (0, True), "t=0.7": (0.7, False)}  # temperature, whether loops are cut
GOES_ON = 75  # exit code of a run that the same command goes on with


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
    answered = post(server, "/v1/chat/completions", body)
    return answered["choices"][0]["message"]["content"], answered["usage"]["completion_tokens"]


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
    """The texts of the answers, as many at once as asked for, and the time that all of them took, by token."""
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as threads:
        begin = time.perf_counter()
        asked = [
            threads.submit(answer, server, prompt, tokens, temperature, seed=1 + i) for i in range(args.concurrency)
        ]
        texts, tokens_of = zip(*(one.result() for one in asked), strict=True)
        return texts, (time.perf_counter() - begin) / sum(tokens_of)


def warm_up(server, args):
    for prompts in prompts_by_kind().values():
        timed_answers(server, args, prompts[0], args.new_tokens, temperature=0)


def counts(server):
    """Of the drafts so far, by who has made them: as {"NGRAM drafts": 7, ...}."""
    with urllib.request.urlopen(server.url + "/metrics") as response:
        text = response.read().decode()
    series = re.finditer(r'^quire:spec_(\w+)_total{.*drafter="(\w+)".*} (\S+)$', text, re.MULTILINE)
    return collections.Counter({f"{found[2]} {found[1]}": int(float(found[3])) for found in series})


def measure(servers, args, prompt, way):
    """One prompt: how many times as fast each pair was with drafts, as logarithms. servers: without drafts, with."""
    temperature, cut_loops = WAYS[way]
    tokens = args.new_tokens
    for server in servers:
        answer(server, prompt, 1, temperature)
    if cut_loops:
        tokens = tokens_before_a_loop(servers[0], answer(servers[0], prompt, tokens, temperature)[0], tokens)
    before = counts(servers[1])
    ratios, same = [], 0
    for pair in range(args.pairs):
        taken = {}
        for speculative in (False, True) if pair % 2 else (True, False):
            taken[speculative] = timed_answers(servers[speculative], args, prompt, tokens, temperature)
        same += taken[True][0] == taken[False][0]
        if args.device == "cpu" and same <= pair:
            raise RuntimeError(f"the answer to {prompt!r} is another with drafts")
        ratios.append(math.log(taken[False][1] / taken[True][1]))
    return dict(ratios=ratios, same=same, counts=counts(servers[1]) - before)


def result_of(name, prompts):
    """prompts: what was measured of each."""
    ratios = [prompt["ratios"] for prompt in prompts]
    pairs = [ratio for of_prompt in ratios for ratio in of_prompt]
    spread = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0
    total = sum((collections.Counter(prompt["counts"]) for prompt in prompts), collections.Counter())
    verifications = total["NGRAM verifications"] + total["EAGLE3 verifications"]
    correct = total["NGRAM correct_drafts"] + total["EAGLE3 correct_drafts"]
    return dict(
        name=name,
        speedup=math.exp(statistics.mean(map(statistics.median, ratios))),
        lower_bound=math.exp(statistics.mean(pairs) - 1.645 * spread),
        worst_prompt=math.exp(min(map(statistics.median, ratios))),
        accept_length=1 + correct / verifications if verifications else 1,
        ngram_drafts=total["NGRAM drafts"],
        ngram_came=total["NGRAM correct_drafts"],
        head_drafts=total["EAGLE3 drafts"],
        head_came=total["EAGLE3 correct_drafts"],
        prompts=len(prompts),
        pairs=len(pairs),
        same_texts=sum(prompt["same"] for prompt in prompts),
    )


def results_of(measured, args):
    results = []
    for way in WAYS:
        kinds = [kind for kind in prompts_by_kind() if measured.get(way, {}).get(kind)]
        name = f"speculation/batch={args.concurrency}/{way}"
        results += [result_of(f"{name}/{kind}", measured[way][kind]) for kind in kinds]
        if kinds:
            results.append(result_of(f"{name}/all", [prompt for kind in kinds for prompt in measured[way][kind]]))
    return results


def show(result):
    figures = "{speedup:6.2f}x  at least {lower_bound:.2f}x  worst prompt {worst_prompt:.2f}x".format(**result)
    print(f"{result['name']:50}{figures}  {result['accept_length']:.2f} tokens", flush=True)


class Progress:
    """What is measured, by way and kind, in a file; of a run with other options or another program nothing is kept."""

    def __init__(self, path, identity):
        self.path, self.identity = path, identity
        kept = json.loads(path.read_text()) if path.exists() else {}
        self.measured = kept["measured"] if kept.get("identity") == identity else {}

    def of(self, way, kind):
        return self.measured.setdefault(way, {}).setdefault(kind, [])

    def add(self, way, kind, prompt):
        self.of(way, kind).append(prompt)
        self.path.write_text(json.dumps(dict(identity=self.identity, measured=self.measured)))


def draft_options(args):
    options = {
        "ngram": ["--speculative-algorithm", "NGRAM"],
        "head": ["--speculative-algorithm", "EAGLE3", "--disable-speculative-ngram"],
        "both": ["--speculative-algorithm", "EAGLE3"],
    }[args.drafts]
    if args.topk > 1:
        options += ["--speculative-eagle-topk", str(args.topk), "--speculative-num-draft-tokens", str(args.draft_tokens)]
    return [*options, "--speculative-draft-model-path", args.head] if args.head else options


def parse_arguments():
    parser = comparison_parser(__doc__)
    parser.add_argument("--drafts", choices=["ngram", "head", "both"], default="both")
    parser.add_argument("--pairs", type=int, default=9, help="of each prompt")
    parser.add_argument("--new-tokens", type=int, default=256, help="most of an answer")
    parser.add_argument("--concurrency", type=int, default=1, help="answers at once")
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--kinds", nargs="+", choices=prompts_by_kind(), default=list(prompts_by_kind()))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--isa", help="as `quire serve --isa`; default: the best that works here")
    parser.add_argument("--head", help="the file of an EAGLE head, in place of the program's own")
    parser.add_argument("--topk", type=int, default=1, help="branches of the head's drafts; more than 1: trees")
    parser.add_argument("--draft-tokens", type=int, default=16, help="of a tree: tokens that a step verifies")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which this run ends, to be gone on with")
    args = parse_with_model(parser)
    if args.head and args.drafts == "ngram":
        parser.error("--head is for --drafts head and both")
    return args


def identity_of(args):
    """Of what belongs into one record: the options, and the bytes of the program and of a head that was named."""
    files = [path for path in (args.quire, args.head) if path]
    digests = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]
    names = ("drafts", "topk", "draft_tokens", "pairs", "new_tokens", "concurrency", "prompts", "device", "isa")
    names += ("threads", "model")
    return dict(files=digests, **{name: str(vars(args)[name]) for name in names})


def write_record(path, args, measured):
    options = f"--drafts {args.drafts} --threads {args.threads} --pairs {args.pairs} --new-tokens {args.new_tokens}"
    options += f" --prompts {args.prompts} --concurrency {args.concurrency}"
    options += f" --topk {args.topk} --draft-tokens {args.draft_tokens}" if args.topk > 1 else ""
    options += f" --device {args.device}" if args.device != "cpu" else ""
    options += (f" --isa {args.isa}" if args.isa else "") + (" --head HEAD" if args.head else "")
    record = machine_and_commit(args) | dict(command=f"bench/compare_speculation.py {options}")
    if args.isa:
        record["machine"]["isa"] = args.isa
    record |= dict(model=Path(args.model).name, drafts=args.drafts, results=results_of(measured, args))
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


def main():
    args = parse_arguments()
    deadline = time.monotonic() + 60 * args.minutes
    name = f"{args.machine}-speculation-{args.drafts}-batch{args.concurrency}{'-' + args.isa if args.isa else ''}"
    name += f"-topk{args.topk}" if args.topk > 1 else ""
    record = args.out / f"{name}.json"
    progress = Progress(record.with_suffix(".measured"), identity_of(args))
    command = [args.quire, "serve", "--model", args.model, "--threads", args.threads, "--log-level", "error"]
    command += ["--device", args.device, *(["--isa", args.isa] if args.isa else [])]
    command += ["--max-total-tokens", 131072] if args.device == "cuda" else []  # there is room for both servers
    without, with_drafts = [*command, "--speculative-algorithm", "NONE"], [*command, *draft_options(args)]
    with Server(without) as plain, Server(with_drafts) as drafting:
        for server in (plain, drafting):
            warm_up(server, args)
        for way in args.ways:
            for kind in args.kinds:
                for prompt in prompts_by_kind()[kind][len(progress.of(way, kind)) : args.prompts]:
                    if time.monotonic() > deadline:
                        sys.exit(GOES_ON)
                    progress.add(way, kind, measure((plain, drafting), args, prompt, way))
                show(result_of(f"speculation/batch={args.concurrency}/{way}/{kind}", progress.of(way, kind)))
    write_record(record, args, progress.measured)


if __name__ == "__main__":
    main()
