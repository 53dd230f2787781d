"""The server's socket and address."""

from __future__ import annotations

import socket

import pytest

from cmdlog.api.connections.http_server import listen, url_of
from cmdlog.node.settings import BadSetting
from tests.waiting import PATIENCE_S


def test_a_port_has_one_server() -> None:
    """The second one notices at its start, before it touches anything."""
    with listen("127.0.0.1", 0, silence_max_s=1) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, scheme="http") == f"http://127.0.0.1:{port}"
        with pytest.raises(BadSetting, match="cannot listen"):
            listen("127.0.0.1", port, silence_max_s=1)


def test_a_client_is_queued_before_the_server_accepts() -> None:
    """Who reads the printed address and connects at once is not refused."""
    with (
        listen("127.0.0.1", 0, silence_max_s=1) as listener,
        socket.create_connection(listener.getsockname(), timeout=PATIENCE_S),
    ):
        pass
