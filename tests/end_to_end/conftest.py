"""What the tests need from outside: other projects' files, fetched once into the cache folder and never committed."""

import fnmatch
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import pytest

from program import CACHE

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
# Of all that the source package carries: small vocabularies, and the chat templates of well-known models.
WANTED = [
    *(f"*/models/ggml-vocab-{name}.gguf" for name in ("gpt-2", "llama-bpe", "llama-spm", "qwen2")),
    "*/models/templates/*.jinja",
]


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        pytest.skip(f"{PACKAGE} {VERSION} cannot be downloaded: {reason}")
    return next(pathlib.Path(folder).glob("*.tar.gz"))


def extract(archive, folder):
    """The wanted files, each at its path below models/."""
    with tarfile.open(archive) as members:
        for member in members:
            if member.isfile() and any(fnmatch.fnmatch(member.name, pattern) for pattern in WANTED):
                place = folder / member.name.rsplit("/models/", 1)[1]
                place.parent.mkdir(parents=True, exist_ok=True)
                with members.extractfile(member) as source, open(place, "wb") as target:
                    shutil.copyfileobj(source, target)


@pytest.fixture(scope="session")
def peer_files():
    """A folder with ggml-vocab-*.gguf and templates/*.jinja of another engine's source package."""
    folder = pathlib.Path(CACHE) / "test" / f"{PACKAGE}-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            extract(download(work), pathlib.Path(work) / "models")
            (pathlib.Path(work) / "models").rename(folder)  # whole or not at all
    return folder
