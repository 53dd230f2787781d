"""What both clients share, between threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from cmdlog import Client
from cmdlog.client.client_base import request_ids


def test_threads_share_the_ids_of_requests() -> None:
    """Each gets ids of its own, whenever the interpreter switches between them."""
    ids, taken = request_ids(), [[""] for _ in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda own=own: own.extend(next(ids) for _ in range(2000))) for own in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len({one for own in taken for one in own[1:]}) == 8 * 2000


def test_a_key_that_is_no_text_is_named() -> None:
    """Before anything is sent; the number that an application has at hand is not made text silently."""
    key: Any = 1815
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError, match="idempotency_key is text, not int"):
        client.invoke("put", {"item": 1}, idempotency_key=key)
