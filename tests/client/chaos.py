"""A proxy that ends connections in the middle of anything, and now and then delivers twice what a client has sent once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.waiting import PATIENCE_S

CHUNK_BYTES = 512


class ChaosProxy:
    """Use it in a `with` block. Each connection lives for a random number of bytes in both directions, about `life_bytes`."""

    def __init__(self, target: str, *, seed: int, life_bytes: int, duplicates: float = 0.0) -> None:
        split = urlsplit(target)
        self._target = (split.hostname, split.port)
        self._chance = random.Random(seed)
        self._life_bytes, self._duplicates = life_bytes, duplicates
        self._ends: set[asyncio.StreamWriter] = set()
        self.killed = self.duplicated = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_S)
        self.url = "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]  # noqa: UP031
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        await asyncio.wait({task for task in asyncio.all_tasks() if task is not asyncio.current_task()} or {self._nothing()})

    def _nothing(self) -> asyncio.Task[None]:
        return self._loop.create_task(asyncio.sleep(0))

    async def _serve(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        try:
            far, far_end = await asyncio.open_connection(*self._target)
        except OSError:
            near_end.transport.abort()
            return
        self._ends |= {near_end, far_end}
        life, sent = [int(self._chance.expovariate(1 / self._life_bytes))], bytearray()
        pumps = [asyncio.create_task(self._pump(*ends, life)) for ends in ((near, far_end, sent), (far, near_end, bytearray()))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.killed += life[0] <= 0
        for end in (near_end, far_end):
            end.transport.abort()
        await asyncio.wait(pumps)
        self._ends -= {near_end, far_end}
        if self._chance.random() < self._duplicates:
            await self._deliver_again(bytes(sent))

    async def _pump(self, source: asyncio.StreamReader, sink: Any, sent: bytearray, life: list[int]) -> None:
        with contextlib.suppress(OSError):
            while life[0] > 0 and (data := await source.read(CHUNK_BYTES)):
                data = data[: life[0]]
                life[0] -= CHUNK_BYTES
                sent += data
                sink.write(data)
                await sink.drain()

    async def _deliver_again(self, data: bytes) -> None:
        """What a confused device on the way may do: the same bytes, on another connection, the answer to nobody."""
        self.duplicated += 1
        with contextlib.suppress(OSError, TimeoutError):
            far, far_end = await asyncio.open_connection(*self._target)
            far_end.write(data)
            try:
                async with asyncio.timeout(0.3):
                    await far.read(CHUNK_BYTES)
            finally:
                far_end.transport.abort()
