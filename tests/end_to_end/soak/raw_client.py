"""Requests over bare sockets, whole or broken off at any byte: what no client library would send."""

import asyncio
import json
import random

PATIENCE = 120  # seconds for one answer: after that the request is stuck


class Stuck(Exception):
    """An answer that does not end."""


class Broken(Exception):
    """An answer that is none."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of server-sent events, without the last, [DONE], if there is one."""
        data = [line[len(b"data: ") :] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(event) for event in data if event != b"[DONE]"]


def request_bytes(method, path, body=None, headers=()):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def read_answer(reader):
    """A whole answer; None when the connection ends before it begins."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Broken(f"an answer ends inside its head: {error.partial!r}") from None
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split(" ", 2)[1])
    if headers.get("transfer-encoding") == "chunked":
        body = await read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(status, headers, body)


async def read_chunks(reader):
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise Broken("a chunk without an end")
        if size == 0:
            return body


class Client:
    """The server's address, and the ways to use and abuse it."""

    def __init__(self, port):
        self.port = port

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def call(self, method, path, body=None, headers=()):
        """One request on a connection of its own, and its whole answer."""
        return await self.send(request_bytes(method, path, body, headers))

    async def send(self, data):
        """These bytes, and what comes back: an answer, or None when the server hangs up."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            await writer.drain()
            return await asyncio.wait_for(read_answer(reader), PATIENCE)
        except asyncio.TimeoutError:
            raise Stuck(data[:300]) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        finally:
            writer.close()

    async def keep_alive(self, requests):
        """Several requests on one connection, some of them sent before the answer to the one before."""
        reader, writer = await self.connect()
        try:
            for data in requests:
                writer.write(data)
            answers = [await asyncio.wait_for(read_answer(reader), PATIENCE) for _ in requests]
            return answers
        except asyncio.TimeoutError:
            raise Stuck(b"".join(requests)[:300]) from None
        finally:
            writer.close()

    async def leave(self, data, chance: random.Random):
        """Sends all or a part, perhaps reads some of the answer, and hangs up."""
        reader, writer = await self.connect()
        try:
            whole = chance.random() < 0.8
            writer.write(data if whole else data[: chance.randrange(len(data))])
            await writer.drain()
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01, 0.05, 0.3]))
            if chance.random() < 0.5:
                await asyncio.wait_for(reader.read(chance.choice([1, 100, 2000])), 0.5)
        except (asyncio.TimeoutError, ConnectionError):
            pass
        finally:
            if chance.random() < 0.5:
                writer.transport.abort()  # a reset in place of an orderly end
            writer.close()

    async def read_slowly(self, data, chance: random.Random):
        """A client that takes its time; None when it was too slow for the server."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            received = b""
            while part := await asyncio.wait_for(reader.read(512), PATIENCE):
                received += part
                await asyncio.sleep(chance.choice([0, 0.002, 0.02]))
                if received.endswith(b"0\r\n\r\n") or b"content-length" in received[:400].lower():
                    break
            return received
        except asyncio.TimeoutError:
            raise Stuck(data[:300]) from None
        except ConnectionError:
            return None
        finally:
            writer.close()
