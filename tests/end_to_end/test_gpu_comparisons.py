"""The comparisons with other libraries on a GPU, as far as a machine without one can tell: what they say when something
is missing, which problem a line is, and what they record."""

import argparse
import json
import subprocess
import sys
import types

import pytest
from program import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import gpu_comparison  # noqa: E402

LIBRARIES = ["compare_fa3.py", "compare_flashinfer.py", "compare_flashmla.py"]
NO_TORCH = "raise ImportError\n"
NO_GPU = "class cuda:\n    is_available = staticmethod(lambda: False)\n"


def said(tmp_path, script, *arguments, torch=NO_TORCH):
    """What the script ends with, beside a PyTorch of ours."""
    (tmp_path / "torch.py").write_text(torch)
    command = [sys.executable, str(ROOT / "bench" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode != 0 and done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("script", LIBRARIES)
def test_a_missing_library_is_named(tmp_path, script):
    assert said(tmp_path, script, "--quire", __file__).endswith("the following arguments are required: --library")
    nowhere = tmp_path / "nowhere.so"
    line = said(tmp_path, script, "--quire", __file__, "--library", nowhere)
    assert line == f"{script}: error: --library: there is no {nowhere}"


def test_a_missing_program_and_no_rounds_are_named(tmp_path):
    script = "compare_cudnn.py"
    assert said(tmp_path, script, "--quire", "nowhere") == f"{script}: error: --quire: there is no nowhere"
    assert said(tmp_path, script, "--quire", __file__, "--rounds", 0) == f"{script}: error: --rounds is at least 1"


@pytest.mark.parametrize("script", [*LIBRARIES, "compare_cudnn.py"])
def test_a_missing_pytorch_or_gpu_is_named(tmp_path, script):
    there = ["--quire", __file__, *(["--library", __file__] if script in LIBRARIES else [])]
    assert said(tmp_path, script, *there) == "PyTorch is missing: pip install torch"
    assert said(tmp_path, script, *there, torch=NO_GPU) == "this machine has no GPU that PyTorch can use"


@pytest.mark.parametrize(
    "name, problem",
    [
        ("decode/batch=8/keys=4096/page=16", dict(batch=8, tokens=4096, page=16, flops=8 * 4096 * 32 * 512, layers=5)),
        ("decode/batch=32/keys=1024/longest=65536/page=16", dict(lengths=[65536] + [1024] * 31)),
        ("decode/batch=64/keys=4096/page=64/heads=128x1x576v512/latent", dict(latent=True, value_dim=512, kv_heads=1)),
        ("decode/batch=32/keys=4096/page=64/type=f8e4m3", dict(type="f8e4m3", layers=3)),
        ("prefill/tokens=512/batch=16/page=1", dict(query_rows=8192, flops=16 * 512 * 512 // 2 * 32 * 512, layers=2)),
        ("prefill/tokens=8192/batch=2/page=64/heads=32x8x192v128", dict(dim=192, value_dim=128)),
    ],
)
def test_a_name_is_a_problem_and_a_problem_has_that_name(name, problem):
    line = gpu_comparison.line_of(name)
    assert line.name == name
    assert {key: getattr(line, key) for key in problem} == problem


@pytest.mark.parametrize("name", ["verify_tree/batch=8/nodes=8/keys=4096/page=16", "decode/batch=1/keys=8/page=1/new"])
def test_what_the_peers_do_not_know_is_no_problem_of_theirs(name):
    assert gpu_comparison.line_of(name) is None


class Peer:
    name = "a peer"

    def takes(self, line):
        return line.page != 64


@pytest.fixture
def quire(tmp_path):
    """A program that answers each turn with the next of three times."""
    program = tmp_path / "quire"
    program.write_text(f"""#!{sys.executable}
import json, pathlib, sys
turns = pathlib.Path({str(tmp_path / "turns")!r})
turn = int(turns.read_text()) if turns.exists() else 0
turns.write_text(str(turn + 1))
us = [10, 30, 20][turn]
name = "prefill/tokens=512/batch=16/page="
lines = [dict(name=name + page, device="cuda", median_us=us, limit_us=5, gbps=60 / us, tflops=120 / us, peer=None,
              peer_us=None) for page in ("16", "64", "128")]
report = dict(machine=dict(gpu=dict(name="a GPU")), commit="0123", command="", results=lines)
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(report))
""")
    program.chmod(0o755)
    return program


def test_medians_of_the_turns_are_recorded(tmp_path, quire, monkeypatch, capsys):
    peer_us = iter([40, 45, 50, 60, 65, 70, 50, 55, 60])
    monkeypatch.setattr(gpu_comparison, "fastest_us", lambda peer, line: next(peer_us))
    cuda = types.SimpleNamespace(empty_cache=lambda: None)
    monkeypatch.setattr(gpu_comparison, "torch", types.SimpleNamespace(__version__="2.11", cuda=cuda))
    args = argparse.Namespace(quire=quire, rounds=3, filter=["prefill/"], json=tmp_path / "a.json", script="compare.py")
    gpu_comparison.compare(args, Peer())

    record = json.loads(args.json.read_text())
    shared = dict(device="cuda", peer="a peer")
    ours = dict(shared, median_us=20, limit_us=5, gbps=3, tflops=6)
    name = "prefill/tokens=512/batch=16/"
    assert record.pop("results") == [
        dict(ours, name=name + "page=16", peer_us=50),
        dict(ours, name=name + "page=64", peer=None, peer_us=None),
        dict(ours, name=name + "page=128", peer_us=55),
        dict(shared, name=name + "contiguous", median_us=None, limit_us=None, gbps=None, tflops=None, peer_us=60),
    ]
    assert record == dict(machine=dict(gpu=dict(name="a GPU")), commit="0123", torch="2.11",
                          command="bench/compare.py --rounds 3 --filter prefill/")
    rows = [line.split()[1:] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert rows[1] == ["20.00", "1718.0", "55.00", "624.7", "2.75"] and rows[2] == ["-", "-", "60.00", "572.7", "-"]


def test_a_line_that_the_peer_refuses_is_said_and_has_no_time(monkeypatch, capsys):
    def refuse(peer, line):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu_comparison, "fastest_us", refuse)
    cuda = types.SimpleNamespace(empty_cache=lambda: None)
    monkeypatch.setattr(gpu_comparison, "torch", types.SimpleNamespace(cuda=cuda))
    line = gpu_comparison.line_of("decode/batch=8/keys=4096/page=16")
    assert gpu_comparison.peer_us(Peer(), line) is None
    assert capsys.readouterr().err == f"a peer refuses {line.name}: no such kernel\n"


def test_a_program_that_fails_is_quoted(tmp_path):
    program = tmp_path / "quire"
    program.write_text("#!/bin/sh\necho quire: no GPU >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(SystemExit, match="quire failed: quire: no GPU"):
        gpu_comparison.quire_report(program, "decode/")
