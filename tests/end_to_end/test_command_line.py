"""The command line as a stranger meets it: help, slips of the finger, wrong paths, and words that people understand."""

import contextlib
import json
import os
import pty
import re
import subprocess

import pytest
from program import MODEL, QUIRE, ROOT, environment, needs_model, one_line, quire, usage_error

COMMANDS = [
    [], ["serve"], ["chat"], ["generate"], ["tokenize"], ["template"], ["completion"], ["help"], ["version"],
    ["models"], ["models", "fetch"], ["models", "remove"],
    ["inspect"], ["inspect", "attention"], ["inspect", "metadata"], ["inspect", "step"], ["inspect", "logits"], ["inspect", "model"],
    ["bench"], ["bench", "attention"], ["bench", "matmul"], ["bench", "metadata"], ["bench", "sampling"], ["bench", "throughput"],
    ["bench", "serving"], ["bench", "profile"], ["bench", "speculation"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "quire")
def test_help_is_the_same_by_both_ways_and_in_words_of_our_own(command):
    done = quire("help", *command)
    assert done.returncode == 0 and done.stdout == quire(*command, "--help").stdout
    assert re.search(rf"^Usage: {' '.join(['quire', *command])}( |$)", done.stdout, re.MULTILINE)
    assert not re.search(r" in \[|REQUIRED|:\{|Positionals|Subcommand", done.stdout)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "quire")
def test_one_option_has_one_name(command):
    """What has a usual short name has it everywhere, and names that were given up are gone."""
    text = quire("help", *command).stdout
    for name, short in (("--model-path", "-m"), ("--max-tokens", "-n"), ("--context-length", "-c"), ("--threads", "-t")):
        for line in re.findall(rf"^  \S*{name}\b.*", text, re.MULTILINE):
            assert line.strip().startswith(short + ","), line
    assert not re.search(r"--kv-type|--template\b", text)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "quire")
def test_no_option_is_left_unexplained(command):
    """What it is for stands from the 30th column on, below names that leave no place for it; what is allowed is no more."""
    lines = [*quire("help", *command).stdout.splitlines(), ""]
    for line, below in zip(lines, lines[1:]):
        if line.startswith("  -"):
            explained = line[30:] if line[29:30] == " " else below.removeprefix(" " * 30)
            assert explained.strip() and not re.match(r" |one of |from -?\d", explained), line


def test_the_environment_is_told():
    text = quire("help").stdout
    for name in ("QUIRE_MODEL", "QUIRE_CACHE", "QUIRE_API_KEY", "QUIRE_ADMIN_API_KEY", "HF_ENDPOINT"):
        assert re.search(rf"^  .*\b{name}\b", text, re.MULTILINE), name
    serving = quire("help", "serve").stdout
    assert "$QUIRE_API_KEY" in serving and "$QUIRE_ADMIN_API_KEY" in serving


def test_the_manual_page_and_the_commands_agree():
    page = quire("help", "--man").stdout
    for command in COMMANDS[1:]:
        leaf = command not in (["inspect"], ["bench"])
        assert (f"\n.SS quire {' '.join(command)}\n" in page) == leaf


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ([], "quire: a command is missing: one of serve, chat"),
        (["serv"], 'quire: there is no command "serv"; did you mean serve?'),
        (["serve", "--prot", "80"], "quire serve: there is no option --prot; did you mean --port?"),
        (["serve", "--port", "70000"], 'quire serve: --port is from 0 to 65535; not "70000"'),
        (["serve", "--mem-fraction-static", "nan"], 'quire serve: --mem-fraction-static is from 0.01 to 0.99; not "nan"'),
        (["generate", "a", "-t", "2000"], 'quire generate: --threads is from 0 to 1024; not "2000"'),
        (["generate", "a", "--seed", "x"], "quire generate: --seed is from 0 to 18446744073709551615; not \"x\""),
        (["generate", "a", "--seed=-1"], "quire generate: --seed is from 0 to 18446744073709551615; not \"-1\""),
        (["generate", "a", "--seed", 1 << 64], "quire generate: --seed is from 0 to 18446744073709551615; not"),
        (["bench", "serving", "--seed=-1"], "quire bench serving: --seed is from 0 to 18446744073709551615"),
        (["generate"], "quire generate: give a prompt, --file FILE, or - for standard input"),
        (["generate", "a", "--system", "b"], "quire generate: --system needs --chat"),
        (["inspect", "logits"], "quire inspect logits: --ids is missing"),
        (["help", "chta"], 'quire help: there is no command "chta"; did you mean chat?'),
        (["completion", "tcsh"], 'quire completion: SHELL is one of bash, zsh, fish; not "tcsh"'),
    ],
)
def test_what_cannot_be_understood_is_said_in_a_line(arguments, reason):
    assert usage_error(quire(*arguments)).startswith(reason)


def test_version():
    assert quire("version").stdout == quire("--version").stdout
    assert re.fullmatch(r"quire \d+\.\d+\.\d+\n", quire("version").stdout)


RUNS_A_MODEL = [["serve", "--port", "0"], ["chat"], ["generate", "a"], ["bench", "throughput"], ["inspect", "logits", "--ids", "1"]]


@pytest.mark.parametrize("command", RUNS_A_MODEL, ids=lambda words: " ".join(words))
def test_a_wrong_model_is_said_before_anything_else(command, tmp_path):
    def said(path):
        done = quire(*command, "--model", path)
        assert done.returncode in (1, 2) and done.stdout == ""
        return one_line(done.stderr)  # nothing is listening, nothing is loading

    assert '"/no/such/model": there is no such file or folder' in said("/no/such/model")
    assert said(tmp_path).endswith(f"{tmp_path} is not a model folder: it has no config.json")
    (tmp_path / "b.gguf").write_bytes(b"PK\3\4")
    assert "is not a GGUF file" in said(tmp_path / "b.gguf")
    assert said(tmp_path).endswith(f"a GGUF file is named itself, as in {tmp_path}/b.gguf")


NO_GPU = r"quire was built without CUDA's compiler|no GPU was found.*"


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
@pytest.mark.parametrize(
    "command",
    RUNS_A_MODEL[:4] + [["bench", name] for name in ("attention", "matmul", "metadata", "sampling")],
    ids=lambda words: " ".join(words),
)
def test_a_gpu_that_is_not_there_is_refused_in_a_line(command):
    done = quire(*command, "--device", "cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"quire: --device cuda: ({NO_GPU})", one_line(done.stderr))


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_who_computes_is_said_in_a_line_and_why(shape):
    """On standard error: standard output has the answer alone."""
    words = [word for word in shape if word not in ("--device", "cpu")]
    done = quire("generate", "ab", *words, "-n", 2, "--no-stream")
    said = [line for line in done.stderr.splitlines() if "cpu:" in line]
    assert done.returncode == 0 and "cpu:" not in done.stdout
    assert len(said) == 1 and re.fullmatch(f"quire: cpu: ({NO_GPU})", said[0])
    asked = quire("generate", "ab", *shape, "-n", 2)
    assert "quire: cpu: as asked for\n" in asked.stderr


@pytest.fixture
def shape(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    return ["-m", tmp_path, "--load-format", "dummy", "--device", "cpu", "--deterministic"]


def test_a_shape_without_weights_runs(shape):
    done = quire("generate", "ab", *shape, "-n", 4, "--json")
    answer = json.loads(done.stdout)
    assert answer["usage"] == {"prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 4}


def test_what_a_benchmark_of_a_model_measures_is_said_as_it_is_measured(shape):
    lines = ["--prompt-tokens", 20, "--depth", 10, "--concurrency", 2, "--batch-prompt-tokens", 10, "--output-tokens", 4]
    done = quire("bench", "throughput", *shape, *lines, "--repeat", 2, "--filter", "throughput/r")
    said = re.findall(r"^quire: round (\d) of 2: (\S+): [0-9.]+ us$", done.stderr, re.M)
    assert said == [("1", "throughput/ready"), ("2", "throughput/ready")]
    assert "throughput/ready" in done.stdout


LIBRARY_WORDS = re.compile(r"basic_|filebuf|filesystem error|iostream|exception|std::|CLI|bad_alloc")


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokenize", "FOLDER"],
        ["template", "FOLDER"],
        ["generate", "--file", "FOLDER"],
        ["inspect", "step", "FOLDER"],
        ["serve", "--config", "FOLDER"],
        ["serve", "--api-key-file", "FOLDER"],
        ["serve", "--chat-template", "FOLDER"],
        ["inspect", "model", "FOLDER"],
        ["tokenize", "--model", "FOLDER"],
        ["generate", "a", "--model", "FOLDER/config.json/below"],
    ],
    ids=lambda words: " ".join(words),
)
def test_words_of_libraries_do_not_reach_people(arguments, tmp_path):
    (tmp_path / "config.json").mkdir()
    done = quire(*(word.replace("FOLDER", str(tmp_path)) for word in arguments))
    assert done.returncode in (1, 2)
    assert str(tmp_path) in done.stderr and not LIBRARY_WORDS.search(one_line(done.stderr))


def test_a_config_file_says_the_line(tmp_path):
    path = tmp_path / "quire.toml"
    path.write_text("# ours\nport = 0\nhost = 127.0.0.1\n")
    done = quire("serve", "--config", path)
    assert done.returncode == 1
    assert f"{path}, line 3: a value is a text in quotes" in one_line(done.stderr)


@needs_model
def test_a_pool_that_cannot_fit_is_refused():
    done = quire("serve", "--port", 0, "--max-total-tokens", 1 << 30, "--log-level", "error")
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(r"1073741824 tokens take 25\.7 TB, and \S+ .B of memory are free", one_line(done.stderr))


@needs_model
def test_the_default_model_is_that_of_every_command():
    assert quire("tokenize", text="Hi\n").stdout == quire("tokenize", "-m", MODEL, "-", text="Hi\n", QUIRE_MODEL=None).stdout
    assert "parameters" in quire("inspect", "model").stdout
    assert quire("inspect", "logits", "--ids", "1,2", "--threads", "0").returncode == 0


def shown_on_a_terminal(*arguments):
    """What somebody sees who waits for the program to end; and what it prints."""
    master, slave = pty.openpty()
    process = subprocess.Popen([QUIRE, *arguments], stdout=subprocess.PIPE, stderr=slave, env=environment())
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    return shown, printed


@needs_model
def test_long_waits_show_how_far_they_are():
    """On a terminal at once; elsewhere only what takes seconds (progress_test.cc)."""
    shown, printed = shown_on_a_terminal("generate", "word " * 600, "-n", "1")
    assert printed.endswith(b"\n")
    assert b"loading SmolLM2" in shown
    assert re.search(rb"reading the prompt: 512 of 60\d tokens\r\x1b\[K", shown), shown


def test_benchmarks_show_how_far_they_are():
    shown, printed = shown_on_a_terminal("bench", "metadata", "--quick", "--filter", "join", "--repeat", "3")
    assert b"join" in printed
    assert re.search(rb"\d lines: round 1 of 3\r\x1b\[K.*round 3 of 3\r\x1b\[K", shown), shown


@needs_model
@pytest.mark.skipif("SmolLM2-135M-Instruct" not in MODEL, reason="another model is tested")
def test_the_start_line_is_that_of_the_readme():
    shown = re.search(r"^    (quire: .* ready on .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    server = subprocess.Popen([QUIRE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert re.sub(r":\d+/", ":30000/", server.stdout.readline()) == shown + "\n"
    finally:
        server.terminate()
        server.communicate(timeout=60)


PAGES = ["README.md", "DESIGN.md", "bench/README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
NO_FILES_OF_OURS = {"x_test.cc", "x_test.py", "x_cpu.cc", "family_NAME.cc", "bench_serving.py"}  # patterns, and SGLang's


@pytest.mark.parametrize("page", PAGES)
def test_the_documents_name_only_files_that_there_are(page):
    """In backticks, or in DESIGN.md's list of the house: by name or by the end of the path, a{b,c}.h for both."""
    folders = ("app", "bench", "cmake", "docs", "fuzz", "python", "src", "tests", "web")
    files = [*ROOT.glob("*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    paths = "\n".join(f"/{file.relative_to(ROOT)}" for file in files) + "\n"
    text = (ROOT / page).read_text()
    house = text.split("```")[1:2] if page == "DESIGN.md" else []
    for quoted in [*re.findall(r"`([^`\n]+)`", text), *house]:
        for name in re.findall(r"[\w./{},-]+\.(?:h|cc|cu|cuh|py|sh|md|cmake)\b(?!\.\w)", quoted):
            before, *one_of = re.split(r"[{}]", name)
            names = [before + part + one_of[1] for part in one_of[0].split(",")] if one_of else [name]
            for each in set(names) - NO_FILES_OF_OURS:
                assert f"/{each}\n" in paths, each


@pytest.mark.parametrize("page", PAGES)
def test_the_documents_name_only_what_there_is(page):
    """Every `quire COMMAND --option` in them is one that the program has, and every file that they link to is there."""
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(link).exists(), link
    text = (ROOT / page).read_text().replace("`\n", "` ").replace("./run ", "quire ")
    for words in re.findall(r"(?:`|\$ |    )quire ([a-z][^`\n#|:]*)", text):
        words = words.split()
        below = words[:2] in COMMANDS  # else the second word is an argument
        command = words[:2] if below else words[:1]
        listed = quire("help", *command)
        assert listed.returncode == 0, words
        for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)):
            assert option in re.findall(r"--[a-z-]+", listed.stdout) or option == "--help", (words, option)


@pytest.mark.parametrize("command", [["version"], ["help"], ["completion", "bash"]], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([QUIRE, *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and one_line(done.stderr) == "quire: the output cannot be written"
