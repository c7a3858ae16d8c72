"""`quire serve` as a program: how it starts and ends, who may call, what it refuses, and who is let go."""

import contextlib
import http.client
import json
import re
import select
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


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Short bodies, a second for each request, and a log of everything."""
    limits = ["--max-body-bytes", 1000, "--run-timeout", 1, "--log-level", "debug"]
    with serve(tmp_path_factory.mktemp("limited"), *limits) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Keys from everywhere that they may come from."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text("# ours\nfirst name=alice\nsecond salt\n")
    arguments = ["--api-key-file", folder / "keys", "--api-key", "third", "--metrics-key", "fourth"]
    arguments += ["--log-level", "debug"]
    with serve(folder, *arguments, QUIRE_API_KEY="fifth", QUIRE_ADMIN_API_KEY="sixth") as running:
        yield running


@contextlib.contextmanager
def streaming(server, headers={}, **more):
    """A long answer, of which the first part has come."""
    with server.open("POST", "/generate", {**LONG, **more}, **headers) as response:
        assert response.status == 200
        assert response.readline().startswith(b"data: ")
        yield response


@contextlib.contextmanager
def asked(server, body):
    """A call whose answer nobody reads."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/generate", json.dumps(body))
        yield


def running(server, **headers):
    return server.get("/v1/loads", **headers).json()["loads"][0]["num_running_reqs"]


def waiting(server, **headers):
    return server.get("/v1/loads", **headers).json()["loads"][0]["num_waiting_reqs"]


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


def test_keys(keyed):
    for path in ["/", "/health", "/health_generate"]:
        assert keyed.get(path).status == 200, path
    for path in ["/v1/models", "/server_info", "/model_info", "/get_load", "/v1/loads", "/metrics"]:
        assert keyed.get(path).status == 401, path
        assert keyed.get(path, Authorization="Bearer wrong").status == 401, path
    for path in ["/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/abort_request"]:
        refused = keyed.post(path, {})
        assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer", path
    for key in ["first", "second", "third", "fifth"]:
        assert keyed.get("/v1/models", Authorization=f"Bearer {key}").status == 200, key
        assert keyed.get("/v1/models", **{"X-API-Key": key}).status == 200, key
    assert keyed.get("/metrics", Authorization="Bearer fourth").status == 200
    assert keyed.get("/metrics", Authorization="Bearer first").status == 401
    for key, status in {"first": 403, "sixth": 200}.items():
        for path, body in {"/flush_cache": {}, "/abort_request": {"abort_all": True}}.items():
            assert keyed.post(path, body, Authorization=f"Bearer {key}").status == status, (key, path)
    urgent = {**SHORT, "priority": 1}
    with streaming(keyed, headers={"Authorization": "Bearer first"}, rid="mine") as mine:
        assert keyed.post("/abort_request", {"rid": "mine"}, Authorization="Bearer third").status == 200
        assert keyed.post("/generate", urgent, Authorization="Bearer third").status == 403
        mine.readline()  # the end of the first event
        assert all(b'"finish_reason":null' in mine.readline() + mine.readline() for _ in range(9)), "it goes on"
        assert keyed.post("/abort_request", {"rid": "mine"}, Authorization="Bearer first").status == 200
        assert last_event(mine)["meta_info"]["finish_reason"]["type"] == "abort"
    assert keyed.post("/generate", urgent, Authorization="Bearer sixth").status == 200
    log = keyed.log.read_text()
    assert re.search(r"GET /v1/models 200, \d+ ms, peer 127\.0\.0\.1:\d+, key alice, id req-\w+\n", log)
    assert ", key key-2, " in log and ", key admin, " in log
    assert not any(key in log for key in ["first", "second", "third", "fourth", "fifth", "sixth", "wrong"])


def test_the_log_has_no_prompts(limited):
    assert limited.post("/generate", {**SHORT, "text": "a private matter"}).status == 200
    assert limited.post("/v1/completions", {"prompt": "a private matter", "n": 0}).status == 400
    assert limited.post("/v1/completions", {"prompt": "a", "n": "a private matter"}).status == 400
    assert limited.post("/v1/completions", '{"prompt": "a private matter').status == 400
    limited.wait_until(lambda: "POST /v1/completions 400" in limited.log.read_text())
    log = limited.log.read_text()
    assert re.search(r"info: POST /generate 200, \d+ \+ 2 tokens, \d+ ms", log)
    assert "private" not in log


def test_the_log_tells_who_asked_and_why_it_was_refused(tmp_path):
    with serve(tmp_path, "--log-format", "json") as server:
        named = server.post("/generate", {**SHORT, "sampling_params": {"n": "x"}}, **{"X-Request-Id": "trace-7"})
        assert named.status == 400 and named.headers["X-Request-Id"] == "trace-7"
        assert server.get("/health", **{"X-Request-Id": "not one word"}).headers["X-Request-Id"].startswith("req-")
        with socket.create_connection(("127.0.0.1", server.port)) as broken:
            broken.sendall(b"nonsense\r\n\r\n")
            assert b"\r\nx-request-id: req-" in broken.recv(4096)
        with streaming(server):
            pass
        server.wait_until(lambda: "aborted" in server.log.read_text())
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert all({"time", "level"} <= line.keys() for line in lines)
        (refused,) = [line for line in lines if line.get("id") == "trace-7"]
        assert refused["status"] == 400 and refused["path"] == "/generate" and refused["peer"].startswith("127.0.0.1:")
        assert refused["reason"].startswith("sampling_params.n: expected")
        assert any(line.get("status") == 400 and "does not begin with a method" in line["reason"] for line in lines)
        (left,) = [line for line in lines if "aborted" in line]
        assert left["aborted"] == "the client left" and left["status"] == 200


@pytest.mark.parametrize("level, said", [("warn", 1), ("error", 0)])
def test_every_line_of_a_json_log_is_json_when_memory_is_tight_too(level, said):
    options = ["--host", "127.0.0.1", "--port", 0, "--log-format", "json", "--log-level", level]
    refused = quire("serve", *options, "--max-total-tokens", 1 << 30)
    most = int(re.search(r"enough for (\d+) tokens", refused.stderr)[1])
    command = map(str, [QUIRE, "serve", *options, "--max-total-tokens", most * 9 // 10])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(command), **pipes, env=environment()) as server:
        assert "ready on" in server.stdout.readline()
        server.terminate()
        lines = [json.loads(line) for line in server.stderr]
    assert server.returncode == 0
    assert sum("memory is tight: the keys and values of" in line["message"] for line in lines) == said


def make_certificate(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def shown_certificate(port):
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


def test_tls(tmp_path):
    certificate, key = make_certificate(tmp_path)
    with started("--ssl-certfile", certificate, "--ssl-keyfile", key) as process:
        port = int(re.search(r"https://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        connection.request("POST", "/generate", json.dumps(SHORT))
        answer = json.loads(connection.getresponse().read())
        assert answer["meta_info"]["completion_tokens"] == 2
        connection.close()
        plain = Server(process, port, None).get("/health")
        assert plain.status == 400 and "this port speaks TLS" in plain.json()["error"]["message"]

        first = certificate.read_text().strip()
        make_certificate(tmp_path)
        assert shown_certificate(port) == first
        process.send_signal(signal.SIGHUP)
        said = ""
        while "the certificate was read again" not in said:
            said = process.stderr.readline()
        assert shown_certificate(port) == certificate.read_text().strip() != first
        second = certificate.read_text().strip()
        certificate.write_text("broken")
        process.send_signal(signal.SIGHUP)
        while "the certificate stays as it was" not in said:
            said = process.stderr.readline()
        assert str(certificate) in said
        assert shown_certificate(port) == second
        process.terminate()
        assert process.wait(30) == 0


# --- what a stranger may hold up


def part_of_a_body(port, path, declared, sent, source="127.0.0.2", headers=""):
    """A connection from elsewhere on which a body stops before its end."""
    connection = socket.create_connection(("127.0.0.1", port), source_address=(source, 0), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {declared}\r\n{headers}\r\n"
    connection.sendall(head.encode() + b"x" * sent)
    return connection


def test_strangers_hold_up_nobody(keyed):
    """Without a key, on many sockets, all but one byte of a large body: refused by the head, and callers do not notice."""
    with contextlib.ExitStack() as held:
        for path in ["/generate", "/nothing", "/v1/chat/completions", "/health"] * 8:
            connection = held.enter_context(part_of_a_body(keyed.port, path, 32 << 20, 100_000))
            status = connection.recv(4096).split()[1]
            assert status in (b"401", b"404", b"405"), (path, status)
        for path in ["/abort_request", "/tokenize", "/flush_cache"]:
            key = "Authorization: Bearer first\r\n"
            large = held.enter_context(part_of_a_body(keyed.port, path, 32 << 20, 0, headers=key))
            assert large.recv(4096).startswith(b"HTTP/1.1 413"), path
        assert keyed.post("/generate", SHORT, Authorization="Bearer first").status == 200


def test_one_peer_holds_up_itself_alone(server):
    """Where no key is asked for, the bodies of one address have a budget of their own."""
    with contextlib.ExitStack() as held:
        lengths = [(32 << 20) - 1] * 4 + [1000]
        ends = [held.enter_context(part_of_a_body(server.port, "/generate", 32 << 20, length)) for length in lengths]
        refused, _, _ = select.select(ends, [], [], 30)
        assert b"from this address" in refused[0].recv(4096)
        assert server.post("/generate", SHORT).status == 200


def test_heavy_calls_do_not_hold_up_light_ones(server):
    """Objects of a thousand keys, 3 MB each, and long texts: a short call that comes after them is answered before."""
    keys = ",".join(f'"{i}":0' for i in range(1000))
    body = '{"text": "a", "x": [' + ",".join(["{" + keys + "}"] * 380) + "]}"
    text = json.dumps({"prompt": "ab" * 900_000})
    with contextlib.ExitStack() as held:
        heavy = []
        for path, content in [("/tokenize", text), ("/generate", body)] * 4:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
            connection.request("POST", path, content)
            held.callback(connection.close)
            heavy.append(connection.sock)
        assert server.post("/tokenize", {"prompt": "a"}).status == 200
        answered = select.select(heavy, [], [], 0)[0]
        assert heavy[-1] not in answered and len(answered) < len(heavy) // 2, "it waited for its turn behind them"


def test_a_constraint_that_takes_long_to_follow_holds_up_nobody_else(server):
    """Several texts of a call, under a grammar of which every letter may belong to any rule."""
    hostile = {"n": 4, "ebnf": 'root ::= root root root | [a-z] | ""', "max_new_tokens": 400, "min_new_tokens": 400}
    with streaming(server) as others:
        refused = server.post("/generate", {"text": "hello", "sampling_params": hostile})
        assert refused.status == 400
        assert "takes too long to follow" in refused.json()["error"]["message"]
        gap = 0
        for _ in range(20):
            begin = time.monotonic()
            assert others.readline().startswith((b"data: ", b"\n"))
            gap = max(gap, time.monotonic() - begin)
        assert gap < 3


def test_a_stream_gives_the_prompts_logprobs_once(server):
    body = {"text": "word " * 200, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5}
    body["sampling_params"] = {"max_new_tokens": 20, "ignore_eos": True}
    events = [json.loads(event) for event in server.events("/generate", {**body, "stream": True}) if event[0] == "{"]
    assert len(events[0]["meta_info"]["input_token_logprobs"]) >= 200
    assert len(events) > 1 and not any("input_token_logprobs" in event["meta_info"] for event in events[1:])
    assert len(events[-1]["meta_info"]["output_token_logprobs"]) == 20


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


def test_limits_of_size(limited):
    assert limited.post("/generate", {**SHORT, "text": "a" * 2000}).status == 413
    assert limited.post("/generate", SHORT).status == 200
    assert limited.get("/health", **{"X-Long": "a" * 20_000}).status == 431


def test_pages_of_others_may_not_call_unless_told(server, tmp_path):
    origin, other = "https://chat.example", "http://localhost:8080"
    refused = server.get("/health", Origin=origin)
    assert refused.status == 403 and refused.headers["Access-Control-Allow-Origin"] is None
    assert server.get("/health", Origin=f"http://127.0.0.1:{server.port}").status == 200, "its own page"
    assert server.get("/health", Host="evil.example").status == 403, "a name that was made to point here"
    assert server.get("/health", Host=f"localhost:{server.port}").status == 200
    allowed = ["--allow-origin", origin, "--allow-origin", other, "--api-key", "secret"]
    with serve(tmp_path, *allowed) as open_to_two:
        for one in [origin, other]:
            wanted = "authorization,content-type,x-stainless-os,x-stainless-retry-count"
            asked = open_to_two.call(
                "OPTIONS", "/v1/chat/completions", Origin=one, **{"Access-Control-Request-Headers": wanted}
            )
            assert asked.status == 204 and asked.headers["Access-Control-Allow-Origin"] == one
            assert asked.headers["Access-Control-Allow-Headers"].replace(" ", "") == wanted
            answer = open_to_two.get("/health", Origin=one)
            assert answer.headers["Access-Control-Allow-Origin"] == one
            assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"]
        assert open_to_two.get("/health", Origin="https://other").status == 403


def test_only_json_is_read_and_state_changes_by_post(server):
    for kind in ["application/x-www-form-urlencoded", "text/plain"]:
        refused = server.post("/generate", SHORT, **{"Content-Type": kind})
        assert refused.status == 415 and "-H 'Content-Type: application/json'" in refused.json()["error"]["message"]
        assert server.post("/flush_cache", "", **{"Content-Type": kind}).status == 200, "an empty body is fine"
    assert server.get("/flush_cache").status == 405
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("POST", "/generate", json.dumps(SHORT))  # without a type
        assert connection.getresponse().status == 200


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


def test_one_key_leaves_half_of_the_queue_to_others(tmp_path):
    first, second = {"Authorization": "Bearer first"}, {"Authorization": "Bearer second"}
    keys = ["--api-key", "first", "--api-key", "second"]
    with serve(tmp_path, *keys, "--max-running-requests", 2, "--max-queued-requests", 2) as server:
        with streaming(server, first), streaming(server, first):
            refused = server.post("/generate", SHORT, **first)
            assert refused.status == 503 and "2 requests of this key" in refused.json()["error"]["message"]
            assert refused.headers["Retry-After"]
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as other:
                other.request("POST", "/generate", json.dumps(SHORT), second)
                server.wait_until(lambda: waiting(server, **second) == 1)
        server.wait_until(lambda: server.post("/generate", SHORT, **first).status == 200)


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


def test_running_has_an_end(limited):
    begin = time.monotonic()
    answer = limited.post("/v1/completions", {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}).json()
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
