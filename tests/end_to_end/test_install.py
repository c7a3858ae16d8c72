"""What `cmake --install` gives: the program with its page and completions, and a package for the C++ example of docs/embedding.md."""

import re
import subprocess

import pytest
from program import QUIRE, ROOT

BUILD = ROOT / "build" / "cpu"
pytestmark = pytest.mark.skipif(not (BUILD / "cmake_install.cmake").exists(), reason="build/cpu is not configured")


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    place = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", place)
    return place


def block_of_example(language):
    (block,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/embedding.md").read_text(), re.DOTALL)
    return block


def test_the_documented_example_builds_from_the_package_and_runs(prefix, tmp_path):
    (tmp_path / "example.cc").write_text(block_of_example("cpp"))
    (tmp_path / "CMakeLists.txt").write_text(block_of_example("cmake"))
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-O0")
    run("cmake", "--build", build)
    assert run(build / "example") == "0.5\n"


def test_the_program_is_installed_with_its_page_and_completions(prefix):
    assert run(prefix / "bin" / "quire", "version") == run(QUIRE, "--version")
    share = prefix / "share"
    assert (share / "man/man1/quire.1").read_text() == run(QUIRE, "help", "--man")
    for shell, path in (
        ("bash", "bash-completion/completions/quire"),
        ("zsh", "zsh/site-functions/_quire"),
        ("fish", "fish/vendor_completions.d/quire.fish"),
    ):
        assert (share / path).read_text() == run(QUIRE, "completion", shell)
    heads = [head.name for head in (ROOT / "models").glob("*.safetensors")]
    assert heads and sorted(heads) == sorted(head.name for head in (share / "quire/heads").iterdir())


def test_what_only_tests_use_stays_at_home(prefix):
    headers = [path.relative_to(prefix / "include") for path in (prefix / "include").rglob("*.h")]
    assert {"attention.h", "request_table.h", "exec.h"} <= {path.name for path in headers}
    assert not [path for path in headers if "test" in str(path) or "gtest" in (prefix / "include" / path).read_text()]
    for binary in [*prefix.rglob("*.a"), prefix / "bin" / "quire"]:
        names = run("nm", "-C", "--defined-only", binary)
        assert "quire::" in names
        assert not re.search(r"quire::(\w+::)*testing::", names), f"{binary} holds what only tests use"
