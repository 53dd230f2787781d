"""What both clients share, between threads."""

from __future__ import annotations

import sys
import threading

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
