"""A node on a volume that is full: said, refused, stopped in time, and well again when there is room."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.running import Running
from tests.small_volume import small_volume
from tests.waiting import PATIENCE_S, wait_for

VOLUME_BYTES = 24 << 20
DRAIN_S = 1.0
OPEN = "/v1/procedures/open_accounts"
COUNT = 500
OPTIONS = (
    *("--partitions", "2", "--segment-bytes", "1MiB", "--segments", "4", "--log-reserve-bytes", "64KiB"),
    *("--call-bytes-max", "64KiB", "--batch-bytes-max", "128KiB", "--drain-timeout-s", str(DRAIN_S)),
)

pytestmark = pytest.mark.slow


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    with small_volume(tmp_path / "volume", VOLUME_BYTES) as path:
        yield path


def accounts_of(branch: int, first: int) -> dict[str, int]:
    """Parameters of a call that opens so many accounts."""
    return {"branch": branch, "first": first, "count": COUNT, "savings": 1, "checking": 1}


def is_answered(connection: HTTPConnection) -> bool:
    """Whether something of the answer is there."""
    return bool(select.select([connection.sock], [], [], 0)[0])


class Full(Running):
    """`cmdlog serve` of the bank on the volume."""

    def __init__(self, volume: Path, folder: Path) -> None:
        super().__init__(folder, *OPTIONS, "--data", str(volume / "node"), app="procedures.samples.bank:db", tokens=False)
        self.volume = volume
        self.opened = 0  # accounts of calls that were acknowledged

    def fill(self) -> None:
        """Leaves next to nothing."""
        with (self.volume / "fill").open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(64 << 10)):
                    pass
            file.truncate(file.tell() - (256 << 10))

    def open_accounts(self, branch: int, first: int, **options: Any) -> httpx.Response:
        """A call that grows the state."""
        answer = self.client.post(OPEN, json=accounts_of(branch, first), **options)
        self.opened += COUNT if answer.status_code == 200 else 0
        return answer

    def grow(self, branch: int) -> None:
        """Until a site meets the end of the volume; the call that met it is given up by its client."""
        leaving = HTTPConnection(str(self.client.base_url.host), self.client.base_url.port, timeout=PATIENCE_S)
        with contextlib.closing(leaving):
            for first in range(0, 1_000_000, COUNT):
                body = json.dumps(accounts_of(branch, first))
                leaving.request("POST", OPEN, body, {"Content-Type": "application/json"})
                wait_for(lambda: is_answered(leaving) or self.is_full())
                if not is_answered(leaving):
                    break
                answer = leaving.getresponse()
                answer.read()
                if answer.status != 200:
                    break
                self.opened += COUNT
        wait_for(self.is_full)

    def is_full(self) -> bool:
        """Whether it says that it does not serve."""
        return self.client.get("/readyz").status_code == 503

    def accounts(self) -> int:
        """As a query counts them."""
        answer = self.client.post("/v1/query", json={"sql": "SELECT count(*) FROM accounts"})
        assert answer.status_code == 200, answer.text
        return sum(row[0] for row in answer.json()["rows"])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of its log."""
        lines = [json.loads(line) for line in self.logged().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]


@pytest.fixture
def full(volume: Path, tmp_path: Path) -> Iterator[Full]:
    """One whose site has met the end of the volume."""
    server = Full(volume, tmp_path)
    try:
        server.fill()
        server.grow(1)
        yield server
    finally:
        server.kill()


def test_full_volume_is_said_refuses_at_once_and_heals_by_itself(full: Full) -> None:
    """Every call is refused with `disk_full`, also while sites are tried; queries answer; with room all acknowledged is there."""
    before = full.accounts()

    def refused_at_once() -> int:
        answer = full.open_accounts(1, 900_000, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "disk_full", "5")
        assert full.client.get("/readyz").json()["code"] == "disk_full"
        return next(looks)

    looks = itertools.count()
    wait_for(lambda: refused_at_once() == 100)  # through a try of the site
    assert full.accounts() == before == full.opened
    status = full.client.get("/v1/status").json()
    assert (status["ready"], status["disk_full"]["path"]) == (False, "<directory>")
    assert status["disk_full"]["free_bytes"] < 1 << 20
    assert "disk_full" in {part["state"] for part in status["partitions"].values()}
    assert "\ncmdlog_disk_full 1.0\n" in full.client.get("/metrics").text
    (full.volume / "fill").unlink()
    wait_for(lambda: full.client.get("/readyz").status_code == 200)
    assert full.open_accounts(1, 900_000).status_code == 200
    assert full.accounts() - full.opened in (0, COUNT)  # the call whose client went away: logged, so executed, once
    assert full.client.get("/v1/status").json()["disk_full"] is None
    assert [len(full.events(name)) for name in ("refusing_calls", "accepting_calls", "site_exited")] == [1, 1, 1]
    _stop_while_full(full)


def _stop_while_full(full: Full) -> None:
    """A batch that no site can run does not hold the stop up."""
    full.fill()
    full.grow(2)
    assert full.stop() == 0  # there is still no room
    (line,) = full.events("stopped_with_calls_in_flight")
    assert "disk_full" in next(iter(line["why"].values()))
    assert sum(line["calls"].values()) == 1
