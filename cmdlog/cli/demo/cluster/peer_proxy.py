"""A network between nodes of the demo: a TCP proxy before each node, which can stop carrying what others send to it.

One rule: a cut is one-way, and loses nothing by itself. Bytes wait, as they do in a kernel whose packets are not acknowledged;
what the two ends make of the silence is theirs to decide. The other direction passes.

A node calls its peers and sends by the connections that it made (`cmdlog/cluster/DECISIONS.md`, 1). So a node before which
bytes are held gets no message of consensus, while its own pass by the proxies of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Final, Self

CHUNK_BYTES: Final = 1 << 16
LOOPBACK: Final = "127.0.0.1"


class PeerProxies:
    """Listens on loopback, on one port for each node, from construction until `close`."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        """`targets`: node -> the port on loopback where it listens for its peers. Raises: OSError."""
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._passes = {node: asyncio.Event() for node in targets}  # set while bytes to the node pass
        self._thread = threading.Thread(target=self._loop.run_forever, name="demo-peer-proxies", daemon=True)
        self._thread.start()
        try:
            # node -> where the others reach it
            self.ports: dict[int, int] = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def cut(self, node: int) -> None:
        """From now on nothing of the others reaches the node."""
        self._loop.call_soon_threadsafe(self._passes[node].clear)

    def heal(self, node: int) -> None:
        """What waited arrives, unless an end has hung up."""
        self._loop.call_soon_threadsafe(self._passes[node].set)

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- the loop --------------------------------------------------------------------------------------------------------

    async def _listen(self) -> dict[int, int]:
        for node in self._targets:
            self.heal(node)
            self._servers.append(await asyncio.start_server(partial(self._connect, node), LOOPBACK, 0))
        return {node: server.sockets[0].getsockname()[1] for node, server in zip(self._targets, self._servers, strict=True)}

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection until an end is closed; then the other one is, too."""
        ends, pumps = [writer], list[asyncio.Task[None]]()
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._targets[node])
                ends.append(far_writer)
                carrying = (_carry(reader, far_writer, self._passes[node]), _carry(far_reader, writer, None))
                pumps += map(asyncio.ensure_future, carrying)
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the proxies are closed; asyncio's streams would log it
            return
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                end.transport.abort()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, passes: asyncio.Event | None) -> None:
    """Carries bytes to the end of the source, while `passes` is set."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            if passes is not None:
                await passes.wait()
            sink.write(data)
            await sink.drain()
