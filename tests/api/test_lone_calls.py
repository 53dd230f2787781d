"""A caller that is alone: the event loop's thread gives its calls to the disk and waits for none; and the server is killed."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cmdlog.node.sequencing.log_wakeup import ALONE_BEFORE
from cmdlog.wal.system.write_thread import open_write_thread
from tests.api.bankserver import Server
from tests.skips import NO_DIRECT_WRITES

pytestmark = pytest.mark.slow
ACCOUNT = 7


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk, where direct writes are what they are."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def deposit(client: httpx.Client, key: str) -> int:
    """The balance after one more, however often the key was sent before."""
    answer = client.post("/v1/procedures/deposit", json={"account": ACCOUNT, "amount": 1}, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    result: int = answer.json()["result"]
    return result


def writes_directly(pid: int) -> bool:
    """Whether the process has a segment of the log open for direct writes."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path, facts = os.readlink(f"/proc/{pid}/fd/{fd}"), Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
        except FileNotFoundError:
            continue
        flags = int(next(line for line in facts.splitlines() if line.startswith("flags:")).split()[1], 8)
        if "/log/seg-" in path and flags & os.O_DIRECT:
            return True
    return False


def can_write_directly(folder: Path) -> bool:
    """Whether this system and the folder's file system can."""
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    writer = open_write_thread()
    return writer is not None and writer.can_start(str(probe), 4096)


@pytest.mark.parametrize("options", [(), ("--http-processes", "1")], ids=["in the node", "HTTP apart"])
def test_kills_take_no_answer_of_a_lone_caller(folder: Path, options: tuple[str, ...]) -> None:
    """SIGKILL in the middle of its calls, three times: every answered call has its one effect."""
    if not can_write_directly(folder):
        pytest.skip(NO_DIRECT_WRITES)
    answered = 0
    for life in range(3):
        server = Server(folder, *options).wait_ready()
        with httpx.Client(base_url=server.url) as client:
            if life == 0:
                client.post("/v1/procedures/open_account", json={"account": ACCOUNT, "amount": 0}).raise_for_status()
            assert deposit(client, f"{answered}") == answered + 1  # without an answer before: it is done now, once
            answered += 1
            enough = threading.Event()

            def kill(server: Server = server, enough: threading.Event = enough) -> None:
                enough.wait()
                server.process.kill()

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                for number in range(100_000):
                    assert deposit(client, f"{answered}") == answered + 1
                    answered += 1
                    if number == 50 + 31 * life:
                        assert writes_directly(server.process.pid)
                        enough.set()
            except httpx.HTTPError:
                pass
            killer.join()
        server.kill()
    server = Server(folder).wait_ready()
    with httpx.Client(base_url=server.url) as client:
        balance = client.post("/v1/procedures/balance", json={"account": ACCOUNT}).json()["result"]
        assert balance in (answered, answered + 1)
    assert server.stop() == 0
    server.kill()


def test_lone_calls_and_company_take_turns(folder: Path) -> None:
    """One caller, then several, then one again: the ways of writing change, and every call has its one effect."""
    server = Server(folder, "--partitions", "1").wait_ready()
    with httpx.Client(base_url=server.url) as client:
        client.post("/v1/procedures/open_account", json={"account": ACCOUNT, "amount": 0}).raise_for_status()
        total = 0
        for turn in range(6):
            alone = ALONE_BEFORE + 20
            for number in range(alone):
                total += 1
                assert deposit(client, f"{turn}.{number}") == total

            def together(caller: int, turn: int = turn) -> None:
                with httpx.Client(base_url=server.url) as own:
                    for number in range(20):
                        deposit(own, f"{turn}.{caller}.{number}")

            callers = [threading.Thread(target=together, args=(caller,)) for caller in range(4)]
            for thread in callers:
                thread.start()
            for thread in callers:
                thread.join()
            total += 80
        assert client.post("/v1/procedures/balance", json={"account": ACCOUNT}).json()["result"] == total
    assert server.stop() == 0
    server.kill()
