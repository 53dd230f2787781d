"""The application of `bench._empty` that only reads and answers, under this project's connection layer: `python -m bench._layer`.

Prints its port. With `--quick` requests go the short way that calls go: below ASGI, answered within `begin`.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from bench._empty import ANSWER, HEADERS, asgi_app
from cmdlog.api.connections.connection_registry import ConnectionRegistry
from cmdlog.api.connections.http_parser import Request
from cmdlog.api.connections.http_server import HttpServer, listen, make_config
from cmdlog.api.connections.request_cycle import CallCycle
from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.settings import Settings


class Quick:
    """Answers every request that is complete."""

    reads: frozenset[bytes] = frozenset()

    def takes(self, _request: Request, _body_bytes: int) -> bool:
        return True

    def begin_call(self, _request: Request, _body: bytes, cycle: CallCycle) -> None:
        cycle.answer(200, list(HEADERS), ANSWER)


async def serve(registry: ConnectionRegistry) -> None:
    listener = listen("127.0.0.1", 0, silence_max_s=registry.settings.write_timeout_s)
    print(listener.getsockname()[1], flush=True)
    registry.start()
    await HttpServer(make_config(registry)).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = Quick() if parser.parse_args().quick else None
    settings = Settings()
    registry = ConnectionRegistry(asgi_app(), settings, connections_max=settings.connections_max, quick=quick)
    settle_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(registry))


if __name__ == "__main__":
    main()
