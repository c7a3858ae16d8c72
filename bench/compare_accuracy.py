"""How well quire and llama.cpp follow the model: both against transformers in float32 on the dequantised weights.

Every token of the texts in bench/texts, which are our own, is given (teacher forcing). Counted: positions where the
likeliest next token is that of float32, and the perplexity. All three run on the same tokens in the same run.

    python bench/compare_accuracy.py --quire build/cpu/app/quire --model MODEL.gguf --out bench/results/NAME-accuracy.json

Needs torch, transformers, gguf and llama-cpp-python (see bench/README.md).
"""

import argparse
import datetime
import json
import math
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "golden"))

WARM_UP = 8  # the first positions, where there is hardly a text to follow, are left out


def float32(path, ids):
    import torch
    from make_model_golden import smollm2_float32

    model = smollm2_float32(path)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def llama_cpp(path, ids, threads):
    import llama_cpp
    import numpy

    model = llama_cpp.Llama(
        str(path), n_ctx=len(ids), n_batch=512, n_threads=threads, n_threads_batch=threads, logits_all=True,
        flash_attn=False, verbose=False,
    )
    model.eval(ids)
    return numpy.array(model.scores[: len(ids)], dtype=numpy.float64)


def measures(logits, ids):
    """The likeliest next token of each position, and the log-probability of the one that came."""
    import numpy

    top = logits.max(axis=1, keepdims=True)
    log_sum = (top + numpy.log(numpy.exp(logits - top).sum(axis=1, keepdims=True)))[:, 0]
    came = numpy.array(ids[1:])
    return logits.argmax(axis=1).tolist(), (logits[numpy.arange(len(came)), came] - log_sum[:-1]).tolist()


def quire(program, path, ids, threads):
    command = [program, "inspect", "logits", path, "--ids", ",".join(map(str, ids)), "--threads", str(threads),
               "--kv-cache-dtype", "bf16", "--json"]
    answer = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
    return answer["argmax"], answer["logprobs"]


def tokens_of(program, path, text):
    command = [program, "tokenize", "--model", path, "--lines", "-", "--json"]
    done = subprocess.run(list(map(str, command)), input=json.dumps(text) + "\n", check=True, capture_output=True,
                          text=True)
    return json.loads(done.stdout.splitlines()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the default model's GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    runs = {"transformers float32": [], "llama.cpp": [], "quire": []}  # name: [(likeliest tokens, log-probabilities)]
    texts = sorted((ROOT / "bench" / "texts").glob("*.txt"))
    for text in texts:
        ids = tokens_of(options.quire, options.model, text.read_text())
        runs["transformers float32"].append(measures(float32(options.model, ids), ids))
        runs["llama.cpp"].append(measures(llama_cpp(options.model, ids, options.threads), ids))
        runs["quire"].append(quire(options.quire, options.model, ids, options.threads))
    results = []
    for name, run in runs.items():
        for place, text in [*enumerate(texts), (slice(None), None)]:
            results.append(summary(name, text.stem if text else "all", run[place], runs["transformers float32"][place]))
            print("{run:22} {text:10} likeliest token as float32: {equal} of {tokens} ({agreement:.2%})"
                  "   perplexity {perplexity:.4f}".format(**results[-1]))
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        command = f"bench/compare_accuracy.py --model {options.model.name} --threads {options.threads}"
        options.out.write_text(json.dumps({
            "machine": cpu_name(), "commit": commit.stdout.strip(), "date": datetime.date.today().isoformat(),
            "command": command, "results": results,
        }, indent=1) + "\n")


def summary(name, text, run, exact):
    parts = list(zip(run, exact)) if isinstance(run, list) else [(run, exact)]
    pairs = [pair for (best, _), (float_best, _) in parts for pair in list(zip(best, float_best))[WARM_UP:]]
    logprobs = [logprob for (_, all_of), _ in parts for logprob in all_of[WARM_UP:]]
    equal = sum(ours == exactly for ours, exactly in pairs)
    return {"run": name, "text": text, "tokens": len(pairs), "equal": equal, "agreement": equal / len(pairs),
            "perplexity": math.exp(-sum(logprobs) / len(logprobs))}


def cpu_name():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
