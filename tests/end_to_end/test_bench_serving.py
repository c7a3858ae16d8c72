"""`quire bench serving` against a server of our own that answers by the clock."""

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest
from program import one_line, quire

NAME = "serving/concurrency=4/shared=8/prompt=10-30/output=5"
PAUSE = 0.02  # seconds before each token


class Handler(http.server.BaseHTTPRequestHandler):
    """OpenAI's completions, chats and SGLang's generate: as many tokens as were asked for, one each PAUSE."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        self.answer(200, "application/json", b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.calls.append((self.path, body, self.headers.get("Authorization")))
            number = len(self.server.calls)
            self.server.under_way += 1
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        try:
            if number <= self.server.refuse:
                return self.answer(503, "application/json", b'{"error": {"message": "no room"}}')
            self.stream(body)
        finally:
            with self.server.lock:
                self.server.under_way -= 1

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.events(body):
            self.chunk(b"data: " + event + b"\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, content):
        middle = len(content) // 2  # an event is not always one chunk
        for part in (content[:middle], content[middle:]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

    def events(self, body):
        usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}}
        if self.path == "/generate":
            count = body["sampling_params"]["max_new_tokens"]
            for i in range(1, count + 1):
                time.sleep(PAUSE)
                meta = {"completion_tokens": i, "prompt_tokens": 10, "cached_tokens": 8}
                yield json.dumps({"text": "a" * i, "meta_info": meta}).encode()
        else:
            count = body["max_tokens"]
            if "messages" in body:
                yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).encode()
            for i in range(count):
                time.sleep(PAUSE)
                choice = {"delta": {"content": "a"}} if "messages" in body else {"text": "a"}
                yield json.dumps({"choices": [choice]}).encode()
            yield json.dumps({"choices": [], "usage": {"completion_tokens": count, **usage}}).encode()
        yield b"[DONE]"


@contextlib.contextmanager
def server(refuse=0):
    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    fake = Server(("127.0.0.1", 0), Handler)
    fake.lock, fake.calls, fake.paths, fake.refuse = threading.Lock(), [], [], refuse
    fake.under_way = fake.most_under_way = 0
    thread = threading.Thread(target=fake.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        fake.shutdown()
        thread.join()
        fake.server_close()


def bench(fake, *arguments):
    url = f"http://127.0.0.1:{fake.server_port}"
    return quire("bench", "serving", "--url", url, "--prompt-tokens", "10:30", "--shared-prefix-tokens", 8,
                 "--output-tokens", 5, "--concurrency", 4, *arguments)  # fmt: skip


@pytest.mark.parametrize("endpoint", ["completions", "chat", "generate"])
def test_times_and_tokens_are_the_servers(endpoint, tmp_path):
    record = tmp_path / "serving.json"
    with server() as fake:
        done = bench(fake, "--endpoint", endpoint, "--requests", 12, "--json", record, "--ignore-eos", "--api-key", "k")
    assert done.returncode == 0, done.stderr
    name = NAME if endpoint == "completions" else f"{NAME}/endpoint={endpoint}"
    assert done.stdout.startswith(name + "\n")
    assert "12 requests" in done.stdout and "0 of them failed" in done.stdout
    assert "120 prompt tokens (96 from the cache), 60 output" in done.stdout
    results = {result["name"]: result for result in json.loads(record.read_text())["results"]}
    seconds = results[f"{name}/output"]["median_us"] / 1e6
    assert results[f"{name}/output"]["tokens_per_s"] == pytest.approx(60 / seconds)
    assert seconds >= 3 * 5 * PAUSE  # twelve requests, four at a time
    assert results[f"{name}/first_token"]["median_us"] >= PAUSE * 1e6 * 0.95
    assert results[f"{name}/inter_token"]["median_us"] >= PAUSE * 1e6 * 0.9
    assert results[f"{name}/inter_token/p99"]["median_us"] >= results[f"{name}/inter_token"]["median_us"]
    assert results[f"{name}/request"]["median_us"] >= 5 * PAUSE * 1e6 * 0.95
    assert len(fake.calls) == 12 and fake.most_under_way == 4
    assert {key for _, _, key in fake.calls} == {"Bearer k"}


def test_a_seed_repeats_the_load():
    def bodies(seed):
        with server() as fake:
            assert bench(fake, "--requests", 6, "--seed", seed).returncode == 0
        return sorted(json.dumps(body) for _, body, _ in fake.calls)

    assert bodies(3) == bodies(3) != bodies(4)


def test_refusals_are_counted_and_the_first_is_shown():
    with server(refuse=3) as fake:
        done = bench(fake, "--requests", 8)
    assert done.returncode == 0
    assert "3 of them failed" in done.stdout and "status 503" in done.stdout and "no room" in done.stdout


def test_a_server_that_only_refuses_is_an_error():
    with server(refuse=99) as fake:
        done = bench(fake, "--requests", 2)
    assert done.returncode == 1 and one_line(done.stderr) == "quire: every request failed"


def test_no_server_is_an_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        done = quire("bench", "serving", "--url", f"http://127.0.0.1:{port}", "--requests", 2)
    assert done.returncode == 1 and done.stdout == ""  # no table of zeros
    url = f"http://127.0.0.1:{port}"
    assert one_line(done.stderr) == f"quire: no server at {url}: Connection refused (--url names another)"


def test_idle_connections_stay_beside_the_load():
    with server() as fake:
        done = bench(fake, "--requests", 4, "--idle-connections", 20)
    assert done.returncode == 0, done.stderr
    assert "20 of 20 idle connections are still open" in done.stdout
    assert fake.paths.count("/health") == 20


def test_a_rate_spreads_the_requests():
    with server() as fake:
        done = bench(fake, "--requests", 10, "--request-rate", 20)
    assert done.returncode == 0, done.stderr
    assert "10 requests" in done.stdout and "0 of them failed" in done.stdout
    seconds = float(done.stdout.split(" requests in ")[1].split(" s")[0])
    assert 0.15 < seconds < 5  # ten arrivals, half a second on average


def test_a_time_ends_the_load():
    with server() as fake:
        begin = time.monotonic()
        done = bench(fake, "--seconds", 1)
    assert done.returncode == 0 and 1 <= time.monotonic() - begin < 20
    assert len(fake.calls) > 4


@pytest.mark.parametrize("arguments", [["--url", "https://x"], ["--url", "http://x/v1"], ["--prompt-tokens", "5:"]])
def test_what_cannot_be_meant_is_refused(arguments):
    done = quire("bench", "serving", *arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert one_line(done.stderr).startswith("quire: ")
