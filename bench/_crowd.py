"""Clients that hold connections and say little: nothing at all, or a request that never ends."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

FILES_SPARE = 200
HALF_SENT = b"POST /v1/procedures/transfer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 62\r\n\r\n{"


@contextmanager
def crowd(port: int, *, idle: int, half_sent: int) -> Iterator[None]:
    """Holds so many connections of each kind open."""
    _allow_files(idle + half_sent + FILES_SPARE)
    with ExitStack() as stack:
        for number in range(idle + half_sent):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number >= idle:
                sock.sendall(HALF_SENT)
        yield


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
