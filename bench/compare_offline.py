#!/usr/bin/env python3
"""What serving costs on a GPU: tokens through HTTP beside the same work through the engine alone.

    python3 bench/compare_offline.py --quire build/cuda/app/quire --json bench/results/h200-server.json

A batch of streaming clients, each with one prompt and one answer, all begun at once: `quire bench serving` against a
`quire serve` of this machine. Beside it `quire bench throughput` with as many sequences of the same lengths. Both
clocks run from the first request to the last token, prompts included; neither finds a prompt in the cache. Over HTTP
that is also parsing, tokens to text, events and sockets, and the client itself, one thread.

`/inter_token` is the same for decoding alone: the time between two events of a client beside a step of the engine with
all sequences in it.

The model is a shape without weights (--load-format dummy), by default that of Llama 3.1 8B. Sides take turns; medians.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from local_server import Server

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
BAR = 0.95


def run(command):
    """The report that the command writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        done = subprocess.run([*map(str, command), "--json", path], capture_output=True, text=True)
        if done.returncode != 0 or "of them failed" in done.stdout and " 0 of them failed" not in done.stdout:
            raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
        return json.loads(path.read_text())


class Sides:
    def __init__(self, args, model):
        self.args = args
        self.session = ["--model", model, "--load-format", "dummy", "--device", args.device]
        self.vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]

    def offline(self):
        """(output tokens a second, seconds of a step that decodes), one for each round"""
        args = self.args
        line = f"throughput/batch={args.clients}/prompt={args.prompt}/output={args.output}"
        report = run([args.quire, "bench", "throughput", *self.session, "--concurrency", args.clients,
                      "--batch-prompt-tokens", args.prompt, "--output-tokens", args.output, "--repeat", 1,
                      "--filter", line])  # fmt: skip
        lines = {result["name"]: result for result in report["results"]}
        rate = lines[line + "/overall"]["tokens_per_s"] * args.output / (args.prompt + args.output)
        return report, rate, lines[line + "/decode"]["median_us"] * args.clients * 1e-6

    def online(self, server, seed, requests):
        args = self.args
        report = run([args.quire, "bench", "serving", "--url", server.url, "--concurrency", args.clients,
                      "--seed", seed, "--requests", requests, "--prompt-tokens", args.prompt, "--output-tokens", args.output,
                      "--ignore-eos", "--vocabulary", self.vocabulary, "--endpoint", args.endpoint])  # fmt: skip
        lines = {result["name"].partition(f"/output={args.output}")[2]: result for result in report["results"]}
        output = next(result for name, result in lines.items() if name.endswith("/output"))
        gap = next(result for name, result in lines.items() if name.endswith("/inter_token"))
        return report, output["tokens_per_s"], gap["median_us"] * 1e-6

    def server(self):
        tokens = self.args.clients * (self.args.prompt + self.args.output + 64)
        return Server([self.args.quire, "serve", *self.session, "--max-running-requests", self.args.clients,
                       "--max-total-tokens", tokens, "--log-level", "error",
                       "--speculative-algorithm", "NONE"])  # fmt: skip


def measure(args, model):
    sides = Sides(args, model)
    offline, online = [], []
    with sides.server() as server:
        sides.online(server, 10_000, args.clients)  # the first requests touch memory for the first time
        for turn in range(args.rounds):
            online.append(sides.online(server, turn, args.clients))
        loop = [sides.online(server, 100 + turn, 4 * args.clients) for turn in range(args.rounds)]
    for _ in range(args.rounds):
        offline.append(sides.offline())
    return offline, online, loop


def results_of(args, offline, online, loop):
    def median(samples, at):
        return statistics.median(sample[at] for sample in samples)

    base = f"server/clients={args.clients}/prompt={args.prompt}/output={args.output}"
    rate, step = median(offline, 1), median(offline, 2)
    results = []
    for name, samples in ((base + "/output", online), (base + "/output/four_each", loop)):
        tokens = median(samples, 1)
        results.append(dict(name=name, device=args.device, tokens_per_s=tokens, peer="quire bench throughput",
                            peer_tokens_per_s=rate, ratio=tokens / rate, bar=BAR,
                            rounds=[sample[1] for sample in samples]))  # fmt: skip
    gap = median(online, 2)
    results.append(dict(name=base + "/inter_token", device=args.device, median_us=gap * 1e6,
                        peer="a step of quire bench throughput", peer_us=step * 1e6, ratio=step / gap))  # fmt: skip
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default="build/cuda/app/quire")
    parser.add_argument("--model", help="a folder with a config.json; default: the shape of Llama 3.1 8B")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--endpoint", default="completions", help="as quire bench serving has it")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="where the record goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            (Path(folder) / "config.json").write_text(json.dumps(LLAMA_8B))
        offline, online, loop = measure(args, args.model or folder)
    results = results_of(args, offline, online, loop)
    for result in results:
        unit = "tokens_per_s" if "tokens_per_s" in result else "median_us"
        own, peer = result[unit], result["peer_" + unit.removeprefix("median_")]
        print(f"{result['name']}: {own:.1f}, without HTTP {peer:.1f}: {100 * result['ratio']:.1f} %")
    if args.json:
        report = offline[0][0] | dict(command=f"bench/compare_offline.py --rounds {args.rounds}", results=results)
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
