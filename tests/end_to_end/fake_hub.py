"""A hub of models for tests: Hugging Face's HTTP interface, as far as quire uses it, and every way to get it wrong.

Large files lie on a second server (another port), to which the hub redirects; `faults` are taken by that server's
answers, one each, until none are left. Standard library only.
"""

import contextlib
import hashlib
import http.server
import json
import ssl
import threading
import time
import urllib.parse

COMMIT = "1234567890abcdef1234567890abcdef12345678"


def git_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, at_hub = self.server.hub, self.server.is_hub
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        hub.seen.append((self.command, "hub" if at_hub else "store", path, dict(self.headers)))
        if path.startswith("/store/"):
            return self.send_bytes(path.removeprefix("/store/"))
        return self.answer_as_hub(path)

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        headers = {"Content-Length": len(body), "Connection": "close", **dict(headers)}
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def refuse(self, status, code=None):
        self.answer(status, {"X-Error-Code": code} if code else {}, b"no")

    def answer_as_hub(self, path):
        hub = self.server.hub
        if hub.hub_statuses:
            return self.answer(hub.hub_statuses.pop(0))
        if hub.needs_token and self.headers.get("Authorization") != f"Bearer {hub.needs_token}":
            return self.refuse(401, hub.error_code)
        if path.startswith("/api/models/"):
            return self.list_files(path.removeprefix("/api/models/"))
        repository, _, rest = path.removeprefix("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        content = hub.models.get(repository, {}).get(file)
        if content is None:
            return self.refuse(404, "EntryNotFound")
        return self.resolve(repository, hub.revisions.get(commit, commit), file, content)

    def list_files(self, path):
        hub = self.server.hub
        repository, _, revision = path.partition("/revision/")
        if repository not in hub.models:
            return self.refuse(401, hub.error_code)
        if revision not in hub.revisions and revision != COMMIT:
            return self.refuse(404, "RevisionNotFound")
        if hub.listing is not None:
            return self.answer(200, {}, hub.listing)
        commit = hub.revisions.get(revision, revision)
        files = [{"rfilename": name} for name in hub.models[repository]]
        listing = {"id": repository, "sha": commit, "siblings": files}
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    def resolve(self, repository, commit, file, content):
        hub = self.server.hub
        if len(content) < hub.large:  # as a git blob, by the hub itself
            return self.answer(200, {"ETag": f'"{hub.etag or git_id(content)}"', "X-Repo-Commit": commit}, content)
        etag = hub.etag or hashlib.sha256(content).hexdigest()
        size = hub.announced_size if hub.announced_size is not None else len(content)
        place = urllib.parse.quote(f"/store/{repository}/{file}")
        location = {"absolute": hub.store_url + place, "relative": place, "same": hub.url + place}[hub.redirect]
        headers = {"Location": location, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": size, "X-Repo-Commit": commit}
        self.answer(302, headers, b"moved")

    def send_bytes(self, path):
        hub = self.server.hub
        organisation, name, file = path.split("/", 2)
        content = hub.models[f"{organisation}/{name}"][file]
        fault = hub.faults.pop(0) if hub.faults and self.command == "GET" else Whole()
        fault.send(self, content)

    def start_of_range(self):
        text = self.headers.get("Range", "")
        return int(text.removeprefix("bytes=").removesuffix("-")) if text else 0

    def send_part(self, content, ends=None, pause=0, length=True):
        """What was asked for, up to `ends`; then the connection is closed."""
        start = self.start_of_range()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if length:
            self.send_header("Content-Length", str(len(content) - start))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        part = content[start:ends]
        self.close_connection = True
        step = len(part) if not pause else max(1, len(part) // 8)
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(part), step or 1):
                piece = part[at : at + step]
                self.wfile.write(piece if length else b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                time.sleep(pause)
            if not length:
                self.wfile.write(b"0\r\n\r\n")


# --- faults


class Whole:
    def send(self, handler, content):
        handler.send_part(content)


class Cut:
    """The connection ends after so many bytes of the file."""

    def __init__(self, ends):
        self.ends = ends

    def send(self, handler, content):
        handler.send_part(content, ends=self.ends)


class Trickle:
    def send(self, handler, content):
        handler.send_part(content, pause=0.03)


class Chunked:
    def send(self, handler, content):
        handler.send_part(content, pause=0.001, length=False)


class Status:
    def __init__(self, status):
        self.status = status

    def send(self, handler, content):
        handler.answer(self.status)


class IgnoresRange:
    def send(self, handler, content):
        handler.answer(200, {}, content)


class AnotherPart:
    """Not the one that was asked for."""

    def send(self, handler, content):
        handler.answer(206, {"Content-Range": f"bytes 1-{len(content) - 1}/{len(content)}"}, content[1:])


class OtherBytes:
    """A whole answer, with these bytes."""

    def __init__(self, content):
        self.content = content

    def send(self, handler, content):
        handler.answer(200, {"Content-Type": "text/html"}, self.content)


class Silent:
    """Sends so many bytes, then nothing until the client leaves or `held` is set."""

    def __init__(self, ends):
        self.ends, self.begun, self.held = ends, threading.Event(), threading.Event()

    def send(self, handler, content):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: self.ends])
        handler.wfile.flush()
        self.begun.set()
        self.held.wait(10)
        handler.close_connection = True


# --- the hub


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that leave are what is tested


class Hub:
    def __init__(self, certificate=None):
        self.models = {}  # {"ORG/NAME": {path: bytes}}
        self.revisions = {"main": COMMIT}
        self.seen = []  # (method, "hub" or "store", path, headers)
        self.faults, self.hub_statuses = [], []
        self.redirect = "absolute"
        self.needs_token = self.error_code = self.etag = self.announced_size = self.listing = None
        self.large = 1024
        self.servers = [self.start(certificate, True), self.start(certificate, False)]
        scheme = "https" if certificate else "http"
        self.url, self.store_url = (f"{scheme}://127.0.0.1:{server.server_port}" for server in self.servers)

    def start(self, certificate, is_hub):
        server = Server(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.hub, server.is_hub = self, is_hub
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def bodies(self):
        """Of each transfer from the store: where it was asked to begin."""
        transfers = [seen for seen in self.seen if seen[0] == "GET" and seen[2].startswith("/store/")]
        return [headers.get("Range", "whole") for *_, headers in transfers]
