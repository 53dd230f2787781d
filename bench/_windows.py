"""Clients that each keep a window of calls unanswered, in a process of their own: `python -m bench._windows`.

One rule: a call is bytes that were made before the clock started, and of an answer only its end is looked for, so that both
servers meet the same client. cmdlog gets lines of a `/v1/batch` stream that stays open (requests on one connection would be
answered one after the other); PostgreSQL a Bind, an Execute and a Sync of one prepared statement, as libpq's pipeline mode sends
them: each transfer is a transaction of its own, answered when it is durable.

Order: {"wire": "cmdlog" | "postgres", "port", "calls": [[branch, source, target, amount]], "clients", "window", "seconds"}.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import orjson
import uvloop

from bench._load import run_module
from cmdlog.whole_line_stdout import answer

STREAM = b"POST /v1/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
NAMES = ("branch", "source", "target", "amount")
RECEIVE_BYTES = 1 << 16
Call = Sequence[int]  # as NAMES
WireName = Literal["cmdlog", "postgres"]


def run_windows(wire: WireName, port: int, calls: Sequence[Call], **load: float) -> dict[str, float]:
    """As many calls as go through in the time, counted when answered: `calls`, `seconds`. Raises: CalledProcessError."""
    return run_module("bench._windows", orjson.dumps({"wire": wire, "port": port, "calls": calls, **load}))  # type: ignore[no-any-return]


class Wire(NamedTuple):
    """What goes over a connection."""

    opening: bytes
    greetings: int  # answers to the opening
    encode: Callable[[Call], bytes]
    frame: Callable[[bytes], bytes]  # around calls that are sent together
    answered: bytes  # the end of each answer, and of nothing else
    failed: bytes


def _line(call: Call) -> bytes:
    return orjson.dumps({"procedure": "transfer", "params": dict(zip(NAMES, call, strict=True))}) + b"\n"


def _message(kind: bytes, body: bytes) -> bytes:
    """A message of PostgreSQL's protocol, version 3."""
    return kind + struct.pack("!i", len(body) + 4) + body


def _execution(call: Call) -> bytes:
    values = b"".join(struct.pack("!i", len(text)) + text for text in (b"%d" % value for value in call))
    return _message(b"B", b"\0t\0" + struct.pack("!hh", 0, len(call)) + values + bytes(2)) + EXECUTE + SYNC


EXECUTE, SYNC = _message(b"E", b"\0" + bytes(4)), _message(b"S", b"")
HELLO = _message(b"", struct.pack("!i", 3 << 16) + b"user\0bench\0database\0postgres\0\0")
PREPARE = _message(b"P", b"t\0SELECT transfer($1, $2, $3, $4)\0" + bytes(2)) + SYNC
WIRES: dict[WireName, Wire] = {
    "cmdlog": Wire(STREAM, 0, _line, lambda lines: b"%x\r\n%b\r\n" % (len(lines), lines), b"}\n", b'{"error"'),
    "postgres": Wire(HELLO + PREPARE, 2, _execution, bytes, b"Z\0\0\0\5I", b"SERROR"),
}


async def _client(order: dict[str, Any], calls: Iterator[bytes], start: asyncio.Barrier) -> tuple[int, float, float]:
    """One connection; how many calls were answered, when the first was sent, when the last was answered."""
    wire = WIRES[order["wire"]]
    reader, writer = await asyncio.open_connection("127.0.0.1", order["port"])
    writer.write(wire.opening)
    held, count, open_calls, began, due = b"", 0, wire.greetings, 0.0, 0
    while open_calls or not began:
        if open_calls:
            held += await reader.read(RECEIVE_BYTES)
            if wire.failed in held or reader.at_eof():
                raise ConnectionError(f"a call failed, or the server left: {held[:300]!r}")
            due = held.count(wire.answered)
            held = held[1 - len(wire.answered) :]  # less than a whole end
            open_calls -= due
        if began:
            count += due
        elif not open_calls:
            await start.wait()
            began, due = time.perf_counter(), order["window"]
        if due and began and time.perf_counter() < began + order["seconds"]:
            writer.write(wire.frame(b"".join(itertools.islice(calls, due))))
            open_calls += due
    writer.close()
    return count, began, time.perf_counter()


async def _run(order: dict[str, Any]) -> dict[str, float]:
    clients = order["clients"]
    encoded, start = [WIRES[order["wire"]].encode(call) for call in order["calls"]], asyncio.Barrier(clients)
    works = [itertools.cycle(encoded[number::clients]) for number in range(clients)]
    counts, begins, ends = zip(*await asyncio.gather(*(_client(order, work, start) for work in works)), strict=True)
    return {"calls": sum(counts), "seconds": max(ends) - min(begins)}


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer(orjson.dumps(runner.run(_run(order))))


if __name__ == "__main__":
    main()
