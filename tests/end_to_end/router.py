"""`quire serve` workers that can die and return, and SGLang's router in front of them, all on ports of this machine."""

import contextlib
import os
import re
import signal
import subprocess
import sys

from program import MODEL, QUIRE, environment
from served import Server, free_port

NAME = "smol"
# On a GPU ($QUIRE_TEST_DEVICE is cuda) the workers share it.
DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "cpu")
SHARE = ["--mem-fraction-static", 0.3] if DEVICE == "cuda" else ["--max-total-tokens", 8192]
# Small and slow enough that a test can watch them. The log at this level has a line for every answer.
WORKER = ["--device", DEVICE, "--threads", 1, *SHARE, "--served-model-name", NAME, "--log-level", "debug"]
# By default the router needs minutes to notice that a worker is gone, and takes workers out for what callers do wrong.
ROUTER = [
    *("--health-check-interval-secs", 1, "--health-failure-threshold", 2, "--health-success-threshold", 1),
    *("--retry-max-retries", 10, "--retry-initial-backoff-ms", 100, "--disable-circuit-breaker"),
    *("--worker-startup-check-interval", 1),
]


class Running(Server):
    """A program that listens on a port of its own and writes its log to a file."""

    def __init__(self, folder, name):
        port = free_port()
        super().__init__(None, port, folder / f"{name}-{port}.log")
        self.url = f"http://127.0.0.1:{port}"

    def run(self, command):
        with open(self.log, "a") as output:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, env=environment()
            )
        self.wait_until(self.is_healthy, 90)

    def end(self, patience):
        """The exit status. What does not end by itself is killed."""
        self.process.terminate()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Worker(Running):
    def __init__(self, folder, *arguments):
        super().__init__(folder, "worker")
        self.arguments = arguments

    def start(self):
        """May be called again when the worker is gone: it comes back at the same address."""
        place = ["--host", "127.0.0.1", "--port", self.port]
        self.run([QUIRE, "serve", "--model-path", MODEL, *place, *WORKER, *self.arguments])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(10) == -signal.SIGKILL

    def load(self):
        return self.get("/v1/loads").json()["loads"][0]

    def running(self):
        return self.load()["num_running_reqs"]

    def metric(self, name):
        return float(re.search(rf"^sglang:{name}{{.*}} (\S+)$", self.get("/metrics").text, re.M)[1])

    def answers(self):
        """(method, path, status) of all that was answered."""
        found = re.findall(r" (?:debug|info|warning|error): ([A-Z]+) (/\S*) (\d+),", self.log.read_text())
        return [(method, path, int(status)) for method, path, status in found]


class Router(Running):
    def __init__(self, folder, workers, *arguments):
        super().__init__(folder, "router")
        self.count = len(workers)
        place = ["--host", "127.0.0.1", "--port", self.port]
        place += ["--prometheus-host", "127.0.0.1", "--prometheus-port", free_port()]
        urls = ["--worker-urls", *(worker.url for worker in workers)]
        self.command = [sys.executable, "-m", "sglang_router.launch_router", *place, *urls, *ROUTER, *arguments]

    def start(self):
        self.run(self.command)

    def healthy(self, **headers):
        """The addresses of the workers that it would send something to."""
        workers = self.get("/workers", **headers).json()["workers"]
        return {worker["url"] for worker in workers if worker["is_healthy"]}

    def wait_for_all(self, **headers):
        self.wait_until(lambda: len(self.healthy(**headers)) == self.count, 60)


@contextlib.contextmanager
def workers_running(folder, count, *arguments):
    workers = [Worker(folder, *arguments) for _ in range(count)]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        ended = [worker.end(30) for worker in workers if worker.process]
    assert not any(ended), [worker.log.read_text()[-2000:] for worker in workers]


@contextlib.contextmanager
def router_running(folder, workers, *arguments, **headers):
    router = Router(folder, workers, *arguments)
    try:
        router.start()
        router.wait_for_all(**headers)
        yield router
    finally:
        if router.process:
            router.end(20)
