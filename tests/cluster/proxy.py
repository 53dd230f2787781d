"""A network between two programs, as a TCP proxy in this process: slow, one-way, half open, damaging, or gone.

One rule: what it does changes at any moment, for each direction alone, also on connections that exist. `there` is from the one
that calls the proxy to its target, `back` the other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cmdlog.cluster.transport.peer_transport import Address

CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Rule:
    """What happens to the bytes of one direction."""

    mode: str = "pass"  # "hold": they stay where they are; "swallow": they are taken and lost; "twice": each piece comes twice
    delay_s: float = 0.0  # of each piece
    bytes_per_s: float = 0.0  # 0: as many as there are
    flip_at: int = -1  # the lowest bit of this byte of a connection is another one


PASS: Final = Rule()
HOLD: Final = Rule("hold")
SWALLOW: Final = Rule("swallow")
TWICE: Final = Rule("twice")

STEPS_TO_CLOSE: Final = 5  # turns of the loop from an accepted socket to its handler


class Proxy:
    """Listens on loopback from construction until `stop`."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.rules = {"there": PASS, "back": PASS}
        self.accepts = True
        self.connections = 0  # that were accepted
        self.recorded: list[dict[str, bytearray]] = []  # of each connection, what went each way
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready, self._thread = threading.Event(), threading.Thread(target=self._run, name="proxy", daemon=True)
        self.address: Address = ("", 0)
        self._thread.start()
        self._ready.wait()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- any thread ------------------------------------------------------------------------------------------------------

    def set_rules(self, *, there: Rule | None = None, back: Rule | None = None) -> None:
        """From now on."""

        def change() -> None:
            self.rules |= {name: rule for name, rule in (("there", there), ("back", back)) if rule is not None}
            self._wake()

        self._in_loop(change)

    def close_connections(self, *, accepts: bool = True) -> None:
        """Resets all; `accepts` says what happens to the next ones."""

        def close() -> None:
            self.accepts = accepts
            for writer in list(self._writers):
                writer.transport.abort()
            self._wake()

        self._in_loop(close)

    def stop(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self._in_loop(self._stopping.set)
            self._thread.join()

    def _in_loop(self, call: Callable[[], object]) -> None:
        assert self._loop is not None
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()

    # -- the loop --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._changed, self._stopping = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()[:2]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        self.accepts = False
        for _ in range(STEPS_TO_CLOSE):  # one that was accepted last has yet to come to `_connect`
            await asyncio.sleep(0)
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._writers.add(writer)
        try:
            if self.accepts:
                self.connections += 1
                far_reader, far_writer = await asyncio.open_connection(*self.target)
                ends.append(far_writer)
                self._writers.add(far_writer)
                await self._relay(reader, writer, far_reader, far_writer)
        except (OSError, asyncio.CancelledError):  # the proxy stops; asyncio.streams would log it
            return
        finally:
            for end in ends:
                end.transport.abort()
            self._writers.difference_update(ends)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        """Until an end is closed."""
        recorded = {"there": bytearray(), "back": bytearray()}
        self.recorded.append(recorded)
        pumps = [
            asyncio.ensure_future(self._pump("there", reader, far_writer, recorded["there"])),
            asyncio.ensure_future(self._pump("back", far_reader, writer, recorded["back"])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(self, name: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter, recorded: bytearray) -> None:
        """Until an end is closed; then the other one is, too."""
        with contextlib.suppress(OSError):
            while True:
                await self._until_passing(name)
                data = await source.read(CHUNK_BYTES)
                if not data:
                    return
                await self._until_passing(name)
                rule = self.rules[name]
                if pause_s := rule.delay_s + (len(data) / rule.bytes_per_s if rule.bytes_per_s else 0.0):
                    await asyncio.sleep(pause_s)
                data = _flipped(data, rule.flip_at - len(recorded))
                recorded += data
                if rule.mode == "swallow":
                    continue
                sink.write(data * (1 + (rule.mode == "twice")))
                await sink.drain()

    async def _until_passing(self, name: str) -> None:
        assert self._changed is not None
        while self.rules[name].mode == "hold":
            self._changed.clear()
            await self._changed.wait()

    def _wake(self) -> None:
        assert self._changed is not None
        self._changed.set()


def _flipped(data: bytes, at: int) -> bytes:
    """With another bit in byte `at`, if there is one."""
    if not 0 <= at < len(data):
        return data
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
