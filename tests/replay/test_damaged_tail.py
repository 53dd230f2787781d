"""Damage inside the newest segment of a node that votes alone: each moment is restored exactly, or refused.

One rule: the truth is the model of `tests.replay.rig`, and a recovery that is not refused must come to it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.reader import LogReader, read_segment
from replay.engine import CatalogMissing
from replay.errors import ReplayError
from replay.log.collect_evidence import gather
from replay.plan.cluster_plan import JointPlan
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.newest_restorable import newest_before_damage
from replay.recover.from_cluster import rebuild_jointly
from replay.spark.jobs.past_replay import find_history
from snapshot.capture.seal import seal
from tests.replay import damage
from tests.replay.rig import DEPOSIT, Rig, balances_of

HISTORIES = 4


def blocks(directory: str) -> list[tuple[int, int]]:
    """(number, offset) of the blocks of the one segment."""
    reader = LogReader(RealFiles(), directory)
    found = read_segment(RealFiles(), reader.segments[-1], upto=int(reader.last_block))
    return [(int(block.header.number), block.offset) for block in found]


def spoil(directory: str, number: int) -> None:
    """A bit of that block turns."""
    (path,) = damage.segments(directory)
    damage.flip(path, dict(blocks(directory))[number] + 100)


def planned(directory: str, until: int | None) -> JointPlan:
    """What a recovery does about damage."""
    return make_joint_plan(RealFiles(), [directory], until=until)


def restored(plan: JointPlan, out: Path) -> dict[int, int]:
    """The balances in the new node."""
    rebuild_jointly(plan, RealFiles(), str(out), workers=0)
    found = balances_of(str(out))
    shutil.rmtree(out)
    return found


def truth(rig: Rig, until: int) -> dict[int, int]:
    """The balances after the last call up to the moment."""
    return next(balances for txn, balances in reversed(rig.history) if txn <= until)


def made(folder: Path, before: int = 20, between: int = 6, after: int = 20) -> tuple[Rig, int]:
    """Calls, snapshots of all partitions, calls, and an orderly stop; the block in the middle of the first calls."""
    folder.mkdir(exist_ok=True)
    rig = Rig(folder, segment_bytes=2 << 20)
    rig.deposits(before)
    bad = rig.feed.durable_block
    rig.deposits(between)
    for partition in range(rig.partitions):
        rig.snapshot(partition)
    rig.deposits(after)
    return rig, bad


def test_moments_on_both_sides_of_the_damage_are_restored(tmp_path: Path) -> None:
    """Behind it from the snapshots that were taken there, before it from what stands in front; what it hit is refused."""
    rig, bad = made(tmp_path / "n")
    rig.close()
    spoil(rig.directory, bad)
    lost = 6 * 3
    at = len(rig.history) - 20 * 3
    for txn, balances in [rig.history[-1], rig.history[at], rig.history[at - 1], rig.history[at // 2]]:
        plan = planned(rig.directory, txn)
        assert plan.incomplete == ()
        assert restored(plan, tmp_path / "out") == balances
        assert find_history(RealFiles(), [rig.directory], txn, accept_data_loss=False).legs == plan.legs
    newest = planned(rig.directory, None)
    assert newest.incomplete == ()
    assert restored(newest, tmp_path / "out") == rig.balances
    for txn, _ in rig.history[at - lost : at - 3]:
        assert planned(rig.directory, txn).incomplete


@pytest.mark.parametrize("hidden", ["policy", "code", "voters", "no mark", "environment"])
def test_snapshot_that_does_not_prove_it_leaves_the_log_unproved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """Nothing is guessed of the lost block: a snapshot must say that nothing changed, and the log that it took place there."""
    changed: dict[str, dict[str, Any]] = {
        "policy": {"configuration": {"voters": [1], "partitions": 2, "key_policy": {"ttl_s": 1}}},
        "code": {"catalogs": {"1": {"hash": "another"}}},
        "voters": {"epoch": 5},
        "environment": {"environment": {"python": "3"}},
    }

    def seal_changed(files: Files, temporary: str, final: str, facts: dict[str, Any]) -> None:
        seal(files, temporary, final, {**facts, **changed.get(hidden, {})})

    monkeypatch.setattr("tests.replay.rig.seal", seal_changed)
    rig = Rig(tmp_path, segment_bytes=2 << 20)
    rig.deposits(20)
    bad = rig.feed.durable_block
    rig.deposits(6)
    for partition in range(rig.partitions):
        rig.snapshot(partition, mark=hidden != "no mark")
    rig.deposits(20)
    rig.close()
    spoil(rig.directory, bad)
    assert planned(rig.directory, rig.history[-1][0]).incomplete
    assert planned(rig.directory, None).incomplete
    before = rig.history[len(rig.history) // 3][0]
    assert planned(rig.directory, before).incomplete == ()


def test_change_of_configuration_in_the_lost_block_is_not_overlooked(tmp_path: Path) -> None:
    """The snapshot behind it states the new one, so the log is known to be incomplete."""
    rig = Rig(tmp_path, segment_bytes=2 << 20)
    rig.deposits(20)
    rig.set_policy(type(rig.policy)())
    bad = rig.feed.durable_block
    rig.deposits(6)
    for partition in range(rig.partitions):
        rig.snapshot(partition)
    rig.deposits(6)
    rig.close()
    spoil(rig.directory, bad)
    assert gather(RealFiles(), rig.directory).groups[1022].end_known is False
    assert planned(rig.directory, rig.history[-1][0]).incomplete


def random_node(folder: Path, rng: random.Random) -> Rig:
    """Calls, idle partitions, restarts, new code and snapshots, in any order, all in one segment."""
    folder.mkdir()
    rig = Rig(folder, segment_bytes=4 << 20)
    for _ in range(rng.randint(4, 9)):
        what = rng.choice(["calls", "calls", "one", "snapshot", "all", "code", "marks"])
        if what == "calls":
            rig.deposits(rng.randint(1, 8))
        elif what == "one":
            rig.batch(1, [(DEPOSIT, [10, 1])])
        elif what == "snapshot":
            rig.snapshot(rng.randrange(2))
        elif what == "all":
            rig.snapshot(0)
            rig.snapshot(1)
        elif what == "code":
            rig.add_catalog(rng.randint(1, 5))
        else:
            rig.close()
            rig.restart()
    rig.deposits(2)
    rig.close()
    return rig


@pytest.mark.slow
def test_any_moment_of_a_damaged_log_is_exact_or_refused(tmp_path: Path) -> None:
    """Random histories and places: what is not refused comes to the model's balances, and some are not refused."""
    done = {"exact": 0, "refused": 0}
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        rig = random_node(tmp_path / str(seed), rng)
        number = rng.choice(blocks(rig.directory)[2:-1])[0]
        spoil(rig.directory, number)
        for txn, balances in rng.sample(rig.history[6:], 5):
            try:
                plan = planned(rig.directory, txn)
            except (ReplayError, CatalogMissing):
                done["refused"] += 1
                continue
            if plan.incomplete:
                done["refused"] += 1
                continue
            assert restored(plan, tmp_path / "out") == balances, f"seed {seed}, block {number}, moment {txn}"
            done["exact"] += 1
    assert min(done.values()) >= HISTORIES


def test_refusal_names_the_newest_moment_before_the_damage(tmp_path: Path) -> None:
    """Where no snapshot behind the damage proves the rest, the error says so, and the moment that it offers is restored."""
    rig = Rig(tmp_path, segment_bytes=2 << 20)
    rig.deposits(20)
    bad = rig.feed.durable_block
    rig.deposits(6)
    rig.close()
    spoil(rig.directory, bad)
    moment = newest_before_damage(RealFiles(), rig.directory)
    assert moment is not None
    with pytest.raises(
        Corrupt, match=f"damage is not proved complete: .*newest restorable moment before it is transaction {moment}"
    ):
        find_history(RealFiles(), [rig.directory], None, accept_data_loss=False)
    assert restored(planned(rig.directory, moment), tmp_path / "out") == truth(rig, moment)


def test_state_around_loss_is_whole_where_it_can_be_and_told_where_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Accepting loss costs nothing that can be proved; else partitions and the moments at which they stand are told."""
    rig, bad = made(tmp_path / "n")
    rig.close()
    spoil(rig.directory, bad)
    assert find_history(RealFiles(), [rig.directory], None, accept_data_loss=True).txn_id() == rig.history[-1][0]
    assert not caplog.records
    shutil.rmtree(Path(rig.directory, "snapshots"))
    found = find_history(RealFiles(), [rig.directory], None, accept_data_loss=True)
    assert found.txn_id() < rig.history[-1][0]
    assert f"at transaction {found.txn_id()} (" in caplog.text
    assert "partition 0 at transaction" in caplog.text
