#!/usr/bin/env python3
"""quire's causal prefill beside cuDNN's attention, reached through PyTorch, on one GPU, in one run.

Both take random numbers (zeros need less power, and the clock is higher), and both are timed in the same way: a captured
graph of several calls, replayed round after round, of which the median counts. cuDNN has no pages; its keys and values are
whole tensors, with a copy of every KV head for each of its query heads, which is the better case for it.

    python3 bench/compare_cudnn.py --quire build/cuda/app/quire --json cudnn.json
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(512, 16), (2048, 8), (8192, 2), (16384, 1)]  # tokens, batch
HEADS, KV_HEADS, DIM = 32, 8, 128
CALLS, ROUNDS = 8, 25


def random_rows(batch, heads, tokens):
    return (torch.rand(batch, heads, tokens, DIM, device="cuda") * 2 - 1).bfloat16()


def cudnn_seconds(tokens, batch):
    q = random_rows(batch, HEADS, tokens)
    k, v = (random_rows(batch, KV_HEADS, tokens).repeat_interleave(HEADS // KV_HEADS, 1) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        for _ in range(3):
            attend()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                attend()
    graph.replay()
    seconds = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / CALLS)
    return statistics.median(seconds)


def quire_report(quire, tokens, batch):
    """What quire says of the lines of this shape, and of itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        line = f"prefill/tokens={tokens}/batch={batch}/"
        subprocess.run([quire, "bench", "attention", "--device", "cuda", "--filter", line, "--json", path], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True, help="the program")
    parser.add_argument("--json", type=Path, help="where the results go")
    options = parser.parse_args()
    results = []
    for tokens, batch in SHAPES:
        flops = 4 * tokens * tokens / 2 * DIM * HEADS * batch
        report = quire_report(options.quire, tokens, batch)
        rows = [(r["name"], r["median_us"]) for r in report["results"] if "heads=" not in r["name"]]
        rows.append((f"cudnn/tokens={tokens}/batch={batch}", cudnn_seconds(tokens, batch) * 1e6))
        for name, microseconds in rows:
            tflops = flops / microseconds / 1e6
            print(f"{name:48} {microseconds:8.1f} us {tflops:6.1f} TFLOP/s", flush=True)
            results.append({"name": name, "median_us": microseconds, "tflops": tflops})
    if options.json:
        machine = {key: value for key, value in report.items() if key != "results"}
        machine["command"] = "bench/compare_cudnn.py"
        machine["torch"] = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        options.json.write_text(json.dumps({**machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
