"""A server that plays the part of `quire serve` for the page's tests: every answer, its pace, the way its bytes are cut
and every failure are what the test says. It serves the page under the strictest policy that the page must bear: its one
script and its one style by their hashes, and calls to its own origin."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import socket
import threading
import time

from program import ROOT

PAGE = ROOT / "web" / "index.html"
MODEL = "fake-model"


def policy(page):
    """The Content-Security-Policy that allows this page and nothing else."""

    def hashed(tag):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    own = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}; {own}"


def event(**fields):
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **fields}
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def choice(delta, reason=None):
    return [{"index": 0, "delta": delta, "finish_reason": reason}]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    @property
    def play(self):
        return self.server.play

    def do_GET(self):
        if self.path == "/":
            page = PAGE.read_text()
            self.reply(200, page, "text/html; charset=utf-8", {"Content-Security-Policy": policy(page)})
        elif self.path == "/metrics" and self.allowed(self.play.metrics_key or self.play.api_key):
            self.reply(200, self.play.metrics(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models" and self.play.loading:
            self.reply(503, {"error": {"message": "the model is still being loaded"}}, headers={"Retry-After": "1"})
        elif self.path == "/v1/models" and self.allowed(self.play.api_key):
            self.reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif self.path not in ("/metrics", "/v1/models"):
            self.reply(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed(self.play.api_key):
            return
        self.play.requests.append(body)
        if self.play.refusal:
            status, message, headers = self.play.refusal
            error = {"message": message, "type": "error", "param": None, "code": None}
            self.reply(status, {"error": error}, headers=headers)
        else:
            self.stream(body)

    def allowed(self, key):
        if not key or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self.reply(401, {"error": {"message": "the key is missing or wrong"}}, headers={"WWW-Authenticate": "Bearer"})
        return False

    def reply(self, status, body, kind="application/json", headers=None):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            whole = self.write_events(body)
        except OSError:
            self.play.gone.set()
            whole = False
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not whole

    def write_events(self, body):
        """False where the test wants the connection to break."""
        self.write(event(choices=choice({"role": "assistant", "content": ""})))
        if self.play.thought:
            self.write(event(choices=choice({"reasoning_content": self.play.thought})))
        pieces = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+", self.play.answer)
        for at, piece in enumerate(pieces):
            if at == self.play.break_after:
                return False
            self.write(event(choices=choice({"content": piece})))
            time.sleep(self.play.pace)
        self.write(event(choices=choice({}, self.play.reason)))
        if self.play.error_at_end:
            self.write(f"data: {json.dumps({'error': {'message': self.play.error_at_end}})}\n\n".encode())
        prompt = {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16}}
        if body.get("stream_options", {}).get("include_usage"):
            self.write(event(choices=[], usage={**prompt, "completion_tokens": len(pieces)}))
        self.write(b"data: [DONE]\n\n")
        return True

    def write(self, data):
        data = data.replace(b"\n", self.play.line_end)
        step = self.play.cut or len(data)
        for at in range(0, len(data), step):
            part = data[at : at + step]
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()
            if self.play.cut:
                time.sleep(0.0005)  # so that each part is a packet and reaches the page alone


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.connections = []

    def process_request(self, request, address):
        self.connections.append(request)
        super().process_request(request, address)

    def handle_error(self, request, address):
        pass  # browsers leave when they like


class FakeServer:
    """What it plays, changed by a test at any time."""

    def __init__(self):
        self.reset()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.play = self
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def reset(self):
        self.answer = "The sky is blue."
        self.thought = ""  # comes before the answer
        self.pace = 0.0  # seconds after each piece
        self.cut = 0  # bytes per write; 0: whole events
        self.line_end = b"\n"
        self.reason = "stop"
        self.refusal = None  # (status, message, headers)
        self.break_after = -1  # pieces
        self.error_at_end = ""
        self.loading = False  # the model
        self.api_key = self.metrics_key = ""
        self.requests = []  # bodies of chat calls, those refused with 401 left out
        self.gone = threading.Event()  # a client left in the middle of its answer

    def metrics(self):
        values = {"num_running_reqs": 3, "num_queue_reqs": 2, "gen_throughput": 41.5, "cache_hit_rate": 0.75}
        values |= {"token_usage": 0.25, "kv_used_tokens": 16384, "max_total_num_tokens": 65536}
        values |= {"prompt_tokens_total": 12000, "cached_tokens_total": 9000, "generation_tokens_total": 3456}
        values |= {"spec_verify_calls_total": 500, "spec_accept_length": 2.5, "spec_accept_rate": 0.6}
        lines = ["# HELP sglang:num_running_reqs Requests in the batch.", "# TYPE sglang:num_running_reqs gauge"]
        lines += [f'sglang:{name}{{model_name="{MODEL}"}} {value}' for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def close(self):
        """As a server that is gone: what is open breaks, and what comes is refused. May be called twice."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.server.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
