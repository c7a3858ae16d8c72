"""What the comparisons with other libraries on a GPU share: quire's lines as the peer's problems, turns, the record.

A turn is one run of `quire bench attention --device cuda`, then the same lines by the peer; medians over turns count.
The peer is timed as quire times itself (app/gpu_attention_world.cc): a captured graph of calls over layers of their
own, those of a decode together larger than 600 MB, replayed, by the GPU's clock. Both take random numbers (zeros need
less power, and the clock is higher) and pages in random order, and what a step prepares once for all its layers is
made beforehand. The peer's result is held against plain softmax before its time counts, so that a library whose
arguments have changed is not quoted.

Before  a peer has a `name`; `takes(line)`, whether the line has a counterpart; and `calls(inputs)`, its settings, each
        a function that attends layer i and returns the result. The fastest setting counts.
After   a table on the screen, and with --json a record as bench/README.md describes it. A line without pages
        (`.../contiguous`) is the peer's alone, and stands below quire's lines of the same problem.
Errors  a line that the peer refuses is left out, and said; a wrong result, a missing program, library, PyTorch or GPU
        ends the script with one line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None  # said by parse()

LEAST_CALLS = 8  # in a graph: its start is spread over them
LAYERS_BYTES = 600e6
REPLAYS, TRIAL_REPLAYS = 25, 5
LARGEST_ERROR = 0.02  # of a result's norm; bf16 leaves less than 0.01


@dataclass(frozen=True)
class Line:
    """The problem behind a name of `quire bench attention`. Without pages, keys and values lie in order."""

    kind: str
    batch: int
    tokens: int  # keys of a decode, prompt of a prefill, in each request
    page: int | None
    longest: int = 0  # of the first request, where it differs
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    value_dim: int = 128
    latent: bool = False  # the values are the first elements of the keys
    type: str = "bf16"  # of keys and values

    @property
    def name(self):
        tokens = f"keys={self.tokens}" if self.kind == "decode" else f"tokens={self.tokens}"
        parts = [f"batch={self.batch}", tokens] if self.kind == "decode" else [tokens, f"batch={self.batch}"]
        parts += [f"longest={self.longest}"] if self.longest else []
        parts += [f"page={self.page}"] if self.page else ["contiguous"]
        if (self.heads, self.kv_heads, self.dim, self.value_dim) != (32, 8, 128, 128):
            values = f"v{self.value_dim}" if self.value_dim != self.dim else ""
            parts += [f"heads={self.heads}x{self.kv_heads}x{self.dim}{values}"]
        parts += ["latent"] if self.latent else []
        parts += [f"type={self.type}"] if self.type != "bf16" else []
        return "/".join([self.kind, *parts])

    @property
    def lengths(self):
        return [self.longest or self.tokens] + [self.tokens] * (self.batch - 1)

    @property
    def query_rows(self):
        return self.batch if self.kind == "decode" else sum(self.lengths)

    @property
    def flops(self):
        """Two products for each visible pair of query and key; a causal prefill has half of the square."""
        pairs = sum(n if self.kind == "decode" else n * n / 2 for n in self.lengths)
        return 2 * (self.dim + self.value_dim) * self.heads * pairs

    @property
    def bytes(self):
        element = 1 if self.type.startswith("f8") else 2
        row = self.kv_heads * (self.dim if self.latent else self.dim + self.value_dim) * element
        return sum(self.lengths) * row + self.query_rows * self.heads * (self.dim + self.value_dim) * 2

    @property
    def layers(self):
        """Prefill reads its keys many times over: for it, two layers are as good as many."""
        return 2 if self.kind == "prefill" else max(2, -(-int(LAYERS_BYTES) // self.bytes))


def line_of(name):
    """The problem of a name, or None for those that only quire knows (trees, and whatever has words unknown here)."""
    kind, *parts = name.split("/")
    part = dict((p.split("=", 1) if "=" in p else (p, True)) for p in parts)
    known = {"batch", "longest", "page", "heads", "latent", "type", "keys" if kind == "decode" else "tokens"}
    if kind not in ("decode", "prefill") or not part.keys() <= known:
        return None
    shape, _, value_dim = part.get("heads", "32x8x128").partition("v")
    heads, kv_heads, dim = map(int, shape.split("x"))
    return Line(kind, int(part["batch"]), int(part["keys" if kind == "decode" else "tokens"]), int(part["page"]),
                longest=int(part.get("longest", 0)), heads=heads, kv_heads=kv_heads, dim=dim,
                value_dim=int(value_dim or dim), latent="latent" in part, type=part.get("type", "bf16"))


def uniform(*shape, type="bf16"):
    rows = torch.empty(*shape, dtype=torch.bfloat16, device="cuda").uniform_(-1, 1)
    return rows.to(torch.float8_e4m3fn) if type == "f8e4m3" else rows


def prefix_sums(lengths):
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).int()


class Inputs:
    """A line's tensors.

    q             (query rows, heads, dim)
    out           (query rows, heads, value dim)
    lengths       (batch), int32; page_counts: the same in pages, on the host
    cu_q          (batch + 1), int32: where each request's query rows begin
    table         (batch, most pages), int32: page ids; in ascending order where the line has no pages
    layers        keys and values of each, (pages, page, kv heads, dim); a latent layer's values are part of its keys
    """

    def __init__(self, line):
        self.line, page = line, line.page or 1
        self.scale = line.dim**-0.5
        self.page_counts = [-(-n // page) for n in line.lengths]
        self.lengths = torch.tensor(line.lengths, device="cuda", dtype=torch.int32)
        self.cu_q = prefix_sums([1] * line.batch if line.kind == "decode" else line.lengths)
        self.page_ids = self._page_order()
        self.table = torch.zeros(line.batch, max(self.page_counts), device="cuda", dtype=torch.int32)
        for row, ids in zip(self.table, self.page_ids.split(self.page_counts)):
            row[: len(ids)] = ids
        self.q = uniform(line.query_rows, line.heads, line.dim)
        self.out = torch.full((line.query_rows, line.heads, line.value_dim), float("nan"), device="cuda").bfloat16()
        self.layers = [self._layer(page) for _ in range(line.layers)]

    def _page_order(self):
        pages = sum(self.page_counts)
        order = torch.randperm(pages, device="cuda") if self.line.page else torch.arange(pages, device="cuda")
        return order.int()

    def _layer(self, page):
        line, pages = self.line, sum(self.page_counts)
        keys = uniform(pages, page, line.kv_heads, line.dim, type=line.type)
        if line.latent:
            return keys, keys[..., : line.value_dim]
        return keys, uniform(pages, page, line.kv_heads, line.value_dim, type=line.type)

    def error(self, result, layer):
        """Of the last request's last row, which sees all of its keys, relative to plain softmax."""
        line, length = self.line, self.line.lengths[-1]
        pages = self.table[-1, : self.page_counts[-1]].long()
        keys, values = (rows[pages].flatten(0, 1)[:length].float() for rows in self.layers[layer])
        q = self.q[-1].float().view(line.kv_heads, -1, line.dim)
        weights = torch.einsum("hgd,nhd->hgn", q * self.scale, keys).softmax(-1)
        expected = torch.einsum("hgn,nhd->hgd", weights, values).flatten(0, 1)
        row = result.reshape(-1, line.heads, line.value_dim)[-1].float()
        return ((row - expected).norm() / expected.norm()).item()


class CapturedCalls:
    """A graph of many calls of one setting, whose results are right."""

    def __init__(self, inputs, call):
        layers = len(inputs.layers)
        self.calls, self.graph = max(layers, LEAST_CALLS), torch.cuda.CUDAGraph()
        inputs.out.fill_(float("nan"))
        call(0)  # finds its kernel, takes its memory
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for i in range(self.calls):
                result = call(i % layers)
        self.graph.replay()
        error = inputs.error(result, (self.calls - 1) % layers)
        if not error < LARGEST_ERROR:  # also of a NaN
            raise SystemExit(f"{inputs.line.name}: the peer's result is wrong by {error:.3f} of its norm")

    def us(self, replays):
        """Median microseconds of a call."""
        times = []
        for _ in range(replays):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / self.calls)
        return statistics.median(times)


def fastest_us(peer, line):
    inputs = Inputs(line)
    settings = [CapturedCalls(inputs, call) for call in peer.calls(inputs)]
    return min(settings, key=lambda setting: setting.us(TRIAL_REPLAYS)).us(REPLAYS)


def peer_us(peer, line):
    """None where the peer has no counterpart, or refuses the line."""
    if not peer.takes(line):
        return None
    try:
        return fastest_us(peer, line)
    except RuntimeError as error:
        print(f"{peer.name} refuses {line.name}: {error}", file=sys.stderr)
        return None
    finally:
        torch.cuda.empty_cache()  # quire's turn is next


def quire_report(quire, only):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [quire, "bench", "attention", "--device", "cuda", "--filter", only, "--json", path]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{quire} failed: {done.stderr.strip()}")
        return json.loads(path.read_text())


class Samples:
    """All turns of one line."""

    def __init__(self, line):
        self.line, self.quire, self.peer_us = line, [], []

    def result(self, peer):
        result = dict(self.quire[-1]) if self.quire else self._peers_alone()
        if self.quire:
            us = statistics.median(r["median_us"] for r in self.quire)
            for rate in ("gbps", "tflops"):  # work over time, so work is rate times time
                result[rate] *= result["median_us"] / us
            result["median_us"] = us
        if self.peer_us:
            result |= {"peer": peer.name, "peer_us": statistics.median(self.peer_us)}
        return result

    def _peers_alone(self):
        keys = ("median_us", "limit_us", "gbps", "tflops", "peer", "peer_us")
        return {"name": self.line.name, "device": "cuda", **dict.fromkeys(keys)}


def measure_turn(args, peer, only, samples):
    """One turn of each side; quire's report."""
    report = quire_report(args.quire, only)
    ours = {line: r for r in report["results"] if (line := line_of(r["name"])) is not None}
    for line in with_whole_lines(peer, ours):
        us = peer_us(peer, line)
        if us is None and line not in ours:
            continue
        line_samples = samples.setdefault(line, Samples(line))
        line_samples.quire += [ours[line]] if line in ours else []
        line_samples.peer_us += [us] if us is not None else []
    return report


def with_whole_lines(peer, lines):
    """Those that the peer takes with or without pages, each problem's contiguous form at the end of its pages."""
    ordered = {}
    for line in lines:
        whole = replace(line, page=None)
        if peer.takes(line) or peer.takes(whole):
            ordered[line] = None
        if peer.takes(whole):
            ordered.pop(whole, None)
            ordered[whole] = None
    return list(ordered)


def print_table(samples, results):
    width = max(len(r["name"]) for r in results)
    print(f"{'line':{width}} {'us':>8} {'TFLOP/s':>8} {'peer us':>8} {'TFLOP/s':>8} {'times':>6}")
    for line, r in zip(samples, results):
        both = r["median_us"] and r["peer_us"]
        times = f"{r['peer_us'] / r['median_us']:.2f}" if both else "-"
        print(f"{r['name']:{width}} {cells(line, r['median_us'])} {cells(line, r['peer_us'])} {times:>6}")


def cells(line, us):
    return f"{us:8.2f} {line.flops / us / 1e6:8.1f}" if us else f"{'-':>8} {'-':>8}"


def compare(args, peer):
    """All turns of all groups of lines, then the table and the record."""
    samples = {}
    for only in args.filter:
        for turn in range(args.rounds):
            print(f"{only} round {turn + 1} of {args.rounds}", file=sys.stderr)
            report = measure_turn(args, peer, only, samples)
    if not samples:
        raise SystemExit(f"{peer.name} has no counterpart to the lines with {' or '.join(args.filter)}")
    results = [line.result(peer) for line in samples.values()]
    print(f"{report['machine']['gpu']['name']}, quire {report['commit']}, {peer.name}, PyTorch {torch.__version__}\n")
    print_table(samples, results)
    if args.json:
        filters = "".join(f" --filter {only}" for only in args.filter)
        command = f"bench/{args.script} --rounds {args.rounds}{filters}"
        record = dict(machine=report["machine"], commit=report["commit"], command=command, torch=torch.__version__)
        args.json.write_text(json.dumps({**record, "results": results}, indent=1) + "\n")


def gpu_parser(script, description, groups):
    """The options of all these comparisons; `groups` are the parts of names that are measured when none is given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True, help="the program, built with CUDA")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--filter", action="append", help=f"only lines with this in their names, may be repeated; "
                        f"default: {' '.join(groups)}")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.set_defaults(script=Path(script).name, groups=groups)
    return parser


def parse(parser, libraries=()):
    """The arguments, once all that they name is there and a GPU is, too; `libraries` are options that name files."""
    args = parser.parse_args()
    args.filter = args.filter or args.groups
    for option in ("quire", *libraries):
        if not Path(getattr(args, option)).exists():
            parser.error(f"--{option}: there is no {getattr(args, option)}")
    if args.rounds < 1:
        parser.error("--rounds is at least 1")
    if torch is None:
        raise SystemExit("PyTorch is missing: pip install torch")
    if not torch.cuda.is_available():
        raise SystemExit("this machine has no GPU that PyTorch can use")
    return args


def load_library(path, namespace, functions):
    """Operators that a library adds to PyTorch."""
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise SystemExit(f"{path} does not load into PyTorch {torch.__version__}: {error}")
    operators = getattr(torch.ops, namespace)
    for function in functions:
        if not hasattr(operators, function):
            raise SystemExit(f"{path} has no {namespace}.{function}")
    return operators
