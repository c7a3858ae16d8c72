"""The options that all comparisons have, and what their records say of the machine."""

import argparse
import json
import os
import subprocess
import tempfile
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


def machine_and_commit(args):
    """As `quire bench` records them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limits.json"
        command = [args.quire, "bench", "throughput", "--model", args.model, "--threads", str(args.threads)]
        command += ["--filter", "throughput/decode/depth=0", "--repeat", "1", "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads(path.read_text())
    return dict(machine=report["machine"], commit=report["commit"])
