"""A server of our own, quire's or a peer's, on a free port of this machine, for as long as it is measured."""

import contextlib
import http.client
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server(contextlib.AbstractContextManager):
    """command: without --host and --port. Ready when /health says 200."""

    def __init__(self, command):
        self.port = free_port()
        command = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        self.said = tempfile.TemporaryFile()
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.said)
        self.name = Path(command[0]).name
        self.process = subprocess.Popen(command, **quiet)
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def health(self):
        """The status; None while nobody listens."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status
            except OSError:
                return None

    def resident_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024

    def _wait_until_ready(self):
        deadline = time.monotonic() + 120
        while self.health() != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self._last_words()}")
            time.sleep(0.1)

    def _last_words(self):
        self.said.seek(0)
        return self.said.read()[-1000:].decode(errors="replace").strip()
