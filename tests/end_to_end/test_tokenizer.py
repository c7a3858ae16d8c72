"""`quire tokenize` against the Python package `tokenizers`: ids and texts of 24,000 lines with five vocabularies."""

import json
import pathlib
import sys

import pytest

from gguf_tokenizer import tokenizer_json
from program import MODEL, ROOT, needs_model, one_line, quire

sys.path.insert(0, str(ROOT / "tests" / "golden"))
import tokenizer_lines  # noqa: E402

GOLDEN = json.loads((ROOT / "tests" / "golden" / "tokenizer_golden.json").read_text())
LINES = tokenizer_lines.lines()
VOCABULARIES = list(GOLDEN["vocabularies"])


def tokenize(model, rows, *arguments):
    done = quire(
        "tokenize", "--json", "--model", model, *arguments, text="".join(json.dumps(row) + "\n" for row in rows)
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(rows)
    return answers


def differing_blocks(answers, expected):
    """The first lines of the blocks whose fingerprints differ."""
    assert len(expected) * tokenizer_lines.BLOCK >= len(answers)
    found = tokenizer_lines.blocks(answers)
    return [number * tokenizer_lines.BLOCK for number, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]


@pytest.fixture(params=VOCABULARIES)
def name(request):
    return request.param


@pytest.fixture
def vocabulary(name, request):
    """The file with it."""
    if name != "smollm":
        return request.getfixturevalue("peer_files") / f"ggml-vocab-{name}.gguf"
    if not pathlib.Path(MODEL).exists():
        pytest.skip(f"no model at {MODEL}")
    return MODEL


def test_the_lines_are_those_of_the_golden():
    assert tokenizer_lines.digest(LINES) == GOLDEN["lines"]
    assert len(LINES) >= 20_000


def test_ids_and_texts_are_those_of_tokenizers(name, vocabulary):
    golden = GOLDEN["vocabularies"][name]
    special = tokenize(vocabulary, LINES, "--parse-special")
    for line, ids, expected in zip(
        LINES[:: tokenizer_lines.SAMPLE], special[:: tokenizer_lines.SAMPLE], golden["sample"]
    ):
        assert ids == expected, line
    assert sum(map(len, special)) == golden["ids"]
    assert differing_blocks(special, golden["special"]) == []
    assert differing_blocks(tokenize(vocabulary, LINES, "--no-special"), golden["plain"]) == []
    assert differing_blocks(tokenize(vocabulary, special, "--detokenize"), golden["decoded"]) == []
    without = tokenize(vocabulary, special, "--detokenize", "--skip-special")
    assert differing_blocks(without, golden["decoded_without_special"]) == []


def test_a_folder_gives_the_same_ids(name, vocabulary, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(name, vocabulary)))
    golden = GOLDEN["vocabularies"][name]
    special = tokenize(tmp_path, LINES, "--parse-special")
    assert differing_blocks(special, golden["special"]) == []
    assert differing_blocks(tokenize(tmp_path, special, "--detokenize"), golden["decoded"]) == []


def test_long_runs_without_a_break_are_no_problem(name, vocabulary):
    runs = ["a" * 200_000, " " * 200_000, "\n" * 200_000, "é" * 200_000, "<|" * 100_000, "\u0301\u0323" * 100_000]
    ids = tokenize(vocabulary, runs, "--no-special")
    if name != "qwen2":  # which changes the order of marks
        assert tokenize(vocabulary, ids, "--detokenize") == runs


@needs_model
def test_plain_lines_in_plain_lines_out():
    done = quire("tokenize", "--model", MODEL, text="Hello world\n\n<|im_end|>\n")
    assert done.returncode == 0 and done.stderr == ""
    first, empty, special = done.stdout.splitlines()
    assert (empty, len(first.split())) == ("", 2)
    assert len(special.split()) > 1
    done = quire("tokenize", "--model", MODEL, "--parse-special", text="<|im_end|>\n")
    assert done.stdout == "2\n"
    done = quire("tokenize", "--model", MODEL, "--detokenize", text=first + "\n\n2\n")
    assert done.stdout == "Hello world\n\n<|im_end|>\n"
    done = quire("tokenize", "--model", MODEL, "--detokenize", "--skip-special", text=f"2 {first} 2\n")
    assert done.stdout == "Hello world\n"


@needs_model
@pytest.mark.parametrize(
    "arguments, text, part",
    [
        (["--json"], '"a"\nnot json\n', "line 2: "),
        (["--json"], "[1]\n", "line 1: "),
        (["--detokenize"], "1 2 x\n", 'line 1: "1 2 x" is not a list of token ids'),
        (["--detokenize"], "49152\n", "line 1: token 49152 is not one of the vocabulary's 49152"),
        (["--detokenize", "--json"], "[-1]\n", "line 1: token -1"),
        (["--detokenize", "--json"], "[99999999999]\n", "line 1: 99999999999 is no token id"),
        (["--lines", "/no/such/file"], "", "/no/such/file cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, text, part):
    done = quire("tokenize", "--model", MODEL, *arguments, text=text)
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("quire tokenize: ") and part in done.stderr


def test_bad_models_are_refused_in_one_line(tmp_path):
    for path, part in [(tmp_path / "none", "none"), (tmp_path, "tokenizer.json: No such file or directory")]:
        done = quire("tokenize", "--model", path, text="a\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert one_line(done.stderr).startswith("quire tokenize: ") and part in done.stderr
