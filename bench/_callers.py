"""Callers that follow the leader, in a process of their own: `python -m bench._callers`, until its standard input ends.

One rule: a caller never gives up. A call goes out under its own key until it has a result: what is refused, or whose connection
is lost, goes to the next node after a short pause. So every call has one effect, and what a change of leader costs shows as
refusals, unknown outcomes and the longest time without any result.

Order, as one line of JSON on standard input: {"ports", "requests": [[path, body]], "callers"}. At the end: when each result came
(seconds of the monotonic clock, which all processes share), and the answers that were no result, by what they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from cmdlog.whole_line_stdout import answer
from procedures.samples import bank

PAUSE_S: Final = 0.005
PATIENCE_S: Final = 5.0  # for an answer; then the connection counts as lost
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Answers:
    """What callers saw."""

    results_s: list[float] = field(default_factory=list)  # ascending, on the monotonic clock
    others: list[tuple[float, str]] = field(default_factory=list)  # when, and "refused", "unknown", "lost" or the status

    def longest_gap_s(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """The longest time without a result that ended between the two moments: its seconds, and when it began."""
        gaps = [(b - a, a) for a, b in itertools.pairwise(self.results_s) if begin_s <= b <= end_s]
        return max(gaps, default=(end_s - begin_s, begin_s))

    def count_others(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Answers between the two moments that were no result, by what they were."""
        return dict(Counter(kind for at, kind in self.others if begin_s <= at <= end_s))


@contextmanager
def callers(ports: Sequence[int], calls: Sequence[bank.Call], *, count: int) -> Iterator[Answers]:
    """So many callers at work; what they saw is known afterwards."""
    requests = [(f"/v1/procedures/{name}", orjson.dumps(params).decode()) for name, params in calls]
    order = orjson.dumps({"ports": list(ports), "requests": requests, "callers": count})
    process = subprocess.Popen(
        [sys.executable, "-m", "bench._callers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1],
        start_new_session=True,
    )  # fmt: skip
    found = Answers()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(order + b"\n")
        process.stdin.flush()
        yield found
        seen = orjson.loads(process.communicate(timeout=30)[0])
        found.results_s, found.others = seen["results_s"], [(at, kind) for at, kind in seen["others"]]
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


class _Caller:
    """One call after the other."""

    def __init__(self, name: str, ports: list[int], shared: Answers) -> None:
        """`name` is this caller's alone, for ever: its keys begin with it."""
        self._ports, self._shared, self._name = ports, shared, name
        self._at = 0  # of the port that is called
        self._connection: Connection | None = None

    async def run(self, requests: Iterator[tuple[str, str]]) -> None:
        for count, (path, body) in enumerate(requests):
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            key = f"Idempotency-Key: {self._name}-{count}\r\n"
            request = f"{head}{key}Content-Length: {len(body)}\r\n\r\n{body}".encode()
            while (kind := await self._attempt(request)) != "result":
                self._shared.others.append((time.monotonic(), kind))
                self._at = (self._at + 1) % len(self._ports)
                self._hang_up()
                await asyncio.sleep(PAUSE_S)
            self._shared.results_s.append(time.monotonic())

    async def _attempt(self, request: bytes) -> str:
        try:
            if self._connection is None:
                self._connection = await asyncio.open_connection("127.0.0.1", self._ports[self._at])
        except OSError:
            return "refused"
        try:
            async with asyncio.timeout(PATIENCE_S):
                kind, kept = await _exchange(*self._connection, request)
        except (OSError, EOFError):
            return "lost"
        if not kept:
            self._hang_up()
        return kind

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[str, bool]:
    """One request: "result" or what the answer was, and whether the server keeps the connection."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.index(b"content-length: ") + 16
    body = await reader.readexactly(int(head[at : head.index(b"\r", at)]))
    status, kept = int(head[9:12]), b"connection: close" not in head
    if status == 200:
        return "result", kept
    if b"outcome_unknown" in body:
        return "unknown", kept
    return "refused" if status == 503 else str(status), kept


async def _run(order: dict[str, Any]) -> Answers:
    shared = Answers()
    requests = itertools.cycle([(path, body) for path, body in order["requests"]])
    names = [f"{os.urandom(8).hex()}-{number}" for number in range(order["callers"])]
    tasks = [asyncio.create_task(_Caller(name, order["ports"], shared).run(requests)) for name in names]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return shared


def main() -> None:
    order = orjson.loads(sys.stdin.buffer.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(_run(order))
    answer(orjson.dumps({"results_s": found.results_s, "others": found.others}))


if __name__ == "__main__":
    main()
