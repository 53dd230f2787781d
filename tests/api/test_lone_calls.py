"""A caller that is alone, and a server that is killed in the middle of its calls."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.running import Bank

pytestmark = pytest.mark.slow
ACCOUNT = 7


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def deposit(client: httpx.Client, key: str) -> int:
    """The balance after one more, however often the key was sent before."""
    answer = client.post("/v1/procedures/deposit", json={"account": ACCOUNT, "amount": 1}, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    result: int = answer.json()["result"]
    return result


def test_kills_take_no_answer_of_a_lone_caller(folder: Path) -> None:
    """SIGKILL in the middle of its calls, three times: every answered call has its one effect."""
    answered = 0
    for life in range(3):
        server = Bank(folder)
        with httpx.Client(base_url=server.url) as client:
            if life == 0:
                server.open_account(ACCOUNT)
            assert deposit(client, f"{answered}") == answered + 1  # without an answer before: it is done now, once
            answered += 1
            enough = threading.Event()

            def kill(server: Bank = server, enough: threading.Event = enough) -> None:
                enough.wait()
                server.process.kill()

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                for number in range(100_000):
                    assert deposit(client, f"{answered}") == answered + 1
                    answered += 1
                    if number == 50 + 31 * life:
                        enough.set()
            except httpx.HTTPError:
                pass
            killer.join()
        server.kill()
    server = Bank(folder)
    assert server.call("balance", account=ACCOUNT) in (answered, answered + 1)
    assert server.stop() == 0
