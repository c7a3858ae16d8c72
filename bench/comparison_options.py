"""The options that all comparisons have."""

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def comparison_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=str(ROOT / "build/cpu/app/quire"), help="the program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--machine", default="cpu", help="the first part of the recorded file's name")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results", help="folder of the record")
    return parser


def parse_with_model(parser):
    """The arguments of a comparison that runs a model."""
    parser.add_argument("--model", default=os.environ.get("QUIRE_MODEL"), help="GGUF file; default: $QUIRE_MODEL")
    args = parser.parse_args()
    if not args.model:
        parser.error("give --model FILE or set QUIRE_MODEL")
    return args
