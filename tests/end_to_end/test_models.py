"""Models by name: `--model-path ORG/NAME` and `quire models`, against a hub of our own that redirects, trickles, breaks
and lies."""

import hashlib
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading

import pytest
from fake_hub import COMMIT, AnotherPart, Chunked, Cut, Hub, IgnoresRange, OtherBytes, Silent, Status, Trickle
from program import QUIRE, environment, one_line
from served import serve

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "soak"))
import served_model  # noqa: E402
import tiny_models  # noqa: E402

NAME, FILE = "org/tiny-GGUF", "tiny.Q8_0.gguf"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory):
    return served_model.write(tmp_path_factory.mktemp("gguf") / FILE).read_bytes()


def tokenizer_json():
    tokens = {token: number for number, token in enumerate(served_model.tokens())}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = [{"id": tokens[token], "content": token, "special": True, **plain} for token in served_model.SPECIAL]
    model = {"type": "BPE", "vocab": tokens, "merges": []}
    steps = {"normalizer": None, "pre_tokenizer": level, "decoder": level}
    return json.dumps({"version": "1.0", "added_tokens": special, **steps, "model": model})


@pytest.fixture(scope="session")
def folder_files(tmp_path_factory):
    """A Hugging Face folder, with what people put beside a model."""
    folder = tiny_models.write_folder(tiny_models.Spec("llama", layers=1), tmp_path_factory.mktemp("folder") / "tiny")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    ballast = {"README.md": b"# tiny", "pytorch_model.bin": bytes(5000), "onnx/model.onnx": bytes(5000)}
    return {**files, "tokenizer.json": tokenizer_json().encode(), "generation_config.json": b"{}", **ballast}


@pytest.fixture
def hub(gguf):
    server = Hub()
    server.models[NAME] = {"README.md": b"# tiny", FILE: gguf}
    yield server
    server.stop()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def variables(hub, cache):
    """The environment of a program that knows nothing but this hub."""
    quiet = {name: None for proxy in PROXIES for name in (proxy, proxy.upper())}
    unset = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "QUIRE_MODEL")
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache)}
    return {**quiet, **dict.fromkeys(unset), **own}


@pytest.fixture
def quire(variables):
    def run(*arguments, **changes):
        more = {key: changes.pop(key) for key in ("preexec_fn", "restore_signals") if key in changes}
        command = [QUIRE, *map(str, arguments)]
        env = environment(**{**variables, **changes})
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, **more)

    return run


@pytest.fixture
def fetch(quire, gguf):
    """Fetches and must succeed: the path, whose bytes must be right, and what was said."""

    def run(name=NAME, **changes):
        done = quire("models", "fetch", name, **changes)
        assert done.returncode == 0, done.stderr
        path = pathlib.Path(done.stdout[:-1])
        assert not path.name.endswith(".gguf") or path.read_bytes() == gguf
        return path, done.stderr

    return run


@pytest.fixture
def refused(quire, cache):
    """Must fail in one line; what is said last."""

    def run(name=NAME, **changes):
        done = quire("models", "fetch", name, **changes)
        assert done.returncode == 2 and done.stdout == "", done
        lines = [line for line in done.stderr.splitlines() if not line.startswith("quire: fetching")]
        lines = [line for line in lines if not line.endswith("trying again")]
        assert len(lines) == 1 and lines[0].startswith("quire models fetch: "), done.stderr
        return lines[0]

    return run


def blobs(cache):
    return sorted(path.name for path in cache.glob("models--*/blobs/*"))


# --- the usual way


def test_a_model_is_fetched_once_into_the_hubs_own_layout(hub, fetch, cache, gguf):
    path, said = fetch()
    repository = cache / "models--org--tiny-GGUF"
    etag = hashlib.sha256(gguf).hexdigest()
    assert path == repository / "snapshots" / COMMIT / FILE
    assert os.readlink(path) == f"../../blobs/{etag}"
    assert (repository / "refs" / "main").read_text() == COMMIT
    assert blobs(cache) == [etag]
    assert f"fetching {FILE}: 100 % of " in said
    again, said = fetch()
    assert again == path and said == "" and hub.bodies() == ["whole"]


def test_every_command_takes_a_name(hub, quire, gguf):
    done = quire("generate", "hi", "--max-tokens", 2, "--model-path", NAME)
    assert done.returncode == 0 and "2 new tokens" in done.stderr, done.stderr
    done = quire("generate", "hi", "--max-tokens", 2, QUIRE_MODEL=f"{NAME}:{FILE}")
    assert done.returncode == 0, done.stderr
    done = quire("chat", "--model", NAME)
    assert done.returncode == 0, done.stderr
    done = quire("bench", "throughput", "--model", NAME, "--filter", "no such line")
    assert 'no line of the benchmark has "no such line"' in done.stderr
    assert len(hub.bodies()) == 1


def test_a_server_is_named_after_the_model(hub, tmp_path, variables, folder_files):
    hub.models["org/tiny"] = folder_files
    with serve(tmp_path, model="org/tiny", **variables) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_json_log_tells_of_fetching_too(hub, tmp_path, variables, folder_files):
    hub.models["org/tiny"] = folder_files
    with serve(tmp_path, "--log-format", "json", model="org/tiny", **variables) as server:
        server.wait_until(lambda: "ready on" in server.log.read_text())
        lines = [line for line in server.log.read_text().splitlines() if not line.startswith("quire: tiny ready on")]
        assert any("fetching model.safetensors" in json.loads(line).get("message", "") for line in lines)


def test_a_wrong_name_is_said_before_listening(quire):
    done = quire("serve", "--port", 0, "--model-path", "org/nothing")
    assert done.returncode == 2 and done.stdout == ""
    line = one_line(done.stderr)
    assert "has no model org/nothing" in line and 'no file or folder "org/nothing" here' in line


def test_a_folder_is_what_quire_reads_of_it(hub, quire, fetch, folder_files):
    hub.models["org/tiny"] = folder_files
    path, _ = fetch("org/tiny")
    names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(os.listdir(path)) == names
    assert all((path / name).read_bytes() == folder_files[name] for name in names)
    done = quire("generate", "hi", "--max-tokens", 2, "--model-path", "org/tiny")
    assert done.returncode == 0, done.stderr


def test_of_many_files_one_is_chosen_and_said(hub, fetch, gguf):
    others = ("a.Q2_K.gguf", "a.Q8_0.gguf", "a.Q4_K_M.gguf", "a.F16.gguf", "mmproj-a.Q4_K_M.gguf", "a.IQ4_XS.gguf")
    hub.models[NAME] = {name: gguf for name in others}
    path, said = fetch()
    assert path.name == "a.Q4_K_M.gguf"
    assert f"taking a.Q4_K_M.gguf, one of 3 GGUF files; {NAME}:FILE takes another" in said
    assert fetch(f"{NAME}:a.Q2_K.gguf")[0].name == "a.Q2_K.gguf"
    assert fetch(f"{NAME}:q8_0")[0].name == "a.Q8_0.gguf"


def test_revisions(hub, fetch, refused, cache):
    hub.revisions |= {"v1": "1" * 40, "refs/pr/3": "3" * 40}
    assert fetch(f"{NAME}@v1")[0].parent.name == "1" * 40
    assert fetch(f"{NAME}@refs/pr/3")[0].parent.name == "3" * 40
    assert fetch(f"{NAME}@{COMMIT}")[0].parent.name == COMMIT
    assert (cache / "models--org--tiny-GGUF" / "refs" / "refs" / "pr" / "3").read_text() == "3" * 40
    assert 'has no revision "v2"' in refused(f"{NAME}@v2")
    assert len(hub.bodies()) == 1, "the states share their blob"


def test_a_path_wins_over_a_name(hub, quire, gguf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / NAME).write_bytes(gguf)
    assert quire("generate", "hi", "--max-tokens", 1, "--model", NAME).returncode == 0
    assert hub.seen == []


@pytest.mark.parametrize("text", ["/no/such/model", "model.gguf", "models/x.gguf", "a/b/c", "org/name:../x"])
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "hi"]], ids=["serve", "generate"])
def test_what_is_neither_path_nor_name_says_both(hub, quire, text, command):
    done = quire(*command, "--model-path", text)
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert text in line and "no such file or folder" in line and "ORG/NAME" in line
    assert hub.seen == []


# --- redirects and tokens


@pytest.mark.parametrize("redirect", ["absolute", "relative", "same"])
def test_redirects_are_followed_and_the_token_stays_at_home(hub, fetch, redirect):
    hub.redirect, hub.needs_token = redirect, "hf_secret"
    fetch(HF_TOKEN="hf_secret")
    tokens = {server: set() for _, server, _, _ in hub.seen}
    for _, server, _, headers in hub.seen:
        tokens[server].add(headers.get("Authorization"))
    assert tokens["hub"] == {"Bearer hf_secret"}
    assert tokens.get("store", {None}) == {None}


def test_the_token_may_lie_in_a_file(hub, fetch, cache):
    hub.needs_token = "hf_secret"
    cache.mkdir()
    (cache / "token").write_text("hf_secret\n")
    fetch()


def test_who_may_not_have_it_is_told(hub, refused):
    hub.needs_token = "hf_secret"
    assert "HF_TOKEN must be set" in refused()
    hub.error_code = "GatedRepo"
    line = refused()
    assert "accept its terms" in line and f"{hub.url}/{NAME}" in line and "HF_TOKEN" in line
    hub.error_code = None
    assert "does not accept the token" in refused(HF_TOKEN="hf_wrong")


def test_a_model_that_is_not_there(refused):
    assert "has no model org/nothing" in refused("org/nothing")
    assert 'has no file "x.gguf"; its GGUF files are "tiny.Q8_0.gguf"' in refused(f"{NAME}:x.gguf")


# --- broken transfers


@pytest.mark.parametrize("fault", [Trickle(), Chunked()], ids=["trickling", "chunked"])
def test_unusual_transfers(hub, fetch, fault):
    hub.faults = [fault]
    fetch()
    assert hub.bodies() == ["whole"]


def test_a_cut_transfer_goes_on_where_it_ended(hub, fetch):
    hub.faults = [Cut(3000), Cut(7000)]
    _, said = fetch()
    assert hub.bodies() == ["whole", "bytes=3000-", "bytes=7000-"]
    assert said.count("trying again") == 2


def test_a_server_that_cannot_continue_starts_over(hub, fetch):
    hub.faults = [Cut(3000), IgnoresRange()]
    fetch()
    assert hub.bodies() == ["whole", "bytes=3000-"]


@pytest.mark.parametrize("fault", [AnotherPart(), Status(416)], ids=["another part", "416"])
def test_a_server_that_continues_elsewhere_is_asked_for_all(hub, fetch, fault):
    hub.faults = [Cut(3000), fault]
    fetch()
    assert hub.bodies() == ["whole", "bytes=3000-", "whole"]


def test_errors_that_pass_are_waited_out(hub, fetch):
    hub.hub_statuses, hub.faults = [503, 429], [Status(500), Status(503)]
    fetch()
    assert len(hub.bodies()) == 3


def test_silence_is_a_broken_transfer(hub, fetch):
    hub.faults = [Silent(5000)]
    _, said = fetch(HF_HUB_DOWNLOAD_TIMEOUT="0.2")
    assert hub.bodies() == ["whole", "bytes=5000-"] and "silent" in said


def test_an_interrupted_fetch_is_taken_up_again(hub, fetch, cache, variables, gguf):
    hub.faults = [Silent(6000)]
    held = hub.faults[0]
    env = environment(**variables)
    process = subprocess.Popen([QUIRE, "models", "fetch", NAME], stderr=subprocess.DEVNULL, env=env)
    assert held.begun.wait(30)
    partial = cache / "models--org--tiny-GGUF" / "blobs" / (hashlib.sha256(gguf).hexdigest() + ".incomplete")
    while not partial.exists() or partial.stat().st_size < 6000:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    held.held.set()
    assert partial.stat().st_size == 6000
    fetch()
    assert hub.bodies() == ["whole", "bytes=6000-"] and not partial.exists()


def test_two_at_once_fetch_once(hub, fetch, variables):
    hub.faults = [Silent(6000)]
    held = hub.faults[0]
    command, env = [QUIRE, "models", "fetch", NAME], environment(**variables)
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert held.begun.wait(30)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert "waiting for another process" in second.stderr.readline()
    held.held.set()  # the first is cut, and goes on
    said = [process.communicate(timeout=60) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert said[0][0] == said[1][0] and hub.bodies() == ["whole", "bytes=6000-"]


# --- lies


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda gguf: b"X" + gguf[1:], "its hash is wrong, and it was thrown away"),
        (lambda gguf: gguf[:-1], "was announced with"),
        (lambda gguf: gguf + b"X", "was announced with"),
        (lambda gguf: b"<!doctype html><p>Please log in", "was announced with"),
    ],
    ids=["hash", "short", "long", "page"],
)
def test_a_file_that_does_not_verify_is_thrown_away(hub, refused, fetch, cache, gguf, lie, reason):
    hub.faults = [OtherBytes(lie(gguf))]
    assert reason in refused()
    assert blobs(cache) == [] and not list(cache.glob("**/*.gguf"))
    fetch()


def test_a_lie_about_the_rest_costs_what_had_come(hub, refused, fetch, cache, gguf):
    hub.faults = [Cut(3000), OtherBytes(gguf[:-1])]
    assert "it is thrown away" in refused()
    assert hub.bodies() == ["whole", "bytes=3000-"] and blobs(cache) == []
    fetch()
    assert hub.bodies()[2:] == ["whole"]


def test_small_files_are_verified_too(hub, refused, folder_files):
    hub.models["org/tiny"], hub.large, hub.etag = folder_files, 1 << 30, "0" * 40
    assert "hash is wrong" in refused("org/tiny")


@pytest.mark.parametrize("etag", ["../../../evil", "a/b", ".hidden", "x y", '"', "a.incomplete"])
def test_an_etag_is_no_way_out_of_the_cache(hub, refused, cache, etag):
    hub.etag = etag
    assert "no usable ETag" in refused()
    assert not list(cache.parent.glob("**/evil*")) and blobs(cache) == []


@pytest.mark.parametrize("listing", [b"<!doctype html>", b"{}", b'{"sha": "../x", "siblings": []}', b""])
def test_a_page_is_no_listing(hub, refused, listing):
    hub.listing = listing
    assert "does not answer as a hub does (HF_ENDPOINT)" in refused()


# --- no network, no disk


def test_offline_the_cache_is_enough(hub, fetch, refused):
    assert "not in the cache" in refused(HF_HUB_OFFLINE="1") and hub.seen == []
    path, _ = fetch()
    calls = len(hub.seen)
    assert fetch(HF_HUB_OFFLINE="1") == (path, "") and len(hub.seen) == calls
    assert "HF_HUB_OFFLINE" in refused(f"{NAME}:other.gguf", HF_HUB_OFFLINE="1")


def test_part_of_a_folder_is_not_enough_offline(hub, fetch, refused, folder_files):
    shards = {f"model-0000{i}-of-00002.safetensors": bytes(2000 + i) for i in (1, 2)}
    index = json.dumps({"weight_map": dict(zip("ab", shards))})
    files = {name: content for name, content in folder_files.items() if name != "model.safetensors"}
    hub.models["org/tiny"] = {**files, **shards, "model.safetensors.index.json": index.encode()}
    path, _ = fetch("org/tiny")
    assert fetch("org/tiny", HF_HUB_OFFLINE="1")[0] == path
    (path / "model-00002-of-00002.safetensors").unlink()
    assert "or not all of it" in refused("org/tiny", HF_HUB_OFFLINE="1")


def test_an_index_names_no_shard_outside_its_folder(hub, fetch, refused, folder_files):
    index = "model.safetensors.index.json"
    files = {name: content for name, content in folder_files.items() if name != "model.safetensors"}
    shard = {"model-00001-of-00001.safetensors": bytes(2000)}
    hub.models["org/tiny"] = {**files, **shard, index: json.dumps({"weight_map": {"a": "../evil"}}).encode()}
    path, _ = fetch("org/tiny")
    (path.parent / "evil").write_bytes(b"")
    assert "or not all of it" in refused("org/tiny", HF_HUB_OFFLINE="1")


def test_a_hub_out_of_reach_is_said_and_the_cache_used(hub, fetch, refused):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        line = refused(HF_ENDPOINT=dead)
        assert f"{NAME} cannot be fetched: cannot connect to 127.0.0.1" in line and "HF_ENDPOINT" in line
        path, _ = fetch()
        again, said = fetch(HF_ENDPOINT=dead)
    assert again == path and "as it is in the cache" in one_line(said)


def test_a_host_that_does_not_exist(refused):
    assert "cannot find no-such-host.invalid" in refused(HF_ENDPOINT="http://no-such-host.invalid")


def test_room_is_looked_for_beforehand(hub, refused, cache):
    hub.announced_size = 1 << 60
    line = refused()
    assert "takes 1.2 EB in" in line and "HF_HUB_CACHE" in line
    assert hub.bodies() == [] and blobs(cache) == []


def test_a_full_disk_keeps_what_has_come(hub, refused, fetch, cache):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    # As a full disk, where the signal of this limit is ignored: Python does so, and passes that on.
    line = refused(preexec_fn=limit, restore_signals=False)
    assert "cannot write" in line and ".incomplete: File too large" in line
    assert [name.endswith(".incomplete") for name in blobs(cache)] == [True]
    fetch()
    assert hub.bodies() == ["whole", "bytes=4096-"]


def test_a_cache_that_cannot_be_written(refused):
    assert "/proc/nothing" in refused(HF_HUB_CACHE="/proc/nothing")


# --- TLS and proxies


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Key and certificate of 127.0.0.1, signed by nobody else."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", f"{path}.crt"],
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + pathlib.Path(f"{path}.crt").read_bytes())
    return path


@pytest.fixture
def secure_hub(gguf, certificate):
    server = Hub(certificate)
    server.models[NAME] = {FILE: gguf}
    yield server
    server.stop()


def test_certificates_are_checked(secure_hub, fetch, refused, certificate):
    fetch(HF_ENDPOINT=secure_hub.url, SSL_CERT_FILE=str(certificate))
    assert "is not trusted" in refused("org/other", HF_ENDPOINT=secure_hub.url)
    other = secure_hub.url.replace("127.0.0.1", "localhost")
    assert "is not trusted" in refused("org/other", HF_ENDPOINT=other, SSL_CERT_FILE=str(certificate))


def test_https_does_not_lead_to_http(hub, secure_hub, refused, certificate):
    secure_hub.store_url = hub.store_url
    assert "from https to http" in refused(HF_ENDPOINT=secure_hub.url, SSL_CERT_FILE=str(certificate))
    assert hub.seen == []


class Proxy:
    """Passes connections on; remembers what it was asked."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.heads = self.listener.getsockname()[1], []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.pass_on, args=(client,), daemon=True).start()

    def pass_on(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        self.heads.append(head.decode())
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        place = target if method == "CONNECT" else target.split("/")[2]
        upstream = socket.create_connection(place.split(":"))
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            upstream.sendall(head.replace(target.encode(), ("/" + target.split("/", 3)[3]).encode(), 1))
        threading.Thread(target=self.copy, args=(client, upstream), daemon=True).start()
        self.copy(upstream, client)

    @staticmethod
    def copy(source, target):
        try:
            while part := source.recv(65536):
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy():
    server = Proxy()
    yield server
    server.listener.close()


def test_a_proxy_for_http(hub, fetch, proxy):
    fetch(http_proxy=f"http://me:secret@127.0.0.1:{proxy.port}")
    assert len(proxy.heads) == len(hub.seen) == 4
    assert all("Proxy-Authorization: Basic bWU6c2VjcmV0" in head for head in proxy.heads)
    fetch(http_proxy=f"http://127.0.0.1:{proxy.port}", no_proxy="127.0.0.1")
    assert len(proxy.heads) == 4


def test_a_proxy_for_https_is_a_tunnel(secure_hub, fetch, proxy, certificate):
    fetch(HF_ENDPOINT=secure_hub.url, SSL_CERT_FILE=str(certificate), https_proxy=f"127.0.0.1:{proxy.port}")
    assert len(proxy.heads) == 4 and all(head.startswith("CONNECT 127.0.0.1:") for head in proxy.heads)


# --- `quire models`


def test_the_list(hub, quire, fetch, cache, folder_files):
    empty = quire("models")
    assert empty.returncode == 0 and empty.stdout == "" and "no models in" in one_line(empty.stderr)
    hub.models["org/tiny"] = folder_files
    fetch()
    fetch("org/tiny")
    done = quire("models")
    assert done.returncode == 0, done.stderr
    head, folder, file = done.stdout.splitlines()
    assert head.split() == ["name", "revision", "size", "files"]
    assert folder.split()[:2] == ["org/tiny", "main"] and folder.endswith("4 files")
    assert file.split()[:2] == [NAME, "main"] and file.endswith("kB  " + FILE)
    models = json.loads(quire("models", "--json").stdout)
    assert [model["name"] for model in models] == ["org/tiny", NAME]
    assert models[1]["files"] == [FILE] and models[1]["commit"] == COMMIT
    assert models[1]["bytes"] == os.path.getsize(pathlib.Path(models[1]["path"]) / FILE)


def test_removing(hub, quire, fetch, cache):
    hub.revisions["v1"] = "1" * 40
    fetch()
    fetch(f"{NAME}@v1")
    done = quire("models", "remove", f"{NAME}@v1")
    assert done.returncode == 0 and done.stdout == f"removed {NAME}@v1, 0 bytes\n", done
    assert len(blobs(cache)) == 1
    done = quire("models", "remove", f"{NAME}:{FILE}")
    assert done.returncode == 0 and "kB" in done.stdout
    assert list(cache.glob("models--*")) == []
    for name in (NAME, f"{NAME}@v1", f"{NAME}:{FILE}"):
        done = quire("models", "remove", name)
        assert done.returncode == 2 and f"{name} is not in the cache" in one_line(done.stderr)
    fetch()
    assert quire("models", "remove", NAME).returncode == 0
    assert list(cache.glob("models--*")) == []


@pytest.mark.parametrize("command", ["fetch", "remove"])
def test_what_is_no_name_is_said(quire, command):
    done = quire("models", command, "/tmp")
    assert done.returncode == 2 and "is no model's name" in one_line(done.stderr)


# --- other programs


def test_the_cache_is_shared_with_hugging_faces_own_program(hub, fetch, variables, cache, folder_files, gguf):
    pytest.importorskip("huggingface_hub")
    hub.models["org/tiny"] = folder_files
    ours, _ = fetch()
    script = (
        "import sys, huggingface_hub as h\n"
        f"print(h.hf_hub_download('{NAME}', '{FILE}', local_files_only=True))\n"
        "print([str(warning) for warning in h.scan_cache_dir().warnings])\n"
        "for file in ('config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json'):\n"
        "    theirs = h.hf_hub_download('org/tiny', file)\n"
        "print(theirs)\n"
    )
    # It goes by names of hosts, without ports, where it asks whether a redirect leads elsewhere.
    own = {"HF_ENDPOINT": hub.url.replace("127.0.0.1", "localhost"), "HF_HUB_DISABLE_XET": "1"}
    env = environment(**{**variables, **own})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    found, warnings, theirs = done.stdout.splitlines()
    assert found == str(ours) and warnings == "[]"
    calls = len(hub.seen)
    assert fetch("org/tiny", HF_HUB_OFFLINE="1")[0] == pathlib.Path(theirs).parent
    assert fetch("org/tiny")[0] == pathlib.Path(theirs).parent
    assert len(hub.seen) == calls + 1, "nothing but the list was asked for"


def test_what_is_said_never_lands_in_a_file(hub, variables, cache, gguf):
    """A program whose output is closed gets its files at descriptors that others take for the output."""
    command = ["sh", "-c", f'exec "$0" models fetch {NAME} >&- 2>&-', QUIRE]
    assert subprocess.run(command, env=environment(**variables), timeout=60).returncode == 0
    (blob,) = (path for path in cache.glob("models--*/snapshots/*/*.gguf"))
    assert blob.read_bytes() == gguf
