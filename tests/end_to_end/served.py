"""`quire serve` for tests: a server on a free port of this machine, and plain calls to it. Standard library only."""

import contextlib
import http.client
import json
import socket
import subprocess
import time

from program import MODEL, QUIRE, environment


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    def json(self):
        return json.loads(self.text)


class Server:
    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log

    @contextlib.contextmanager
    def open(self, method, path, body=None, timeout=60, **headers):
        """The response while it comes; leaving early closes the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            yield connection.getresponse()
        finally:
            connection.close()

    def call(self, method, path, body=None, **more):
        with self.open(method, path, body, **more) as response:
            return Answer(response)

    def get(self, path, **more):
        return self.call("GET", path, **more)

    def post(self, path, body, **more):
        return self.call("POST", path, body, **more)

    def events(self, path, body, **more):
        """What comes after "data: ", as it comes."""
        with self.open("POST", path, body, **more) as response:
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            for line in response:
                line = line.decode().rstrip("\n")
                if line and not line.startswith(":"):  # a heartbeat
                    assert line.startswith("data: "), line
                    yield line.removeprefix("data: ")

    def wait_until(self, reached, seconds=30):
        deadline = time.monotonic() + seconds
        while not reached():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"not within {seconds} s\n" + self.log.read_text()
            time.sleep(0.02)

    def is_healthy(self):
        try:
            return self.get("/health", timeout=5).status == 200
        except OSError:
            return False


@contextlib.contextmanager
def serve(folder, *arguments, model=MODEL, **changes):
    """Runs until the caller is done; then it must end by itself, without an error."""
    port, log = free_port(), folder / f"serve-{time.monotonic_ns()}.log"
    command = [QUIRE, "serve", "--model-path", model, "--host", "127.0.0.1", "--port", port, *arguments]
    with open(log, "w") as output:
        process = subprocess.Popen(
            list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, env=environment(**changes)
        )
    server = Server(process, port, log)
    try:
        server.wait_until(server.is_healthy, 60)
        yield server
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
