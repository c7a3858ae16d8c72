#!/usr/bin/env python3
"""A whole model in quire beside llama.cpp: one machine, one run, one GGUF file, the same number of threads.

They take turns: a round measures a group of lines with `quire bench throughput`, then the same with the peer's own tools.
What is reported is the median over the rounds. The peer runs with and without flash attention, and its better result
counts (where one of them is known to lose everywhere, --flash-attention saves its time); its keys and values are f16,
quire's bf16, so both read the same bytes.

    python3 bench/compare_llama.py --llama-bin FOLDER --model FILE --threads 2

FOLDER holds llama-bench (prefill, decode), llama-batched-bench (sequences together) and llama-server (latencies, over
loopback HTTP; the time of an empty request is taken off, since quire's latencies are those of its engine).
"""

import contextlib
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from comparison_options import comparison_parser, parse_with_model
from local_server import Server

BATCH, BATCH_PROMPT, NEW_TOKENS = 16, 128, 128
SHARED, SHARED_PROMPT, LONG_PROMPT = 1500, 1520, 1500
VOCABULARY = 32000  # ids below this are in every vocabulary that the comparison meets

BATCH_LINE = f"throughput/batch={BATCH}/prompt={BATCH_PROMPT}/output={NEW_TOKENS}"
SHARER_LINE = f"throughput/first_token/shared={SHARED}/of={SHARED_PROMPT}/other="
GAP_LINE = f"throughput/gap/prompt={LONG_PROMPT}"

# How many times as fast as the peer each line should be at least.
BARS = {
    "throughput/prefill/tokens=512": 2.0,
    "throughput/prefill/tokens=2048": 3.0,
    "throughput/prefill/tokens=8000": 4.0,
    "throughput/decode/depth=0": 1.0,
    "throughput/decode/depth=1024": 1.8,
    "throughput/decode/depth=4096": 2.3,
    BATCH_LINE + "/decode": 2.0,
    BATCH_LINE + "/overall": 2.0,
    SHARER_LINE + "decoding": 50.0,
    SHARER_LINE + "finished": 3.0,
    GAP_LINE: 5.0,
}


class Peer:
    """The peer's tools. Each measurement gives {line: value}, tokens a second or, for latencies, seconds."""

    def __init__(self, folder, model, threads, flash_attention):
        self.folder, self.model, self.threads, self.flash_attention = folder, model, threads, flash_attention

    def tool(self, name, *arguments):
        command = [str(self.folder / name), "-m", self.model, "-t", str(self.threads), *map(str, arguments)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout

    def bench(self, *arguments):
        """The best rate of one llama-bench test over the settings of flash attention."""
        fixed = ("-r", 1, "-ctk", "f16", "-ctv", "f16", "-fa", ",".join(self.flash_attention), "-o", "json")
        return max(run["avg_ts"] for run in json.loads(self.tool("llama-bench", *arguments, *fixed)))

    def prefill(self, tokens):
        return {f"throughput/prefill/tokens={tokens}": self.bench("-p", tokens, "-n", 0)}

    def decode(self, depth):
        return {f"throughput/decode/depth={depth}": self.bench("-p", 0, "-n", NEW_TOKENS, "-d", depth)}

    def batch(self):
        size = ("-c", BATCH * (BATCH_PROMPT + NEW_TOKENS), "-npp", BATCH_PROMPT, "-ntg", NEW_TOKENS, "-npl", BATCH)
        runs = []
        for setting in self.flash_attention:
            out = self.tool("llama-batched-bench", *size, "-fa", setting, "--output-format", "jsonl")
            runs += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return {
            BATCH_LINE + "/decode": max(run["speed_tg"] for run in runs),
            BATCH_LINE + "/overall": max(run["speed"] for run in runs),
        }

    def latencies(self):
        best = {}
        for setting in self.flash_attention:
            with LlamaServer(self, setting) as server:
                for line, seconds in server.latencies().items():
                    best[line] = min(seconds, best.get(line, seconds))
        return best


class LlamaServer(Server):
    """The peer's server, and the latencies of its requests."""

    def __init__(self, peer, flash_attention):
        self.random = random.Random(1)
        command = [peer.folder / "llama-server", "-m", peer.model, "-t", peer.threads, "-c", 16384]
        super().__init__([*command, "-fa", flash_attention])

    def empty_request_seconds(self):
        def once():
            begin = time.perf_counter()
            self.health()
            return time.perf_counter() - begin

        return statistics.median(once() for _ in range(9))

    def ids(self, count):
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def latencies(self):
        overhead = self.empty_request_seconds()
        prefix = self.ids(SHARED)
        rest = SHARED_PROMPT - SHARED
        Client(self, self.ids(64), 8).finish()  # the first request pays for memory
        with Client(self, prefix + self.ids(rest), 1024) as other:
            other.wait_for(16)
            while_decoding = Client(self, prefix + self.ids(rest), 1).finish().first_seconds()
        prefix = self.ids(SHARED)
        Client(self, prefix + self.ids(rest), 16).finish()
        after_finish = Client(self, prefix + self.ids(rest), 1).finish().first_seconds()
        with Client(self, self.ids(BATCH_PROMPT), 1024) as running:
            running.wait_for(16)
            Client(self, self.ids(LONG_PROMPT), 1).finish()
            running.wait_for(len(running.times) + 1)
            gap = running.largest_gap(16)
        return {
            SHARER_LINE + "decoding": while_decoding - overhead,
            SHARER_LINE + "finished": after_finish - overhead,
            GAP_LINE: gap,
        }


class Client(contextlib.AbstractContextManager):
    """One streamed completion, with the times of its tokens. Leaving it hangs up, which ends the request."""

    def __init__(self, server, prompt, new_tokens):
        body = dict(prompt=prompt, n_predict=new_tokens, stream=True, cache_prompt=True, temperature=0, ignore_eos=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self.times = []
        self.changed = threading.Condition()
        self.ended = False
        self.asked = time.perf_counter()
        self.connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.connection.close()

    def _read(self):
        try:
            for line in self.connection.getresponse():
                if line.startswith(b"data: "):
                    self._note(json.loads(line[6:]))
        except (OSError, ValueError, http.client.HTTPException):
            pass  # hung up
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _note(self, event):
        with self.changed:
            if not event.get("stop"):
                self.times.append(time.perf_counter())
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            self.changed.wait_for(lambda: len(self.times) >= count or self.ended)
            if len(self.times) < count:
                raise RuntimeError("llama-server ended a request too early")

    def finish(self):
        self.thread.join()
        self.connection.close()
        return self

    def first_seconds(self):
        return self.times[0] - self.asked

    def largest_gap(self, first):
        return max(b - a for a, b in zip(self.times[first - 1 :], self.times[first:]))


def quire_report(args, group):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [args.quire, "bench", "throughput", "--model", args.model, "--threads", str(args.threads)]
        command += ["--isa", args.isa] if args.isa else []
        command += ["--repeat", "1", "--filter", group, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


class Samples:
    """All rounds of one line."""

    def __init__(self):
        self.rounds = []  # quire's results
        self.peer = []    # tokens a second, or seconds

    def result(self, peer):
        result = dict(self.rounds[-1])
        for key in ("median_us", "limit_us", "gbps", "tokens_per_s"):
            if result.get(key) is not None:
                result[key] = statistics.median(r[key] for r in self.rounds)
        if self.peer:
            self._add_peer(result, peer)
        return result

    def _add_peer(self, result, peer):
        value = statistics.median(self.peer)
        result["peer"] = peer
        if "tokens_per_s" in result:
            result["peer_tokens_per_s"] = value
            result["ratio"] = result["tokens_per_s"] / value
            result["peer_us"] = result["median_us"] * result["ratio"]
        else:
            result["peer_us"] = value * 1e6
            result["ratio"] = result["peer_us"] / result["median_us"]
        result["bar"] = BARS[result["name"]]


def groups_of(peer):
    groups = {f"prefill/tokens={tokens}": lambda t=tokens: peer.prefill(t) for tokens in (512, 2048, 8000)}
    groups |= {f"decode/depth={depth}": lambda d=depth: peer.decode(d) for depth in (0, 1024, 4096)}
    groups |= {f"batch={BATCH}": peer.batch, "first_token,gap": peer.latencies}
    return groups


def measure_round(args, group, peer_measure, samples, machines):
    for part in group.split(","):
        report = quire_report(args, part)
        machines.append(report["machine"])
        for result in report["results"]:
            samples.setdefault(result["name"], Samples()).rounds.append(result)
    for line, value in peer_measure().items():
        samples[line].peer.append(value)
    return report["commit"]


def shown(result, key_rate, key_us):
    if result.get(key_rate) is not None:
        return f"{result[key_rate]:.1f} tok/s"
    return f"{result[key_us] / 1e3:.2f} ms" if result.get(key_us) is not None else "-"


def print_table(results):
    width = max(len(r["name"]) for r in results)
    print(f"{'line':{width}}  {'quire':>15}  {'llama.cpp':>15}  {'ratio':>7}  {'bar':>5}  {'% of limit':>10}")
    for r in results:
        ratio = f"{r['ratio']:.2f}" if "ratio" in r else "-"
        bar = f"{r['bar']:g}" if "bar" in r else "-"
        verdict = "" if "ratio" not in r else "met" if r["ratio"] >= r["bar"] else "missed"
        limit = f"{100 * r['limit_us'] / r['median_us']:.1f}" if r["limit_us"] else "-"
        ours, theirs = shown(r, "tokens_per_s", "median_us"), shown(r, "peer_tokens_per_s", "peer_us")
        print(f"{r['name']:{width}}  {ours:>15}  {theirs:>15}  {ratio:>7}  {bar:>5}  {limit:>10}  {verdict}".rstrip())


def parse_args():
    parser = comparison_parser(__doc__)
    parser.add_argument("--llama-bin", type=Path, required=True, help="folder of the peer's tools")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--flash-attention", nargs="+", choices=("on", "off"), default=["on", "off"],
                        help="settings of the peer to try")
    parser.add_argument("--isa", help="quire's instruction set; default: the best that works here")
    parser.add_argument("--filter", nargs="+", default=[""], help="only groups whose name contains one of these")
    parser.add_argument("--bars", nargs="+", default=[], metavar="LINE=RATIO", help="other ratios to aim at")
    return parse_with_model(parser)


def main():
    args = parse_args()
    peer = Peer(args.llama_bin, args.model, args.threads, args.flash_attention)
    groups = {g: measure for g, measure in groups_of(peer).items() if any(part in g for part in args.filter)}
    if not groups:
        sys.exit(f"no group contains any of {args.filter}")
    BARS.update((line, float(ratio)) for line, _, ratio in (bar.rpartition("=") for bar in args.bars))
    samples, machines = {}, []
    for group, measure in groups.items():
        for turn in range(args.rounds):
            print(f"{group} round {turn + 1} of {args.rounds}", file=sys.stderr)
            commit = measure_round(args, group, measure, samples, machines)
    results = [line.result("llama.cpp") for line in samples.values()]
    print_table(results)

    machine = dict(machines[-1], read_gbps=statistics.median(m["read_gbps"] for m in machines))
    command = f"bench/compare_llama.py --threads {args.threads} --rounds {args.rounds}"
    command += f" --flash-attention {' '.join(args.flash_attention)}"
    command += f" --isa {args.isa}" if args.isa else ""
    command += f" --filter {' '.join(args.filter)}" if args.filter != [""] else ""
    record = dict(machine=machine, commit=commit, command=command, model=Path(args.model).name, results=results)
    path = args.out / f"{args.machine}-throughput.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\nrecorded in {path}")


if __name__ == "__main__":
    main()
