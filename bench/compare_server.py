#!/usr/bin/env python3
"""quire's server beside llama-server: one machine, one model file, the same threads, the same load.

    python3 bench/compare_server.py --llama-server PROGRAM --model FILE --threads 2

Both sides take turns, a fresh server each, and get the same requests from `quire bench serving`: streaming clients that
each ask again when they have been answered, prompts of token ids of which the first 800 are the same for all (a shorter
prompt has as many of them as fit before its last token). The medians over the rounds are reported. The peer runs with
each of its settings below, and for each figure its best counts.

More is measured on quire alone: the output rate through HTTP beside `quire bench throughput` with the same sequences; the
time between tokens with and without idle connections, with and without a client that sends one long prompt after the
other, and with and without a grammar; and the memory that an idle connection takes.
"""

import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from comparison_options import comparison_parser, parse_with_model
from local_server import Server

CLIENTS, SHARED, LEAST_PROMPT, MOST_PROMPT, NEW_TOKENS = 16, 800, 200, 1500, 128
BATCH_PROMPT = 128  # of the lines that are held against the offline rate, as `quire bench throughput` has it

# What may help the peer. Slots, context and threads follow from the load.
PEER_SETTINGS = {
    "slots": [],
    "unified": ["--kv-unified"],
    "reuse": ["--cache-reuse", "64"],
}

# How many times as good as the peer each line should be at least.
BARS = {"/output": 2.5, "/first_token": 3.0}
OFFLINE_BAR = 0.9
IDLE_BAR_BYTES = 64 * 1024
LONG_PROMPT, LONG_PROMPT_BAR = 8000, 0.5  # without such prompts the time between tokens is at least this part
CONSTRAINED_BAR = 1 / 1.05                # as much without a grammar

# Free enough to go on for ever, so that all requests are of the same length.
SCHEMA = {"type": "array", "minItems": 60, "items": {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False, "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}}}
CONSTRAINTS = {"regex": {"regex": "([a-z]+ )*"}, "json_schema": {"json_schema": json.dumps(SCHEMA)}}


def quire_server(args):
    return Server([args.quire, "serve", "--model", args.model, "--threads", args.threads, "--log-level", "error",
                   "--speculative-algorithm", "NONE"])  # fmt: skip


def llama_server(args, settings):
    context = args.clients * (args.most_prompt + args.new_tokens + 64)
    command = [args.llama_server, "-m", args.model, "-t", args.threads, "-tb", args.threads, "-c", context]
    return Server(command + ["-np", args.clients, "-fa", "on", "-cb", "--no-webui", *settings])


class Load:
    """What `quire bench serving` is asked for."""

    def __init__(self, args, clients, requests, *shape):
        self.args, self.clients, self.requests = args, clients, requests
        self.options = ["--concurrency", clients, "--ignore-eos", "--vocabulary", args.vocabulary,
                        "--output-tokens", args.new_tokens, *shape]  # fmt: skip

    def run(self, server, seed, *more):
        """{line: result}, where a line's name begins after the load's, the load's name, and the whole report."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            self._bench(server, seed, self.requests, "--json", path, *more)
            report = json.loads(path.read_text())
        base = report["results"][0]["name"].removesuffix("/output")
        return {result["name"].removeprefix(base): result for result in report["results"]}, base, report

    def warm_up(self, server):
        """The first requests touch memory for the first time. Their prompts are not those of any round."""
        self._bench(server, 10_000, self.clients)

    def _bench(self, server, seed, requests, *more):
        command = [self.args.quire, "bench", "serving", "--url", server.url, "--seed", seed, "--requests", requests]
        done = subprocess.run([*map(str, command + self.options), *map(str, more)], capture_output=True, text=True)
        if done.returncode != 0 or " 0 of them failed" not in done.stdout:
            raise RuntimeError(f"the load on {server.name} failed:\n{done.stdout}{done.stderr}")


def shared_load(args):
    shape = ["--shared-prefix-tokens", args.shared, "--prompt-tokens", f"{args.least_prompt}:{args.most_prompt}"]
    return Load(args, args.clients, args.requests, *shape)


def batch_load(args, clients, *more):
    """As many requests as clients, all at once, so that they decode together."""
    return Load(args, clients, clients, "--prompt-tokens", BATCH_PROMPT, *more)


# --- the peer


def compare_with_peer(args, turn, samples):
    """One round of both sides."""
    load = shared_load(args)
    with quire_server(args) as server:
        load.warm_up(server)
        samples.quire.append(load.run(server, turn)[0])
    for setting in args.peer_settings:
        with llama_server(args, PEER_SETTINGS[setting]) as server:
            load.warm_up(server)
            samples.peer.setdefault(setting, []).append(load.run(server, turn)[0])


class PeerSamples:
    def __init__(self):
        self.quire = []  # {line: result} of each round
        self.peer = {}   # the same for each setting

    def results(self):
        return [self._result(line) for line in self.quire[0]]

    def _result(self, line):
        result = dict(self.quire[0][line])
        medians = {setting: median_result(rounds, line) for setting, rounds in self.peer.items()}
        result |= median_result(self.quire, line)
        if "tokens_per_s" in result:
            best = max(medians, key=lambda setting: medians[setting]["tokens_per_s"])
            result["peer_tokens_per_s"] = medians[best]["tokens_per_s"]
            result["ratio"] = result["tokens_per_s"] / result["peer_tokens_per_s"]
        else:
            best = min(medians, key=lambda setting: medians[setting]["median_us"])
            result["ratio"] = medians[best]["median_us"] / result["median_us"]
        result |= dict(peer="llama-server", peer_setting=best, peer_us=medians[best]["median_us"])
        if line in BARS:
            result["bar"] = BARS[line]
        return result


def median_result(rounds, line):
    """The median of each figure of the line."""
    keys = [key for key in ("median_us", "tokens_per_s") if key in rounds[0][line]]
    return {key: statistics.median(lines[line][key] for lines in rounds) for key in keys}


# --- quire alone


def offline_rate(args):
    """Output tokens a second of the engine without HTTP, for the same sequences."""
    line = f"throughput/batch={args.clients}/prompt={BATCH_PROMPT}/output={args.new_tokens}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [args.quire, "bench", "throughput", "--model", args.model, "--threads", args.threads, "--repeat", 1]
        command += ["--concurrency", args.clients, "--output-tokens", args.new_tokens, "--filter", line, "--json", path]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        results = {result["name"]: result for result in json.loads(path.read_text())["results"]}
    both = results[line + "/overall"]["tokens_per_s"]  # prompts and output
    return both * args.new_tokens / (BATCH_PROMPT + args.new_tokens)


def compare_with_offline(args):
    """The result, and a report that says on what machine."""
    load, online, offline = batch_load(args, args.clients), [], []
    for turn in range(args.rounds):
        progress(f"offline rate, round {turn + 1} of {args.rounds}")
        offline.append(offline_rate(args))
        with quire_server(args) as server:
            load.warm_up(server)
            lines, base, report = load.run(server, turn)
            online.append(lines)
    result = dict(online[0]["/output"]) | median_result(online, "/output")
    rate = statistics.median(offline)
    result |= dict(name=base + "/output", peer="quire bench throughput", peer_tokens_per_s=rate)
    result |= dict(ratio=result["tokens_per_s"] / rate, bar=OFFLINE_BAR)
    return result, report


def open_idle(server, count):
    """Connections that have had an answer and are kept."""
    connections = []
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/health")
        connection.getresponse().read()
        connections.append(connection)
    return connections


def idle_memory(args, server):
    """Growth of the server's resident memory for each idle connection."""
    before = server.resident_bytes()
    connections = open_idle(server, args.idle_connections)
    time.sleep(1)
    after = server.resident_bytes()
    for connection in connections:
        connection.close()
    value = (after - before) / args.idle_connections
    return dict(name=f"serving/idle={args.idle_connections}/memory", bytes=value, bar_bytes=IDLE_BAR_BYTES)


def compare_with_idle(args):
    """Turns on one server, with idle connections and without."""
    load, alone, beside = batch_load(args, args.clients), [], []
    with quire_server(args) as server:
        load.warm_up(server)
        memory = idle_memory(args, server)
        for turn in range(args.rounds):
            progress(f"idle connections, round {turn + 1} of {args.rounds}")
            alone.append(load.run(server, 2 * turn)[0])
            lines, base, _ = load.run(server, 2 * turn + 1, "--idle-connections", args.idle_connections)
            beside.append(lines)
    lines = ("/inter_token", "/inter_token/p99")
    return [*(beside_alone(base, line, beside, alone, "without idle connections") for line in lines), memory]


def beside_alone(base, line, beside, alone, what):
    """The result of a line with something going on beside the load, and without."""
    result = dict(beside[0][line]) | median_result(beside, line)
    result |= dict(name=base + line, peer=what, peer_us=median_result(alone, line)["median_us"])
    result["ratio"] = result["peer_us"] / result["median_us"]
    result["rounds_us"] = [lines[line]["median_us"] for lines in beside]  # the noise
    result["peer_rounds_us"] = [lines[line]["median_us"] for lines in alone]
    return result


class LongPrompts(contextlib.AbstractContextManager):
    """A client that sends one long prompt after the other, all different."""

    def __init__(self, server, args):
        self.server, self.args = server, args
        self.stop, self.answered = threading.Event(), 0
        self.thread = threading.Thread(target=self._send)
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def _send(self):
        chance = random.Random(time.monotonic_ns())
        while not self.stop.is_set():
            ids = [chance.randrange(self.args.vocabulary) for _ in range(LONG_PROMPT)]
            body = json.dumps(dict(input_ids=ids, sampling_params=dict(max_new_tokens=1)))
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port)) as connection:
                connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            if answer.status != 200:
                raise RuntimeError(f"a long prompt was answered with {answer.status}")
            self.answered += 1


def compare_with_long_prompts(args):
    """Turns on one server, for few clients and for all: a long prompt costs few clients relatively more."""
    results = []
    with quire_server(args) as server:
        for clients in (1, 4, args.clients):
            load = batch_load(args, clients)
            load.warm_up(server)
            alone, beside, answered = [], [], 0
            for turn in range(args.rounds):
                progress(f"long prompts, {clients} clients, round {turn + 1} of {args.rounds}")
                alone.append(load.run(server, 1000 + 2 * turn)[0])
                with LongPrompts(server, args) as prompts:
                    lines, base, _ = load.run(server, 1001 + 2 * turn)
                    beside.append(lines)
                answered += prompts.answered
            result = beside_alone(f"{base}/long_prompt={LONG_PROMPT}", "/inter_token", beside, alone, "without long prompts")
            results.append(result | dict(bar=LONG_PROMPT_BAR, long_prompts=answered))
    return results


def compare_with_constraints(args):
    """Turns on one server, with a grammar and without."""
    results = []
    with quire_server(args) as server:
        free = batch_load(args, args.clients, "--endpoint", "generate")
        free.warm_up(server)
        for name, fields in CONSTRAINTS.items():
            body = json.dumps(dict(sampling_params=fields))
            bound = batch_load(args, args.clients, "--endpoint", "generate", "--extra-request-body", body)
            bound.warm_up(server)
            alone, beside = [], []
            for turn in range(args.rounds):
                progress(f"constrained by {name}, round {turn + 1} of {args.rounds}")
                alone.append(free.run(server, 2000 + 2 * turn)[0])
                lines, base, _ = bound.run(server, 2001 + 2 * turn)
                beside.append(lines)
            result = beside_alone(f"{base}/constrained={name}", "/inter_token", beside, alone, "unconstrained")
            results.append(result | dict(bar=CONSTRAINED_BAR))
    return results


PARTS = {"idle": compare_with_idle, "long-prompts": compare_with_long_prompts, "constraints": compare_with_constraints}


# --- the report


def progress(text):
    print(text, file=sys.stderr)


def shown(rate, microseconds):
    return f"{rate:.1f} tok/s" if rate is not None else f"{microseconds / 1e3:.2f} ms"


def verdict_of(result):
    if "bar_bytes" in result:
        return "met" if result["bytes"] <= result["bar_bytes"] else "missed"
    return ("met" if result["ratio"] >= result["bar"] else "missed") if "bar" in result else ""


def print_table(results):
    width = max(len(r["name"]) for r in results)
    print(f"{'line':{width}}  {'quire':>14}  {'beside':>14}  {'ratio':>6}  {'bar':>5}")
    for r in results:
        if "bytes" in r:
            ours, theirs, ratio, bar = f"{r['bytes'] / 1024:.1f} KiB", "", "", f"{r['bar_bytes'] // 1024} KiB"
        else:
            ours, theirs = shown(r.get("tokens_per_s"), r["median_us"]), shown(r.get("peer_tokens_per_s"), r.get("peer_us"))
            ratio, bar = f"{r['ratio']:.2f}", f"{r['bar']:.3g}" if "bar" in r else "-"
        print(f"{r['name']:{width}}  {ours:>14}  {theirs:>14}  {ratio:>6}  {bar:>5}  {verdict_of(r)}".rstrip())


def parse_args():
    parser = comparison_parser(__doc__)
    parser.add_argument("--llama-server", help="the peer's program; without it quire is measured alone")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--peer-settings", nargs="+", choices=PEER_SETTINGS, default=list(PEER_SETTINGS))
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--requests", type=int, default=4 * CLIENTS, help="of a round with shared prefixes")
    parser.add_argument("--shared", type=int, default=SHARED)
    parser.add_argument("--least-prompt", type=int, default=LEAST_PROMPT)
    parser.add_argument("--most-prompt", type=int, default=MOST_PROMPT)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--vocabulary", type=int, default=32000, help="ids of prompts are below this")
    parser.add_argument("--idle-connections", type=int, default=1000)
    parser.add_argument("--only", choices=PARTS, help="nothing else, recorded in a file of its own")
    return parse_with_model(parser)


def main():
    args = parse_args()
    results, samples = [], PeerSamples()
    if args.llama_server:
        for turn in range(args.rounds):
            progress(f"beside the peer, round {turn + 1} of {args.rounds}")
            compare_with_peer(args, turn, samples)
        results += samples.results()
    if args.only:
        report = machine_report(args)
    else:
        result, report = compare_with_offline(args)
        results.append(result)
    for name, compare in PARTS.items():
        if args.only in (None, name):
            results += compare(args)
    print_table(results)
    record(args, results, report)


def machine_report(args):
    """What a report says of the machine and the program, from the shortest benchmark there is."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [args.quire, "bench", "metadata", "--quick", "--filter", "join", "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())


def record(args, results, report):
    command = f"bench/compare_server.py --threads {args.threads} --rounds {args.rounds} --requests {args.requests}"
    if args.llama_server:
        command += f" --peer-settings {' '.join(args.peer_settings)}"
    kept = dict(machine=report["machine"], commit=report["commit"], command=command, model=Path(args.model).name)
    if args.only:
        command += f" --only {args.only}"
    path = args.out / f"{args.machine}-serving{'-' + args.only if args.only else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept | dict(results=results), indent=2) + "\n")
    print(f"\nrecorded in {path}")


if __name__ == "__main__":
    main()
