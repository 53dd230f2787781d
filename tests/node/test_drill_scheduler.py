"""The node's restore drills: when one is due, what is told of it, and that it ends with the node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import cmdlog
from cmdlog.node.background.drill_scheduler import FIRST_AFTER_S, DrillScheduler
from cmdlog.node.reporting.prometheus import PrometheusExposition
from cmdlog.wal.files import RealFiles
from procedures.samples import bank
from replay.drill import drill as module
from replay.drill.drill import drill
from replay.drill.report import FOLDER
from tests.waiting import PATIENCE_S, wait_for

FILES = RealFiles()
SMALL: dict[str, Any] = {"partitions": 1, "segments": 4, "segment_bytes": 4 << 20}
IN_EARNEST = """
from replay.drill import drill

def main():
    drill.lower_priority = lambda: None  # a test waits for it
    return drill.main()
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module of a drill's process and returns its name."""

    def make(source: str) -> str:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "planted_drill.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path / "code")
        return "planted_drill"

    return make


def report(directory: Path, verdict: str, finished: str) -> None:
    """A report as a drill leaves it."""
    (directory / FOLDER).mkdir(exist_ok=True)
    error = None if verdict == "proven" else {"kind": "X", "message": "row 7 differs", "exit_code": 16}
    value = {"format": 1, "verdict": verdict, "finished": finished, "error": error}
    name = finished.replace("-", "").replace(":", "")
    (directory / FOLDER / f"{name}.json").write_bytes(orjson.dumps(value))


def seconds_of(finished: str) -> float:
    """Since 1970."""
    return datetime.fromisoformat(finished).timestamp()


def test_reports_that_are_there_are_told(tmp_path: Path) -> None:
    """Those of earlier lives and by hand: the newest one, and how long ago a restore was proven."""
    drills = DrillScheduler(str(tmp_path), every_s=0, wall=lambda: seconds_of("2026-01-31T12:10:00Z"))
    assert (drills.age_s(), drills.status()["last"]) == (None, None)
    report(tmp_path, "proven", "2026-01-31T12:00:00Z")
    assert drills.age_s() == 600
    report(tmp_path, "diverged", "2026-01-31T12:05:00Z")
    told = drills.status()
    assert told["last_proven_restore_seconds"] == 600
    assert told["last"] == {"finished": "2026-01-31T12:05:00Z", "verdict": "diverged", "error": "row 7 differs"}


@pytest.mark.parametrize(("every_s", "due_in_s"), [(3600.0, 3000.0), (60.0, -540.0)])
def test_next_drill_is_due_after_the_last_one_whoever_held_it(tmp_path: Path, every_s: float, due_in_s: float) -> None:
    """A node that is started again each day is drilled all the same."""
    now = seconds_of("2026-01-31T12:10:00Z")
    report(tmp_path, "diverged", "2026-01-31T12:00:00Z")
    assert DrillScheduler(str(tmp_path), every_s=every_s, wall=lambda: now).due_at == now + due_in_s


def test_first_drill_comes_soon(tmp_path: Path) -> None:
    """Whatever the interval is, nobody waits a month for the first proof."""
    assert DrillScheduler(str(tmp_path), every_s=86_400 * 30, wall=lambda: 1000.0).due_at == 1000 + FIRST_AFTER_S
    assert DrillScheduler(str(tmp_path), every_s=5, wall=lambda: 1000.0).due_at == 1005


@pytest.mark.slow
def test_drill_beside_a_node_proves_it_and_then_names_the_damage(tmp_path: Path, made: Callable[[str], str]) -> None:
    """Status and metrics say how long ago; a damaged snapshot is told, and the last proof is not forgotten."""
    directory = tmp_path / "node"
    with cmdlog.open(directory, bank.db, **SMALL) as opened:
        assert b"cmdlog_last_proven_restore_seconds " not in exposition(opened)
        for customer in range(40):
            opened.call("open_account", branch=1, customer=customer, savings=5, checking=5)
            if customer in (10, 20):
                opened.node.take_snapshot()
        drills = DrillScheduler(str(directory), every_s=0.05, module=made(IN_EARNEST))
        drills.start()
        wait_for(lambda: drills.status()["last"])
        drills.stop()
        assert drills.status()["last"]["verdict"] == "proven"
        told = opened.status()["drill"]
        assert told["last"]["verdict"] == "proven"
        assert told["last_proven_restore_seconds"] < PATIENCE_S
        assert b"cmdlog_last_proven_restore_seconds " in exposition(opened)
        damage(directory)
        assert drill(FILES, str(directory), seed=1).exit_code == 10
        told = opened.status()["drill"]
        assert told["last"]["verdict"] == "damaged"
        assert "has changed" in told["last"]["error"]
        assert told["last_proven_restore_seconds"] is not None


def exposition(opened: cmdlog.Embedded) -> bytes:
    """What a scrape of the node gets, without comments."""
    lines = PrometheusExposition(opened.node.front, lambda: opened.node.overview).render()[1].splitlines()
    return b"\n".join(line for line in lines if not line.startswith(b"#"))


def damage(directory: Path) -> None:
    """Changes a byte of the newest image."""
    image = max((directory / "snapshots").glob("p0000-*")) / "image.sqlite"
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)


def test_times_of_reports_are_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drill writes is what the schedule reads."""
    with cmdlog.open(tmp_path / "node", bank.db, **SMALL) as opened:
        opened.call("open_account", branch=1, customer=1, savings=5, checking=5)
        moment = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
        monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _zone: moment))
        assert module.drill(FILES, str(tmp_path / "node"), seed=1).verdict == "proven"
    assert DrillScheduler(str(tmp_path / "node"), every_s=0, wall=lambda: moment.timestamp() + 5).age_s() == 5


@pytest.mark.slow
def test_drill_that_ends_without_a_word_is_an_error(tmp_path: Path, made: Callable[[str], str]) -> None:
    """Shown until one says something."""
    drills = DrillScheduler(str(tmp_path), every_s=0.01, module=made("def main(): return 3"))
    drills.start()
    wait_for(lambda: drills.status()["error"])
    drills.stop()
    assert "exit code 3" in drills.status()["error"]
