"""What a node does beside its calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.placing import housekeeping
from cmdlog.node.placing.housekeeping import Housekeeping
from cmdlog.node.placing.key_owners import KeyOwners
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.snapshots.snapshotter import Snapshotter
from tests.waiting import wait_for


class Idle:
    """A sequencer; `blocks` grows while calls come."""

    votes_alone = True

    def __init__(self, per_look: int = 0) -> None:
        self.flushed = self._blocks = 0
        self._per_look = per_look

    @property
    def blocks(self) -> int:
        self._blocks += self._per_look
        return self._blocks

    @property
    def log_feed(self) -> Idle:
        return self

    def flush_notes(self) -> None:
        self.flushed += 1


def rounds_of(
    sequencer: Idle, folder: Path, monkeypatch: pytest.MonkeyPatch, *, failed: Callable[[], bool] = lambda: False
) -> list[Any]:
    """What was saved, after some rounds of the thread."""
    monkeypatch.setattr(housekeeping, "IDLE_FLUSH_S", 0.001)
    saved: list[Any] = []
    rounds: list[None] = []
    newest = {0: SimpleNamespace(name="snap-0")}
    thread = Housekeeping(
        str(folder), cast(Sequencer, sequencer), cast(Snapshotter, SimpleNamespace(newest_of_each=lambda: newest)),
        cast(KeyOwners, SimpleNamespace(tidy=lambda look: None)), cast(RecoverySpeeds, SimpleNamespace(save=saved.append)),
        failed=failed, each_round=[lambda: rounds.append(None)],
    )  # fmt: skip
    thread.start()
    wait_for(lambda: len(rounds) >= 5)
    thread.stop()
    return saved


def test_idle_node_flushes_what_it_owes_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests and commit marks do not wait for a call that may never come."""
    idle = Idle()
    rounds_of(idle, tmp_path, monkeypatch)
    assert idle.flushed >= 4


def test_busy_node_leaves_its_notes_to_the_next_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that calls pay for carries them: a flush would cost one of its own."""
    busy = Idle(per_look=1)
    rounds_of(busy, tmp_path, monkeypatch)
    assert busy.flushed == 0


def test_failed_node_flushes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log takes nothing more; the status page goes on."""
    idle = Idle()
    rounds_of(idle, tmp_path, monkeypatch, failed=lambda: True)
    assert idle.flushed == 0


def test_speeds_are_saved_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that ran for less than the interval knows something, too: it is saved with the newest snapshots' names."""
    assert rounds_of(Idle(), tmp_path, monkeypatch) == [{0: "snap-0"}]


class Waits:
    """Stands for the event that ends the thread: how long each wait was, and what happens during it."""

    def __init__(self, ends_after: int, during: Callable[[int], None] = lambda number: None) -> None:
        self.seconds: list[float] = []
        self._ends_after, self._during = ends_after, during

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        self._during(len(self.seconds))
        return len(self.seconds) > self._ends_after

    def set(self) -> None:
        pass


@pytest.mark.parametrize("votes_alone", [True, False])
def test_idle_node_rests(tmp_path: Path, *, votes_alone: bool) -> None:
    """A second after the last block it looks less often; calls make it look closely again. A member of a cluster never rests."""
    idle = Idle()
    idle.votes_alone = votes_alone

    def call(number: int) -> None:
        idle._blocks += number == 80

    thread = Housekeeping(
        str(tmp_path), cast(Sequencer, idle), cast(Snapshotter, SimpleNamespace(newest_of_each=dict)),
        cast(KeyOwners, SimpleNamespace(tidy=lambda look: None)), cast(RecoverySpeeds, SimpleNamespace(save=lambda names: None)),
        failed=lambda: False, each_round=[],
    )  # fmt: skip
    waits = Waits(200, call)
    thread._stop = cast(Any, waits)
    thread._run()
    rests = [at for at, seconds in enumerate(waits.seconds, 1) if seconds == housekeeping.REST_S]
    assert set(waits.seconds) - {housekeeping.REST_S} == {housekeeping.IDLE_FLUSH_S}
    if votes_alone:
        quiet = housekeeping.REST_AFTER_ROUNDS + 2
        assert rests == [*range(quiet, 81), *range(80 + quiet, 202)]
    else:
        assert rests == []
