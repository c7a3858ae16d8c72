#!/usr/bin/env python3
"""Draws recorded results as bars: the fraction of the machine's limit that each line reaches, the peer's beside it.

    python3 bench/plot.py bench/results/epyc-zen4-attention.json                  # bars as text
    python3 bench/plot.py bench/results/epyc-zen4-attention.json --out lines.png  # a picture, with matplotlib

Lines without a limit are left out: a bar needs something to be a fraction of.
"""

import argparse
import json
from pathlib import Path


def bars_of(record):
    """(name, fraction of the limit, the peer's fraction or None) for each line that has a limit."""
    bars = []
    for result in record["results"]:
        limit = result["limit_us"]
        if limit is None:
            continue
        peer = limit / result["peer_us"] if result["peer_us"] else None
        bars.append((result["name"], limit / result["median_us"], peer))
    return bars


def title_of(record):
    machine = record["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, commit {record['commit']}"


def peer_of(record):
    return next((r["peer"] for r in record["results"] if r["peer"]), None)


def draw_text(record):
    full = 50  # characters of a bar that reaches the limit
    bars, peer_name = bars_of(record), peer_of(record)
    width = max((len(name) for name, _, _ in bars), default=0)
    print(title_of(record))
    print("# quire" + (f", : {peer_name}" if peer_name else "") + f"; {full} characters are the machine's limit")
    for name, fraction, peer in bars:
        print(f"{name:{width}}  {100 * fraction:5.1f} %  {'#' * round(full * fraction)}")
        if peer is not None:
            print(f"{'':{width}}  {100 * peer:5.1f} %  {':' * round(full * peer)}")


def draw_picture(record, path, plt):
    bars, peer_name = bars_of(record), peer_of(record)
    places = list(range(len(bars)))
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.35 * len(bars)))
    axes.barh([p - 0.2 for p in places], [f for _, f, _ in bars], height=0.4, label="quire")
    if peer_name:
        axes.barh([p + 0.2 for p in places], [p or 0 for _, _, p in bars], height=0.4, label=peer_name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [name for name, _, _ in bars], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("fraction of the measured limit")
    axes.set_title(title_of(record), fontsize=9)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file written with --json")
    parser.add_argument("--out", type=Path, help="draw a picture into this file")
    args = parser.parse_args()
    record = json.loads(args.results.read_text())
    if args.out:
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError:
            print("matplotlib is not installed: here are the bars as text\n")
        else:
            return draw_picture(record, args.out, pyplot)
    draw_text(record)


if __name__ == "__main__":
    main()
