"""The program under test and the model that it runs: $QUIRE_TEST_MODEL, else the default model in the cache folder."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUIRE = os.environ.get("QUIRE", str(ROOT / "build" / "cpu" / "app" / "quire"))
CACHE = os.environ.get("QUIRE_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "quire"
)
MODEL = os.environ.get("QUIRE_TEST_MODEL") or os.path.join(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf")

needs_model = pytest.mark.skipif(
    not os.path.exists(MODEL), reason=f"no model at {MODEL}: ./run fetches it, or QUIRE_TEST_MODEL names one"
)


def environment(**changes):
    """Ours, with the model under test, and with these changes; None takes a variable away."""
    merged = {**os.environ, "QUIRE_MODEL": MODEL, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def quire(*arguments, text="", **changes):
    """Runs the program to its end."""
    command = [QUIRE, *map(str, arguments)]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, env=environment(**changes)
    )


def usage_error(done):
    """What is said of a command line that cannot be understood, in one line; the next says where options are listed."""
    reason, hint, end = done.stderr.split("\n")
    assert (done.returncode, done.stdout, end) == (2, "", "")
    assert hint.startswith("`quire") and "--help` lists the " in hint, hint
    return reason


def one_line(text):
    """What is said in exactly one line, beside who computes the model, and the progress that a machine at its limits makes
    slow enough to show."""
    text = re.sub(r"^quire: (loading |reading |cpu: |cuda: ).*\n", "", text, flags=re.MULTILINE)
    assert text.count("\n") == 1 and text.endswith("\n"), text
    return text[:-1]
