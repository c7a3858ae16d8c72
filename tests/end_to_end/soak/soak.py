#!/usr/bin/env python3
"""A soak of `quire serve`: random calls, valid and not, from many clients that leave and abort when they like, on a pool
of pages that is much too small for them.

    python tests/end_to_end/soak/soak.py --seconds 3600
    QUIRE=build/cuda/app/quire python tests/end_to_end/soak/soak.py --seconds 480 --device cuda --deterministic

Beside them some clients ask the same greedy questions over and over, in different forms: the answers are always the
first one's, to the bit of every logprob (on a GPU with --deterministic), whatever else runs, is cached or retracted.

At the end: every answer was one that may be given, those under a constraint keep it, no request is stuck, the pool is
whole, the counters agree with each other and with what clients have counted, memory has not grown since the first
third, and the server ends when it is told to. A seed repeats what the clients do, not when. Needs numpy.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import served_model  # noqa: E402
from calls import Calls, keeps_constraint  # noqa: E402
from metrics import Metrics  # noqa: E402
from questions import CHUNK, Questions  # noqa: E402
from raw_client import Client, Stuck, request_bytes  # noqa: E402

QUIRE = os.environ.get("QUIRE", str(pathlib.Path(__file__).resolve().parents[3] / "build" / "cpu" / "app" / "quire"))
CONTEXT, POOL, RUNNING, QUEUED, CLIENTS, ASKERS = 1024, 1024, 8, 8, 32, 4
MEBIBYTE = 1 << 20


class Failure(Exception):
    """The server did what it must not do."""


class Server:
    def __init__(self, model, log, device, *more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [QUIRE, "serve", "--model", model, "--host", "127.0.0.1", "--port", self.port, "--log-level", "warn"]
        command += ["--context-length", CONTEXT, "--max-total-tokens", POOL, "--max-running-requests", RUNNING]
        command += ["--max-queued-requests", QUEUED, "--chunked-prefill-size", CHUNK, "--device", device, *more]
        # The address sanitizer keeps freed memory for a while, up to a limit that would look like a leak.
        settings = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=16"}
        self.log = open(log, "wb")
        self.process = subprocess.Popen(list(map(str, command)), stdout=self.log, stderr=self.log, env=settings)

    def alive(self):
        return self.process.poll() is None

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024

    def end(self):
        if self.alive():
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


class Soak:
    def __init__(self, server, seed, same_bits):
        self.server, self.seed = server, seed
        self.client = Client(server.port)
        self.metrics = Metrics(self.client)
        self.questions = Questions(self.client, CONTEXT, same_bits)
        self.counts = collections.Counter()
        self.resident = []  # (time, bytes)

    # --- what one client does next

    async def do_valid(self, calls):
        method, path, body = calls.valid()
        answer = await self.client.call(method, path, body)
        self.expect(answer is not None, f"{path}: the connection ended without an answer", body)
        self.count(path, answer)
        if answer.status == 503:  # the queue is full; or somebody aborted all, and the probe with it
            explained = "retry-after" in answer.headers or path == "/health_generate"
            return self.expect(explained, f"{path}: a 503 without Retry-After", body)
        if self.was_aborted(answer):
            return
        self.expect(answer.status == 200, f"{path}: status {answer.status}: {answer.body[:300]}", body)
        self.expect_whole(path, body, answer)

    def was_aborted(self, answer):
        """By a client that aborted all; an answer that cannot end early says so."""
        return answer.status >= 400 and b"aborted" in answer.body

    def expect_whole(self, path, body, answer):
        if not body or path not in ("/v1/completions", "/v1/chat/completions", "/generate"):
            return
        if not body.get("stream"):
            whole = answer.json()
            self.expect(isinstance(whole, (dict, list)), f"{path}: no object", body)
            kept = keeps_constraint(path, body, whole)
            self.counts["constraints kept"] += kept is True
            return self.expect(kept is not False, f"{path}: the constraint is not kept: {str(whole)[:500]}", body)
        events = answer.events()
        self.expect(events and b"data: [DONE]" in answer.body, f"{path}: a stream without its end", body)
        errors = [event for event in events if "error" in event]
        self.expect(not errors, f"{path}: a stream with an error: {errors[:1]}", body)

    async def do_wrong(self, calls):
        method, path, body = calls.wrong()
        answer = await self.client.call(method, path, body)
        self.expect(answer is not None, f"{path}: the connection ended without an answer", body)
        self.count("wrong", answer)
        self.expect(400 <= answer.status < 500, f"{path}: status {answer.status} for a wrong call", body)
        message = answer.json()
        self.expect(isinstance(message, dict) and message, f"{path}: an error without a body", body)

    async def do_mutated(self, calls):
        method, path, body = calls.valid()
        if not body:
            return
        text = json.dumps(body).encode()
        answer = await self.client.call(method, path, calls.mutated(text))
        if answer is not None:
            self.count("mutated", answer)
            self.expect(answer.status < 500 or answer.status == 503, f"{path}: status {answer.status}", answer.body[:300])

    async def do_garbage(self, calls):
        data = calls.garbage() if calls.chance.random() < 0.5 else calls.mutated(request_bytes(*calls.valid()))
        reader, writer = await self.client.connect()
        try:
            writer.write(data)
            writer.write_eof()  # nothing more comes: the server need not wait for the rest
            received = await asyncio.wait_for(reader.read(1 << 20), 60)
            status = int(received[9:12]) if received.startswith(b"HTTP/1.1 ") else 0
            self.counts[f"garbage {status}"] += 1
            self.expect(status < 500 or status in (501, 503, 505), f"status {status} for garbage", data[:300])
        except asyncio.TimeoutError:
            raise Stuck(data[:300]) from None
        except ConnectionError:
            self.counts["garbage, hung up"] += 1
        finally:
            writer.close()

    async def do_leave(self, calls):
        await self.client.leave(request_bytes(*calls.valid()), calls.chance)
        self.counts["left"] += 1

    async def do_abort(self, calls):
        rid = calls.next_rid()
        task = asyncio.create_task(self.client.call(*calls.generate(rid)))
        await asyncio.sleep(calls.chance.choice([0, 0.001, 0.01, 0.1]))
        all_of_them = calls.chance.random() < 0.02
        await self.client.call("POST", "/abort_request", {"abort_all": True} if all_of_them else {"rid": rid})
        answer = await task
        self.counts["aborted"] += 1
        if answer is not None:
            self.expect(answer.status < 500 or answer.status == 503, f"abort: status {answer.status}", answer.body[:300])

    async def do_slow(self, calls):
        method, path, body = calls.completion()
        body["stream"] = True
        received = await self.client.read_slowly(request_bytes(method, path, body), calls.chance)
        self.counts["slow"] += 1
        self.expect(received is None or received.startswith(b"HTTP/1.1 "), "no answer to a slow reader", received)

    async def do_short(self, calls):
        connections = [await self.client.connect() for _ in range(calls.chance.randint(1, 12))]
        await asyncio.sleep(calls.chance.choice([0, 0.02]))
        for _, writer in connections:
            writer.close()
        self.counts["short connections"] += len(connections)

    async def do_keep_alive(self, calls):
        requests = [calls.small() for _ in range(calls.chance.randint(2, 6))]
        answers = await self.client.keep_alive([request_bytes(*request) for request in requests])
        for (_, path, _), answer in zip(requests, answers):
            self.expect(answer is not None, f"{path}: the connection ended without an answer", requests)
            self.count(path, answer)
            fine = answer.status in (200, 503) or self.was_aborted(answer)
            self.expect(fine, f"{path}: status {answer.status}: {answer.body[:300]}", requests)

    ACTIONS = [(do_valid, 30), (do_leave, 15), (do_abort, 8), (do_wrong, 10), (do_mutated, 10), (do_garbage, 8),
               (do_slow, 4), (do_short, 4), (do_keep_alive, 6)]  # fmt: skip

    def count(self, path, answer):
        self.counts[f"{path} {answer.status}"] += 1

    def expect(self, holds, what, about):
        if not holds:
            raise Failure(f"{what}\n  asked: {str(about)[:1000]}")

    # --- all of them

    async def one_asker(self, number, end):
        """Asks what was asked before, in a random form."""
        chance = random.Random(f"{self.seed}/asker {number}")
        while time.monotonic() < end:
            wrong = await self.questions.ask(chance)
            self.expect(wrong is None, f"a question has another answer than before: {wrong}", "a repeated question")
            self.counts["repeated questions"] += 1

    async def one_client(self, number, end):
        calls = Calls(f"{self.seed}/{number}", CONTEXT)
        actions, weights = zip(*self.ACTIONS)
        while time.monotonic() < end:
            await calls.chance.choices(actions, weights)[0](self, calls)

    async def watch(self, end):
        while time.monotonic() < end:
            if not self.server.alive():
                raise Failure(f"the server ended with status {self.server.process.returncode}")
            self.resident.append((time.monotonic(), self.server.resident_bytes()))
            await asyncio.sleep(0.5)

    async def wait_until_ready(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.server.alive():
            try:
                if (await self.client.call("GET", "/health")).status == 200:
                    return
            except (ConnectionError, AttributeError):
                pass
            await asyncio.sleep(0.1)
        raise Failure("the server did not start")

    async def run(self, seconds):
        await self.wait_until_ready()
        await self.questions.learn()
        end = time.monotonic() + seconds
        tasks = [asyncio.create_task(self.one_client(number, end)) for number in range(CLIENTS)]
        tasks += [asyncio.create_task(self.one_asker(number, end)) for number in range(ASKERS)]
        tasks.append(asyncio.create_task(self.watch(end)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await self.expect_idle()
        await self.expect_whole_pool()
        await self.expect_counters()
        self.expect_flat_memory()

    # --- at the end

    async def expect_idle(self):
        deadline = time.monotonic() + 10
        while True:
            load = (await self.client.call("GET", "/get_load")).json()[0]
            if load["num_reqs"] == 0 and load["num_waiting_reqs"] == 0:
                return
            if time.monotonic() > deadline:
                raise Failure(f"requests are left when all clients have gone: {load}")
            await asyncio.sleep(0.1)

    async def expect_whole_pool(self):
        await self.client.call("POST", "/flush_cache")
        deadline = time.monotonic() + 10
        while True:
            metrics = await self.metrics.read()
            used, free = metrics["sglang:kv_used_tokens"], metrics["sglang:kv_available_tokens"]
            if used == 0 and free == metrics["sglang:max_total_num_tokens"]:
                self.counts["retracted for lack of pages"] = int(metrics["sglang:num_retracted_requests_total"])
                return
            if time.monotonic() > deadline:
                raise Failure(f"the pool is not whole: {used} tokens used, {free} free, "
                              f"{metrics['sglang:max_total_num_tokens']} in all")  # fmt: skip
            await asyncio.sleep(0.1)

    async def expect_counters(self):
        """Of all that happened, and to the last one of what is asked while nobody else is there."""
        for wrong in (await self.metrics.contradictions(self.counts), await self.questions.miscounted(self.metrics)):
            if wrong:
                raise Failure(f"the counters do not add up: {wrong}")

    def expect_flat_memory(self):
        values = [size for _, size in self.resident]
        settled, last = values[len(values) // 3 : len(values) // 2], values[-len(values) // 6 :]
        before, after = statistics.median(settled), statistics.median(last)
        self.memory = f"{before / MEBIBYTE:.1f} MiB after a third, {after / MEBIBYTE:.1f} MiB at the end"
        if after > before * 1.1 + 16 * MEBIBYTE:
            raise Failure(f"resident memory grows: {self.memory}")


def soak(seconds, seed, model=None, device="cpu", deterministic=False, weights="Q8_0", options=()):
    """Runs it; raises Failure or Stuck. Gives the counts of what happened, and a line about memory."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        tiny = model or served_model.write(pathlib.Path(folder) / "tiny.gguf", type=weights, head_dim=64)
        server = Server(tiny, log, device, *(["--deterministic"] if deterministic else []), *options)
        try:
            running = Soak(server, seed, same_bits=deterministic or device == "cpu")
            asyncio.run(running.run(seconds))
        except BaseException:
            server.end()
            sys.stderr.write(log.read_text(errors="replace")[-4000:])
            raise
        status = server.end()
        if status != 0:
            raise Failure(f"the server ended with status {status}: {log.read_text(errors='replace')[-4000:]}")
    return running.counts, running.memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--device", default="cpu", help="as quire serve has it")
    parser.add_argument("--model", help="a model to serve; default: a tiny one, written for the purpose")
    parser.add_argument("--weights", default="Q8_0", help="the type of the tiny model's weights")
    parser.add_argument("--deterministic", action="store_true", help="the server's option")
    parser.add_argument("--server-option", action="append", default=[], metavar="OPTION", help="one more for the server")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    try:
        counts, memory = soak(args.seconds, args.seed, args.model, args.device, args.deterministic, args.weights,
                              args.server_option)  # fmt: skip
    except (Failure, Stuck) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    for what, count in sorted(counts.items()):
        print(f"{count:8}  {what}")
    print(f"resident memory: {memory}")


if __name__ == "__main__":
    main()
