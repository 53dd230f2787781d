"""An HTTP process of `cmdlog serve --http-processes`: its arguments are descriptors.

The first is of the listening socket, then come the two links. One rule: only `cmdlog.api.processes.process_set` starts it.
"""

from __future__ import annotations

import socket
import sys

import orjson

from cmdlog.api.processes.process_main import serve_as_process
from cmdlog.api.processes.process_set import read_order
from cmdlog.cli.logging_setup import configure_logs


def main() -> None:
    """Serves until the node sends STOP, or is gone."""
    listener, control, calls = (socket.socket(fileno=int(number)) for number in sys.argv[1:4])
    settings = read_order(orjson.loads(sys.stdin.buffer.readline()))
    configure_logs(settings.log_format)
    serve_as_process(settings, listener=listener, control=control, calls=calls)
