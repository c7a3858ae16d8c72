"""`quire serve` as a program: how it starts and ends, who may call, what it refuses, and who is let go."""

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import time

import pytest
from program import MODEL, QUIRE, environment, needs_model, one_line, quire
from served import Server, serve

pytestmark = needs_model

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True}, "stream": True}
SHORT = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One request runs, one waits."""
    limits = ["--max-running-requests", 1, "--max-queued-requests", 1]
    with serve(tmp_path_factory.mktemp("small"), *limits) as running:
        yield running


@contextlib.contextmanager
def streaming(server, **more):
    """A long answer, of which the first part has come."""
    with server.open("POST", "/generate", {**LONG, **more}) as response:
        assert response.status == 200
        assert response.readline().startswith(b"data: ")
        yield response


@contextlib.contextmanager
def asked(server, body):
    """A call whose answer nobody reads."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/generate", json.dumps(body))
        yield


def running(server):
    return server.get("/v1/loads").json()["loads"][0]["num_running_reqs"]


def waiting(server):
    return server.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"]


def last_event(response):
    """Of a stream that is read to its end."""
    events = [line for line in response.read().decode().split("\n\n") if line.startswith("data: {")]
    return json.loads(events[-1].removeprefix("data: "))


# --- start


@contextlib.contextmanager
def started(*arguments, **changes):
    """The process, its lines of standard error still to be read."""
    command = [QUIRE, "serve", "--model-path", MODEL, "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**changes)
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listening(process):
    return re.search(r"listening on http://127\.0\.0\.1:(\d+)/ while .* is loaded", process.stderr.readline())


def test_it_listens_before_the_model_is_loaded():
    with started("--isa", "plain", "--threads", 1) as process:
        server = Server(process, int(listening(process)[1]), None)
        before = []
        while (answer := server.get("/health")).status != 200:
            before.append(answer)
            assert answer.status == 503 and answer.json()["error"]["message"] == "the model is still being loaded"
            assert answer.headers["Retry-After"]
        assert before, "the model was loaded at once"
        said = process.stdout.readline()
        address = f"http://127.0.0.1:{server.port}/"
        assert said.endswith(f" ready on {address} (chat page), OpenAI API at {address}v1\n")


def test_a_signal_while_the_model_is_loaded_ends_it_at_once():
    with started("--isa", "plain", "--threads", 1) as process:
        assert listening(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 128 + signal.SIGINT


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = quire("serve", "--port", port)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in one_line(done.stderr)


def test_bad_options_are_one_line(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("prot = 1\n")
    for arguments, part in [
        (["--config", bad], '"prot" is no option'),
        (["--config", tmp_path / "none"], "none"),
        (["--api-key-file", tmp_path / "none"], "cannot be read"),
        (["--ssl-certfile", tmp_path / "none", "--ssl-keyfile", tmp_path / "none"], "certificate"),
        (["--ssl-certfile", tmp_path / "none"], "both"),
        (["--chat-template", tmp_path / "none"], "cannot be read"),
        (["--model-path", tmp_path / "none"], "none"),
    ]:
        done = quire("serve", "--port", 0, "--log-level", "error", *arguments)
        assert done.returncode == 1 and part in one_line(done.stderr), arguments


def test_a_config_file(tmp_path):
    config = tmp_path / "quire.toml"
    config.write_text('served-model-name = "from-file"\napi-key = ["secret"]\nmax-running-requests = 3\n')
    with serve(tmp_path, "--config", config, "--max-running-requests", 2) as server:
        assert server.get("/server_info").status == 401
        info = server.get("/server_info", Authorization="Bearer secret").json()
        assert info["served_model_name"] == "from-file" and info["max_running_requests"] == 2


def test_help_names_what_there_is():
    text = quire("serve", "--help").stdout
    for part in ["Model:", "Engine:", "Server:", "Access:", "--model-path", "--api-key-file", "--config"]:
        assert part in text, part


# --- who may call


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst\nsecond salt\n")
    arguments = ["--api-key-file", keys, "--api-key", "third", "--metrics-key", "fourth", "--log-level", "debug"]
    arguments += ["--admin-api-key", "sixth"]
    with serve(tmp_path, *arguments, QUIRE_API_KEY="fifth") as server:
        for path in ["/", "/health", "/health_generate"]:
            assert server.get(path).status == 200, path
        for path in ["/v1/models", "/server_info", "/model_info", "/get_load", "/v1/loads", "/flush_cache", "/metrics"]:
            assert server.get(path).status == 401, path
            assert server.get(path, Authorization="Bearer wrong").status == 401, path
        for path in ["/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/abort_request"]:
            refused = server.post(path, {})
            assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer", path
        for key in ["first", "second", "third", "fifth"]:
            assert server.get("/v1/models", Authorization=f"Bearer {key}").status == 200, key
            assert server.get("/v1/models", **{"X-API-Key": key}).status == 200, key
        assert server.get("/metrics", Authorization="Bearer fourth").status == 200
        assert server.get("/metrics", Authorization="Bearer first").status == 401
        for key, status in {"first": 403, "sixth": 200}.items():
            for path, body in {"/flush_cache": {}, "/abort_request": {"abort_all": True}}.items():
                assert server.post(path, body, Authorization=f"Bearer {key}").status == status, (key, path)
        log = server.log.read_text()
        assert not any(key in log for key in ["first", "second", "third", "fourth", "fifth", "sixth", "wrong"])


def test_the_log_has_no_prompts(tmp_path):
    with serve(tmp_path, "--log-level", "debug") as server:
        assert server.post("/generate", {**SHORT, "text": "a private matter"}).status == 200
        assert server.post("/v1/completions", {"prompt": "a private matter", "unknown": 1}).status == 400
        server.wait_until(lambda: "POST /v1/completions 400" in server.log.read_text())
        log = server.log.read_text()
        assert re.search(r"info: POST /generate 200, \d+ \+ 2 tokens, \d+ ms", log)
        assert "private" not in log


def test_tls(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with started("--ssl-certfile", certificate, "--ssl-keyfile", key) as process:
        port = int(re.search(r"https://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        connection.request("POST", "/generate", json.dumps(SHORT))
        answer = json.loads(connection.getresponse().read())
        assert answer["meta_info"]["completion_tokens"] == 2
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            plain = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            plain.request("GET", "/health")
            plain.getresponse()
        process.terminate()
        assert process.wait(30) == 0


# --- what is refused


def test_what_is_not_there(server):
    assert server.get("/nothing").status == 404
    refused = server.call("DELETE", "/generate")
    assert refused.status == 405 and refused.headers["Allow"] == "POST, PUT"
    assert server.call("OPTIONS", "/generate").status == 405
    assert server.call("HEAD", "/health").status == 200


@pytest.mark.parametrize(
    "body, part",
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"text": "a", "text": "b"}', "twice"),
        ('{"text": ' + "[" * 100_000, "deeper"),
        ('{"text": "a", "sampling_params": {"temperature": "hot"}}', "sampling_params.temperature"),
        (b'{"text": "\xff"}', "not JSON"),
        ("{" + ",".join(f'"k{i}": 0' for i in range(5000)) + "}", "keys"),
        ('{"input_ids": [' + "0," * 1_500_000 + "0]}", "values"),
    ],
)
def test_bodies_that_cannot_be_used(server, body, part):
    refused = server.post("/generate", body)
    assert refused.status == 400 and part in refused.json()["error"]["message"]
    refused = server.post("/v1/completions", body)
    assert refused.status == 400 and refused.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_that_is_too_long(server):
    long = {"prompt": "word " * 20_000, "max_tokens": 1}
    refused = server.post("/v1/completions", long)
    assert refused.status == 400 and "8192" in refused.json()["error"]["message"]


def test_limits_of_size(tmp_path):
    with serve(tmp_path, "--max-body-bytes", 1000) as server:
        assert server.post("/generate", {**SHORT, "text": "a" * 2000}).status == 413
        assert server.post("/generate", SHORT).status == 200
        assert server.get("/health", **{"X-Long": "a" * 20_000}).status == 431


def test_nothing_is_allowed_to_other_origins_unless_told(server, tmp_path):
    origin = "https://chat.example"
    assert server.get("/health", Origin=origin).headers["Access-Control-Allow-Origin"] is None
    with serve(tmp_path, "--allow-origin", origin, "--api-key", "secret") as open_to_one:
        asked = open_to_one.call("OPTIONS", "/v1/chat/completions", Origin=origin)
        assert asked.status == 204 and asked.headers["Access-Control-Allow-Origin"] == origin
        assert open_to_one.get("/health", Origin=origin).headers["Access-Control-Allow-Origin"] == origin
        assert open_to_one.get("/health", Origin="https://other").headers["Access-Control-Allow-Origin"] is None


# --- who is let go


def test_a_client_that_leaves_is_let_go(server):
    with streaming(server):
        server.wait_until(lambda: running(server) == 1)
    server.wait_until(lambda: running(server) == 0, 5)
    with asked(server, {**LONG, "stream": False}):  # nothing has come before it leaves
        server.wait_until(lambda: running(server) == 1, 5)
    server.wait_until(lambda: running(server) == 0, 5)
    load = server.get("/v1/loads").json()["loads"][0]
    assert load["num_used_tokens"] == 0, "its pages are back"


def test_a_request_can_be_aborted_by_its_name(server):
    with streaming(server, rid="mine-1") as mine, streaming(server, rid="other") as other:
        assert server.post("/abort_request", {"rid": "mine"}).status == 200
        assert last_event(mine)["meta_info"]["finish_reason"]["type"] == "abort"
        server.wait_until(lambda: running(server) == 1)
        assert server.post("/abort_request", {"abort_all": True}).status == 200
        assert last_event(other)["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_full_queue(small):
    with streaming(small), asked(small, LONG):
        small.wait_until(lambda: waiting(small) == 1)
        for path, body in [("/generate", SHORT), ("/v1/completions", {"prompt": "a"})]:
            refused = small.post(path, body)
            assert refused.status == 503 and refused.headers["Retry-After"]
            assert "the queue is full" in refused.json()["error"]["message"]
    small.wait_until(lambda: running(small) + waiting(small) == 0)
    assert small.post("/generate", SHORT).status == 200


def test_waiting_has_an_end(tmp_path):
    with serve(tmp_path, "--max-running-requests", 1, "--queue-timeout", 0.3) as server:
        with streaming(server):
            begin = time.monotonic()
            refused = server.post("/v1/completions", {"prompt": "a"})
            assert refused.status == 503 and refused.headers["Retry-After"]
            assert 0.3 <= time.monotonic() - begin < 5
            assert "waited too long" in refused.json()["error"]["message"]
            assert server.post("/generate", SHORT).status == 503
            assert running(server) == 1, "the one that runs goes on"
        server.wait_until(lambda: running(server) == 0)
        assert server.post("/generate", SHORT).status == 200


def test_running_has_an_end(tmp_path):
    with serve(tmp_path, "--run-timeout", 1) as server:
        begin = time.monotonic()
        answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}).json()
        assert 1 <= time.monotonic() - begin < 5
        assert answer["choices"][0]["text"] and answer["usage"]["completion_tokens"] > 1


# --- end


def test_running_requests_may_finish():
    with started() as process:
        server = Server(process, int(listening(process)[1]), None)
        process.stdout.readline()
        body = {**LONG, "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        with server.open("POST", "/generate", body) as response:
            response.readline()
            process.terminate()
            health = server.get("/health")
            while health.status == 200:
                health = server.get("/health")
            assert health.status == 503 and health.json()["status"] == "draining"
            refused = server.post("/generate", SHORT)
            assert refused.status == 503 and "shutting down" in refused.json()["error"]["message"]
            assert last_event(response)["meta_info"]["completion_tokens"] == 100
        assert process.wait(10) == 0


@pytest.mark.parametrize("arguments, signals", [(["--shutdown-timeout", 0.5], 1), (["--shutdown-timeout", 60], 2)])
def test_what_does_not_finish_in_time_is_cancelled(arguments, signals):
    with started(*arguments) as process:
        server = Server(process, int(listening(process)[1]), None)
        process.stdout.readline()
        with streaming(server) as response:
            begin = time.monotonic()
            for _ in range(signals):
                process.terminate()
                time.sleep(0.3)
            assert last_event(response)["meta_info"]["finish_reason"]["type"] == "abort"
            assert process.wait(10) == 0
            assert time.monotonic() - begin < 5
