"""The program of an HTTP process."""

from __future__ import annotations

import socket

import pytest

from cmdlog.api.processes.process_link import make_pair
from cmdlog.api.processes.process_set import make_order
from cmdlog.child_process import ChildProcess, encode_order
from cmdlog.cli.server.serve import HTTP_PROCESS
from cmdlog.node.settings import Settings
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def test_a_process_without_its_node_ends() -> None:
    """Its links are all that it serves for: it ends in order when they do, whatever it was at."""
    (control, control_there), (calls, calls_there) = make_pair(), make_pair()
    with socket.create_server(("127.0.0.1", 0)) as listener, control, calls:
        fds = [listener.fileno(), control_there.fileno(), calls_there.fileno()]
        with control_there, calls_there:
            order = encode_order(make_order(Settings(http_processes=1)))
            child = ChildProcess(HTTP_PROCESS, *map(str, fds), pass_fds=fds, stdin=order)
        with child:
            control.settimeout(PATIENCE_S)
            assert control.recv(1), "it reports its counts: it serves"
            control.close()
            assert child.wait(PATIENCE_S) == 0
