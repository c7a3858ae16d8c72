#!/usr/bin/env python3
"""SGLang's own load client against quire's server, through SGLang's and OpenAI's interfaces.

    python3 bench/sglang_bench_serving.py --client sglang/bench_serving.py --client-python VENV/bin/python --model FILE

The client is the file of that name in SGLang 0.5.2; it wants numpy, requests, aiohttp, tqdm and transformers. It draws
its prompts itself (random ids, and groups that share a system prompt) with a tokenizer folder that is written from the
model's file. It shares the cores with the server, so its figures are lower than those of `quire bench serving`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from comparison_options import ROOT, comparison_parser, machine_and_commit, parse_with_model
from local_server import Server

CONCURRENCY = 16
LOADS = {
    "random-ids": ["--random-input-len", 256, "--random-output-len", 128, "--random-range-ratio", 0.5],
    "generated-shared-prefix": ["--gsp-num-groups", 4, "--gsp-prompts-per-group", 12, "--gsp-system-prompt-len", 800,
                                "--gsp-question-len", 128, "--gsp-output-len", 128],
}  # fmt: skip
BACKENDS = {"sglang": "/generate", "sglang-oai": "/v1/completions", "sglang-oai-chat": "/v1/chat/completions"}
KEPT = ["completed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
        "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "median_e2e_latency_ms"]  # fmt: skip


def run_client(args, server, backend, load, tokenizer):
    """What the client reports at its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        command = [args.client_python, args.client, "--backend", backend, "--base-url", server.url, "--model", "default"]
        command += ["--tokenizer", tokenizer, "--dataset-name", load, *LOADS[load], "--num-prompts", args.prompts]
        command += ["--max-concurrency", CONCURRENCY, "--disable-tqdm", "--output-file", out]
        offline = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HOME=folder)
        done = subprocess.run(list(map(str, command)), env=offline, capture_output=True, text=True)
        if done.returncode != 0 or not out.exists():
            raise RuntimeError(f"the client failed with {backend} and {load}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(out.read_text())


def result_of(args, server, backend, load, tokenizer):
    report = run_client(args, server, backend, load, tokenizer)
    expected = 48 if load == "generated-shared-prefix" else args.prompts
    if report["completed"] != expected:
        raise RuntimeError(f"{report['completed']} of {expected} requests were answered with {backend} and {load}")
    name = f"sglang_bench_serving{BACKENDS[backend]}/{load}/concurrency={CONCURRENCY}"
    return dict(name=name) | {key: report[key] for key in KEPT}


def print_table(results):
    width = max(len(r["name"]) for r in results)
    print(f"{'line':{width}}  {'tok/s':>7}  {'ttft ms':>8}  {'itl ms':>7}  {'p99 itl':>8}")
    for r in results:
        figures = f"{r['output_throughput']:7.1f}  {r['median_ttft_ms']:8.1f}  {r['median_itl_ms']:7.2f}  {r['p99_itl_ms']:8.2f}"
        print(f"{r['name']:{width}}  {figures}")


def parse_args():
    parser = comparison_parser(__doc__)
    parser.add_argument("--client", required=True, help="SGLang's bench_serving.py")
    parser.add_argument("--client-python", default=sys.executable, help="a Python that has what the client imports")
    parser.add_argument("--prompts", type=int, default=64, help="of the random load")
    return parse_with_model(parser)


def main():
    args = parse_args()
    kept = machine_and_commit(args)
    results = []
    with tempfile.TemporaryDirectory() as tokenizer:
        subprocess.run([sys.executable, str(ROOT / "bench/write_tokenizer_folder.py"), args.model, tokenizer], check=True)
        for load in LOADS:
            for backend in BACKENDS:
                if backend == "sglang-oai-chat" and load == "random-ids":
                    continue  # ids that are no text
                command = [args.quire, "serve", "--model", args.model, "--threads", args.threads, "--log-level", "error"]
                command += ["--speculative-algorithm", "NONE"]
                with Server(command) as server:
                    results.append(result_of(args, server, backend, load, tokenizer))
    print_table(results)
    command = f"bench/sglang_bench_serving.py --threads {args.threads} --prompts {args.prompts}"
    path = args.out / f"{args.machine}-sglang-bench-serving.json"
    path.write_text(json.dumps(kept | dict(command=command, model=Path(args.model).name, results=results), indent=2) + "\n")
    print(f"\nrecorded in {path}")


if __name__ == "__main__":
    main()
