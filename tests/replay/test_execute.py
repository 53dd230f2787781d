"""Recovery in place: sources, skips, code versions, divergence, and that it can be broken off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.wal.errors import Locked
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.log import Log
from procedures.idempotency.known_outcome import KeyPolicy
from replay.errors import Divergence
from replay.plan.in_place_plan import plan_in_place
from replay.plan.node_plan import Plan
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import RecoveryReport, Target
from replay.recover.in_place import replay_in_place
from replay.state import state_lock
from tests.replay.rig import CLOCK, DEPOSIT, DRIFT, Rig, balances_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A node with some deposits behind it, running."""
    rig = Rig(tmp_path)
    rig.deposits(10)
    return rig


def recover(rig: Rig, *, workers: int | None = 0) -> tuple[Plan, RecoveryReport]:
    """Recovery in place, as `serve` does it."""
    wal = Log.open(rig.files, rig.directory)
    try:
        target = Target(rig.files, wal.directory)
        found = plan_in_place(rig.files, wal, target.trust)
        return found.plan, replay_in_place(target, found, workers=workers)
    finally:
        wal.close()


def sources(plan: Plan) -> list[tuple[str, int]]:
    """Source and number of entries to replay, by partition."""
    return [(part.source, part.entries) for part in plan.partitions]


def test_states_at_the_end_are_taken_as_they_are(rig: Rig) -> None:
    """After an orderly stop nothing is read or replayed."""
    rig.close()
    before = rig.digests()
    plan, report = recover(rig)
    assert sources(plan) == [("state", 0), ("state", 0)]
    assert report.calls == 0
    assert rig.digests() == before


def test_lost_states_come_back_from_the_log_alone(rig: Rig) -> None:
    """With neither state nor snapshot the log is replayed from its first entry, to equal tables and equal balances."""
    rig.close()
    before = rig.digests()
    for p in range(2):
        rig.forget_state(p)
    plan, report = recover(rig)
    assert [part.source for part in plan.partitions] == ["empty", "empty"]
    assert report.calls == 36
    assert all(result.digests == 6 for result in report.results)
    assert rig.digests() == before
    assert balances_of(rig.directory) == rig.balances


def test_state_behind_the_log_goes_on_from_where_it_stands(rig: Rig) -> None:
    """Entries that were durable but not executed when the process died are executed, each once."""
    rig.batch(0, [(DEPOSIT, [0, 1000])], live=False)
    rig.batch(0, [(DEPOSIT, [1, 500]), (DEPOSIT, [0, 3])], live=False)
    rig.stop()
    plan, report = recover(rig)
    assert sources(plan) == [("state", 2), ("state", 0)]
    assert report.calls == 3
    assert balances_of(rig.directory) == rig.balances


def test_lost_state_starts_from_the_newest_snapshot(rig: Rig) -> None:
    """The snapshot is restored and only what follows is replayed."""
    rig.snapshot(0)
    rig.deposits(4)
    rig.snapshot(0)
    rig.deposits(2)
    rig.close()
    before = rig.digests()
    rig.forget_state(0)
    plan, _ = recover(rig)
    assert sources(plan) == [("snapshot", 1), ("state", 0)]
    assert rig.digests() == before


def test_damaged_newest_snapshot_falls_back_and_is_named(rig: Rig) -> None:
    """One flipped bit in the newest image: its predecessor and a longer piece of the log give the same state."""
    rig.snapshot(0)
    rig.deposits(4)
    newest = Path(rig.snapshot(0))
    rig.deposits(2)
    rig.close()
    before = rig.digests()
    rig.forget_state(0)
    image = bytearray((newest / "image.sqlite").read_bytes())
    image[len(image) // 2] ^= 1
    (newest / "image.sqlite").write_bytes(image)
    plan, _ = recover(rig)
    part = plan.partitions[0]
    assert (part.source, part.entries) == ("snapshot", 3)
    assert [(passed.name, "has changed" in passed.why) for passed in part.passed if passed.name != "state file"] == [
        (newest.name, True)
    ]
    assert rig.digests() == before


def test_state_beyond_the_log_is_discarded(rig: Rig) -> None:
    """A state that holds what the log lost (async durability, power cut) is rebuilt from what the log has."""
    rig.close()
    before = rig.digests()
    rig.restart()
    record_index = rig.next_index[0]
    rig.engines[0].executor.advance(index=record_index, term=9, checksum=1)
    rig.stop()
    plan, _ = recover(rig)
    assert plan.partitions[0].source == "empty"
    assert "beyond the log's end" in plan.partitions[0].passed[0].why
    assert rig.digests() == before


def test_state_with_another_entry_than_the_log_is_discarded(rig: Rig) -> None:
    """Same index, other term and checksum: the log's entry is the one that counts."""
    rig.close()
    rig.restart()
    rig.engines[0].executor.advance(index=rig.next_index[0], term=9, checksum=1)
    rig.batch(0, [(DEPOSIT, [0, 5])], live=False)
    rig.stop()
    plan, _ = recover(rig)
    assert plan.partitions[0].source == "empty"
    assert "different entry" in plan.partitions[0].passed[0].why
    assert balances_of(rig.directory) == rig.balances


def test_snapshot_beyond_the_log_is_put_aside(rig: Rig) -> None:
    """It could look right once the log has grown past it, so it leaves the catalog before anything is written."""
    rig.close()
    rig.restart()
    rig.engines[0].executor.advance(index=rig.next_index[0], term=9, checksum=1)
    path = Path(rig.snapshot(0, mark=False))
    rig.stop()
    rig.forget_state(0)
    plan, _ = recover(rig)
    assert plan.partitions[0].set_aside == (path.name,)
    assert not path.exists()
    assert (path.parent / f"void-{path.name}").exists()
    assert balances_of(rig.directory) == rig.balances


def test_skipped_call_is_not_replayed(rig: Rig) -> None:
    """The skip record stands behind its batch and is honoured before it; the digest of the live run agrees."""
    calls = [(DEPOSIT, [0, 1]), (DEPOSIT, [1, 1_000_000]), (DEPOSIT, [2, 1])]
    index = rig.batch(0, calls, skips=frozenset({1}))
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 1, "reason": "hung", "txn_id": rig.tick(1, 0)[0]})
    rig.close()
    before = rig.digests()
    rig.forget_state(0)
    plan, _ = recover(rig)
    assert plan.partitions[0].skips == {index: (1,)}
    assert rig.digests() == before
    assert balances_of(rig.directory) == rig.balances


def test_old_invocations_run_their_old_code(rig: Rig) -> None:
    """Deposits logged before the change count once, those after it ten times, in one replay."""
    rig.add_catalog(10)
    rig.deposits(4)
    rig.close()
    before = rig.digests()
    for p in range(2):
        rig.forget_state(p)
    recover(rig)
    assert rig.digests() == before
    assert balances_of(rig.directory) == rig.balances


def test_each_batch_runs_under_the_key_policy_of_its_time(rig: Rig) -> None:
    """Keys that were refused by a smaller table stay refused, those before it stay known, whatever the policy is now."""
    rig.batch(0, [(DEPOSIT, [0, 1]), (DEPOSIT, [0, 2])], keys=[b"1" * 16, b"2" * 16])
    rig.set_policy(KeyPolicy(keys_max=2))
    before = dict(rig.balances)
    rig.batch(0, [(DEPOSIT, [0, 4])], keys=[b"3" * 16])
    rig.balances = before  # the table was full: nothing happened
    rig.set_policy(KeyPolicy())
    rig.batch(0, [(DEPOSIT, [0, 8])], keys=[b"4" * 16])
    rig.close()
    states = rig.digests()
    assert balances_of(rig.directory) == rig.balances
    rig.forget_state(0)
    recover(rig)
    assert rig.digests() == states


def test_state_that_a_site_still_writes_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed node may leave a site at work: recovery does not write beside it, and says who is in the way."""
    monkeypatch.setattr(state_lock, "LOCK_WAIT_S", 0.02)
    rig.close()
    rig.forget_state(0)
    site = state_lock.StateLock(rig.state_file(0))
    with pytest.raises(Locked, match="still being written by another process"):
        recover(rig)
    site.close()
    plan, _ = recover(rig)
    assert plan.partitions[0].source == "empty"


def test_nondeterministic_result_is_named(rig: Rig) -> None:
    """A procedure that looks at the wall clock: partition, index, transaction, procedure and position are in the error."""
    index = rig.batch(1, [(DEPOSIT, [10, 1]), (CLOCK, [11]), (DEPOSIT, [11, 1])])
    txn = rig.history[-2][0]
    rig.close()
    rig.forget_state(1)
    with pytest.raises(Divergence) as caught:
        recover(rig)
    place = caught.value.place
    assert (place.partition, place.index, place.position, place.procedure, place.txn_id) == (1, index, 1, "clock", txn)
    assert caught.value.exit_code == 16
    assert not Path(rig.state_file(1)).exists(), "a diverged state must never be trusted by a later start"


def test_nondeterministic_rows_are_named(rig: Rig) -> None:
    """Rows that differ behind an equal answer are found by the digest of rows."""
    index = rig.batch(0, [(DRIFT, [0])])
    rig.close()
    rig.forget_state(0)
    with pytest.raises(Divergence) as caught:
        recover(rig)
    assert (caught.value.place.index, caught.value.place.procedure) == (index, "drift")


@pytest.mark.slow
def test_workers_give_the_same_states(rig: Rig) -> None:
    """Two processes, one per partition, end where the live run did."""
    rig.snapshot(0)
    rig.deposits(20)
    rig.close()
    before = rig.digests()
    for p in range(2):
        rig.forget_state(p)
    _, report = recover(rig, workers=2)
    assert report.workers == 2
    assert rig.digests() == before
    plan, _ = recover(rig)
    assert [part.source for part in plan.partitions] == ["state", "state"], "what workers made is trusted"


def test_plan_survives_its_file(rig: Rig) -> None:
    """to_json and from_json are inverse, for a plan with everything in it."""
    index = rig.batch(0, [(DEPOSIT, [0, 1]), (DEPOSIT, [0, 2])], skips=frozenset({0}))
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 0, "reason": "hung", "txn_id": rig.tick(1, 0)[0]})
    rig.snapshot(0)
    rig.close()
    plan = replace(make_plan(rig.files, rig.directory, PAST).plan, gaps=((3, 4), (7, 7)))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.partitions[0].source == "snapshot"
    assert plan.partitions[0].skips
