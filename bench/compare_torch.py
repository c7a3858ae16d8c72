#!/usr/bin/env python3
"""quire's attention beside PyTorch's scaled_dot_product_attention, on one CPU, in one run.

Both take the same shapes and the same number of threads, and they take turns: a round measures a group of lines with
`quire bench attention`, then the same problems with PyTorch. What is reported is the median over the rounds.
PyTorch has no pages; its keys and values are whole tensors, which is the better case for it.

    python3 bench/compare_torch.py --quire build/cpu/app/quire --threads 2
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from comparison_options import comparison_parser

import torch
import torch.nn.functional as F

GROUPS = [
    "decode/batch=8/keys=1024/",
    "keys=4096/",  # decode, and the tree verification that is held against it
    "decode/batch=1/keys=32768/",
    "prefill/tokens=512/",
    "prefill/tokens=2048/",
    "prefill/tokens=4096/",
]
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LEAST_COLD_BYTES = 300e6


@dataclass(frozen=True)
class Problem:
    """What PyTorch needs to know of a line; pages and instruction sets are not its concern."""

    queries: int
    keys: int
    batch: int
    heads: int
    kv_heads: int
    dim: int
    type: str


def problem_of(name):
    """The problem of a line, or None where PyTorch has no counterpart (trees)."""
    kind, *parts = name.split("/")
    part = dict(p.split("=", 1) for p in parts)
    heads, kv_heads, dim = map(int, part.get("heads", "32x8x128").split("x"))
    rest = dict(batch=int(part["batch"]), heads=heads, kv_heads=kv_heads, dim=dim, type=part.get("type", "bf16"))
    if kind == "decode":
        return Problem(queries=1, keys=int(part["keys"]), **rest)
    if kind == "prefill":
        return Problem(queries=int(part["tokens"]), keys=int(part["tokens"]), **rest)
    return None


def last_level_cache_bytes():
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return 0
    number, unit = re.fullmatch(r"(\d+)([KM]?)", text).groups()
    return int(number) * {"": 1, "K": 1 << 10, "M": 1 << 20}[unit]


class TorchCase:
    """One problem with its tensors. Decode takes another K and V in each call, so that none is found in a cache."""

    def __init__(self, problem):
        self.prefill = problem.queries > 1
        dtype = TYPES[problem.type]
        kv_shape = (problem.batch, problem.kv_heads, problem.keys, problem.dim)
        q_shape = (problem.batch, problem.heads, problem.queries, problem.dim)
        self.q = torch.rand(q_shape).sub(0.5).to(dtype)
        one = torch.rand(kv_shape).sub(0.5).to(dtype)
        self.kv = [(one.clone(), one.clone()) for _ in range(self._copies(one))]
        self.calls = 0

    def _copies(self, one):
        if self.prefill:
            return 1
        wanted = max(LEAST_COLD_BYTES, 2.5 * last_level_cache_bytes())
        return max(2, -(-int(wanted) // (2 * one.numel() * one.element_size())))

    def seconds(self):
        k, v = self.kv[self.calls % len(self.kv)]
        self.calls += 1
        begin = time.perf_counter()
        F.scaled_dot_product_attention(self.q, k, v, is_causal=self.prefill, enable_gqa=True)
        return time.perf_counter() - begin


def torch_us(problem, repeat):
    """Median microseconds of a call; None where this PyTorch refuses the problem."""
    try:
        case = TorchCase(problem)
        case.seconds()  # finds its kernel and touches its memory
        return statistics.median(case.seconds() for _ in range(repeat)) * 1e6
    except RuntimeError as error:
        print(f"torch refuses {problem}: {error}", file=sys.stderr)
        return None


def quire_report(args, group):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [args.quire, "bench", "attention", "--threads", str(args.threads), "--repeat", str(args.repeat)]
        command += ["--filter", group, "--json", str(path)]
        for isa in args.isa:
            command += ["--isa", isa]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


class Samples:
    """All rounds of one line."""

    def __init__(self):
        self.rounds = []  # quire's results
        self.peer_us = []

    def result(self, peer):
        """The line's record: quire's medians over the rounds, and the peer's."""
        result = dict(self.rounds[-1])
        result.pop("note", None)  # says something about one round
        result["median_us"] = statistics.median(r["median_us"] for r in self.rounds)
        result["limit_us"] = statistics.median(r["limit_us"] for r in self.rounds)
        for rate in ("gbps", "tflops"):  # work over time, so work is rate times time
            work = self.rounds[-1][rate] * self.rounds[-1]["median_us"]
            result[rate] = work / result["median_us"]
        if self.peer_us:
            result["peer"], result["peer_us"] = peer, statistics.median(self.peer_us)
        return result


def measure_round(args, group, samples, machines):
    report = quire_report(args, group)
    machines.append(report["machine"])
    known = {}
    for result in report["results"]:
        line = samples.setdefault(result["name"], Samples())
        line.rounds.append(result)
        problem = problem_of(result["name"])
        if problem and problem not in known:
            known[problem] = torch_us(problem, args.repeat)
        if known.get(problem) is not None:
            line.peer_us.append(known[problem])
    return report["commit"]


def median_machine(machines):
    machine = dict(machines[-1])
    machine["read_gbps"] = statistics.median(m["read_gbps"] for m in machines)
    machine["peak_gflops"] = {
        isa: statistics.median(m["peak_gflops"][isa] for m in machines) for isa in machine["peak_gflops"]
    }
    return machine


def note_verifications(results):
    """A tree verification is held against the plain decode of the same batch."""
    us = {r["name"]: r["median_us"] for r in results}
    for result in results:
        decode = re.sub(r"^verify_tree/(batch=\d+)/nodes=\d+", r"decode/\1", result["name"])
        if decode != result["name"] and decode in us:
            result["note"] = f"{result['median_us'] / us[decode]:.2f} x decode of the same batch"


def print_table(results):
    width = max(len(r["name"]) for r in results)
    print(f"{'line':{width}}  {'us':>10}  {'% of limit':>10}  {'torch us':>10}  {'times torch':>11}")
    for r in results:
        peer_us, ratio = "-", "-"
        if r["peer_us"]:
            peer_us, ratio = f"{r['peer_us']:.0f}", f"{r['peer_us'] / r['median_us']:.2f}"
        percent = 100 * r["limit_us"] / r["median_us"]
        line = f"{r['name']:{width}}  {r['median_us']:10.0f}  {percent:10.1f}  {peer_us:>10}  {ratio:>11}"
        print(f"{line}  {r.get('note', '')}".rstrip())


def parse_args():
    parser = comparison_parser(__doc__)
    parser.add_argument("--isa", action="append", default=[], help="as in `quire bench attention`; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--repeat", type=int, default=7, help="samples in a turn")
    parser.add_argument("--filter", default="", help="only groups that contain this: " + ", ".join(GROUPS))
    args = parser.parse_args()
    args.groups = [g for g in GROUPS if args.filter in g]
    if not args.groups:
        parser.error(f"no group contains {args.filter!r}")
    return args


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    peer = "torch {}.{} sdpa".format(*torch.__version__.split(".")[:2])
    samples, machines = {}, []
    for group in args.groups:
        for turn in range(args.rounds):
            print(f"{group} round {turn + 1} of {args.rounds}", file=sys.stderr)
            commit = measure_round(args, group, samples, machines)
    results = [line.result(peer) for line in samples.values()]
    note_verifications(results)
    print_table(results)

    command = f"bench/compare_torch.py --threads {args.threads} --rounds {args.rounds} --repeat {args.repeat}"
    command += f" --filter {args.filter}" if args.filter else ""
    command += "".join(f" --isa {isa}" for isa in args.isa)
    record = dict(machine=median_machine(machines), commit=commit, command=command, results=results)
    path = args.out / f"{args.machine}-attention.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\nrecorded in {path}")


if __name__ == "__main__":
    main()
