"""Replay equals live: whatever a node happened to do between the batches, every replay of its log does the same."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from procedures.execution.executor import Status
from procedures.idempotency import session_table
from tests.procedures.replays import Told, Way, make_delta, make_image, make_log, run_live, run_replay, with_delta

Dump = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def _rows_of_sessions_shrink_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it happens within these logs."""
    monkeypatch.setattr(session_table, "SHRINK_AFTER", 6)


def live_of(folder: Path, log: list[Any], seed: int, *, image_at: int) -> tuple[dict[int, Told], Dump]:
    """What a node told and holds at the end; at the first chance behind `image_at` it makes an image."""
    image = folder / "image.db"
    told: dict[int, Told] = {}
    dump: Dump = {}
    for way, entry in run_live(folder / "live.db", log, seed):
        told = way.told
        if entry is log[-1]:
            dump = way.dump()
        if entry.index >= image_at and not image.exists():
            make_image(way, image)
    return told, dump


def replayed(path: Path, log: list[Any], *, group: int = 0, digest_rows: bool = True) -> tuple[dict[int, Told], Dump]:
    """What a replay tells, from where the file stands, and holds at the end."""
    with closing(Way(path, digest_rows=digest_rows)) as way:
        run_replay(way, log, group=group)
        return way.told, way.dump()


def from_delta(folder: Path, log: list[Any], chance: random.Random) -> tuple[dict[int, Told], Dump]:
    """A replay of the rest, on an image with a delta of what came next."""
    base, middle = sorted(chance.sample(range(3, len(log)), 2))
    with closing(Way(folder / "source.db")) as way:
        run_replay(way, log[:base], group=0)
        changes = way.executor.gather_changes()
        assert changes is not None
        since = way.state.position
        make_image(way, folder / "base.db")
        changes.cut(since, keep=())
        run_replay(way, log[:middle], group=0)
        make_delta(way, since, folder / "delta")
        whole = with_delta(folder / "base.db", folder / "delta", way.state.position)
        held = way.dump()
    with closing(Way(whole)) as way:
        assert way.dump() == held
    return replayed(whole, log, group=5)


def check_seed(folder: Path, seed: int, *, entries: int) -> dict[int, Told]:
    """One log, run live and replayed in every way."""
    chance = random.Random(seed)
    log = make_log(seed, entries)
    told, held = live_of(folder, log, seed, image_at=chance.randrange(2, entries))
    ways = {
        "one by one": replayed(folder / "fresh.db", log),
        "in groups": replayed(folder / "groups.db", log, group=chance.randrange(2, 12)),
        "from the image": replayed(folder / "image.db", log, group=3),
        "from a delta": from_delta(folder, log, chance),
    }
    for name, (again, holds) in ways.items():
        differing = [index for index, answer in again.items() if answer != told[index]]
        assert not differing, f"seed {seed}, {name}, index {differing[0]}: {again[differing[0]]} not {told[differing[0]]}"
        assert holds == held, f"seed {seed}, {name}"
    again, holds = replayed(folder / "undigested.db", log, group=4, digest_rows=False)
    assert ({index: answer[:4] for index, answer in again.items()}, holds) == (
        {index: answer[:4] for index, answer in told.items()},
        held,
    ), f"seed {seed}, without row digests"
    return told


@pytest.mark.slow
def test_every_replay_equals_the_live_run(tmp_path: Path) -> None:
    """Same statuses, answers, transactions, digests and tables, and among them are calls that end in every way there is."""
    seen: set[int] = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        for statuses, *_ in check_seed(folder, seed, entries=60).values():
            seen.update(statuses)
    assert seen == {int(status) for status in Status}


@pytest.mark.torture
def test_many_replays_equal_their_live_runs(tmp_path: Path) -> None:
    """The same over many and longer logs."""
    for seed in range(1000, 1150):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_seed(folder, seed, entries=150)
