"""Replies that are long, endless or in pieces: they are read in one pass, and given up when they are too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from backstay.link.http import HttpClient, NotHttp, Reply
from backstay.link.replies import ChunkReader

MOST = 1 << 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(*said: bytes, endless: bytes = b"") -> AsyncIterator[HttpClient]:
    """A server that says this to every request, a piece at a time, and goes on without an end if `endless` is given."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in said:
                    writer.write(piece)
                    await writer.drain()
                while endless:
                    writer.write(endless)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, MOST)
    try:
        yield client
    finally:
        client.close()
        server.close()


async def asked(client: HttpClient, line: Callable[[bytes], None] | None = None) -> Reply:
    async with asyncio.timeout(10):
        return await client.post("/x", b"", 10, line=line)


@pytest.mark.parametrize(
    ("begun", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 10_000),
        (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n"),
        (CHUNKED + b"fffffffffff\r\n", b"x" * 65536),
        (CHUNKED, b"0" * 65536),
    ],
)
@pytest.mark.parametrize("by_lines", [False, True])
async def test_a_reply_without_an_end_is_given_up(begun: bytes, endless: bytes, by_lines: bool) -> None:
    async with answering(begun, endless=endless) as client:
        with pytest.raises(NotHttp):
            await asked(client, (lambda line: None) if by_lines else None)


async def test_a_reply_in_many_pieces_is_one_reply_and_the_connection_is_used_again() -> None:
    body = bytes(range(256)) * 1000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    whole = head + body
    async with answering(*(whole[at : at + 999] for at in range(0, len(whole), 999))) as client:
        for _ in range(3):
            assert await asked(client) == Reply(200, body)
    chunks = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in (body[:5], body[5:70_000], body[70_000:]))
    whole = CHUNKED + chunks + b"0\r\n\r\n"
    async with answering(*(whole[at : at + 999] for at in range(0, len(whole), 999))) as client:
        for _ in range(3):
            assert await asked(client) == Reply(200, body)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_chunks_are_the_same_however_they_arrive(size: int) -> None:
    sent = b"5\r\nhello\r\n1;x=y\r\n,\r\n7\r\n world\n\r\n0\r\n\r\n"
    seen: list[bytes] = []
    reader = ChunkReader(seen.append)
    ended = [reader.feed(sent[at : at + size]) for at in range(0, len(sent), size)]
    assert b"".join(seen) == b"hello, world\n"
    assert ended == [False] * (len(ended) - 1) + [True]


@pytest.mark.parametrize("wrong", [b"hello\r\nworld\r\n", b"-1\r\n\r\n", b"\r\n"])
def test_what_is_not_in_chunks_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        ChunkReader(lambda content: None).feed(wrong)
