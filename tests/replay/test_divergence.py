"""The first divergence: which call, which code, which rows, what the live run had, and what another replay brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.divergence_file import DivergenceFile, PartitionDivergence
from cmdlog.wal.format.batch import Batch
from cmdlog.wal.log import Log
from procedures.code.loaded_modules import load_bundle
from replay import loop
from replay.errors import Divergence, DivergencePlace
from replay.plan.planner import PAST, RECOVER, make_plan
from replay.recover import partition_replay
from replay.recover.divergence import Trial
from replay.recover.in_place import bring_up
from replay.recover.to_directory import rebuild
from tests.replay.rig import BEGIN, CLOCK, DEPOSIT, DRIFT, MIRROR, TRAP, Rig, balances_of, make_bundle


def diverge(rig: Rig, out: Path, *, workers: int = 0) -> DivergencePlace:
    """Where a recovery to another place diverges."""
    with pytest.raises(Divergence) as caught:
        rebuild(make_plan(rig.files, rig.directory, PAST), rig.files, str(out), workers=workers)
    place = caught.value.place
    assert DivergencePlace.from_json(place.to_json()) == place
    if place.rows:
        assert str(caught.value).endswith(f"; rows at hand: {len(place.rows)}, of {place.rows[0].table}")
    return place


def forged(rig: Rig, factor: int) -> None:
    """From now on the node runs other code than its log says."""
    rig.stop()
    rig.restart(term=rig.term)
    rig.catalogs.add_live(rig.version, load_bundle(make_bundle(factor)))


def test_time_dependent_rows_are_named_with_both_values(rig: Rig, tmp_path: Path) -> None:
    """Equal answers, other rows: call, table, key, both values, and that it does otherwise each time."""
    index = rig.batch(0, [(DEPOSIT, [1, 5]), (DRIFT, [0]), (DEPOSIT, [2, 5])])
    txn = rig.history[-2][0]
    rig.close()
    live = balances_of(rig.directory)[0]
    place = diverge(rig, tmp_path / "out")
    assert (place.partition, place.index, place.position, place.procedure, place.txn_id) == (0, index, 1, "drift", txn)
    assert (place.catalog, place.source_hash) == (1, make_bundle().hash)
    assert "not deterministic" in place.reruns
    (row,) = place.rows
    assert (row.table, dict(row.key), row.txn_id) == ("accounts", {"id": 0}, txn)
    assert row.live == {"id": 0, "balance": live}
    assert row.live_as_of_index == index
    assert row.replayed is not None
    assert row.replayed["balance"] != live


def test_changed_code_is_no_chance(rig: Rig, tmp_path: Path) -> None:
    """Code that is not what the log says does another thing, but twice the same; the answer names call and rows."""
    forged(rig, 3)
    index = rig.batch(0, [(BEGIN, [7]), (DEPOSIT, [0, 5])])
    rig.close()
    place = diverge(rig, tmp_path / "out")
    assert (place.index, place.position, place.procedure) == (index, 1, "deposit")
    assert place.reruns == "replayed again with the same result"
    assert [(row.key, row.replayed != row.live) for row in place.rows] == [({"id": 0}, True)]
    assert place.rows[0].replayed is not None
    assert place.rows[0].live is not None
    assert place.rows[0].live["balance"] - place.rows[0].replayed["balance"] == 10


def test_batch_of_one_is_named_exactly(rig: Rig, tmp_path: Path) -> None:
    """Equal answers and other rows, twice the same: where the batch has one call, it is that call."""
    forged(rig, 3)
    index = rig.batch(0, [(TRAP, [0])])
    txn = rig.last_txn
    rig.close()
    place = diverge(rig, tmp_path / "out")
    assert (place.index, place.position, place.procedure) == (index, 0, "trap")
    assert place.call.startswith("call 0 (trap")
    assert place.suspects == ((txn, "trap"),)


def test_batch_in_which_no_call_can_be_named_lists_who_changed_rows(rig: Rig, tmp_path: Path) -> None:
    """What a quarantine would set aside: each call that changed what the batch changed, and no other one."""
    forged(rig, 3)
    rig.batch(0, [(TRAP, [0]), (MIRROR, [0, 999]), (TRAP, [1])])
    txns = [txn for txn, _ in rig.history[-3:]]
    rig.close()
    place = diverge(rig, tmp_path / "out")
    assert place.position == -1
    assert place.suspects == ((txns[0], "trap"), (txns[2], "trap"))


def test_later_live_value_says_where_it_was_read(rig: Rig, tmp_path: Path) -> None:
    """With later calls behind the batch, the live value is that of a later place, and says so."""
    index = rig.batch(0, [(DRIFT, [0])])
    rig.deposits(6)
    rig.close()
    row = diverge(rig, tmp_path / "out").rows[0]
    assert row.live_as_of_index == rig.next_index[0] - 1 > index
    assert row.cells[3].endswith(f" as of index {row.live_as_of_index}")


def test_nearest_state_gives_the_live_value(rig: Rig, tmp_path: Path) -> None:
    """A snapshot right behind the batch is better evidence than the state file much later."""
    rig.batch(0, [(DRIFT, [0])])
    first = rig.engines[0].state.connection.execute("SELECT balance FROM accounts WHERE id = 0").get
    index = rig.next_index[0] - 1
    path = Path(rig.snapshot(0))
    rig.deposits(6)
    rig.batch(0, [(DRIFT, [0])])
    rig.snapshot(0)
    rig.close()
    plan = make_plan(rig.files, rig.directory, PAST)
    assert plan.plan.partitions[0].from_index > index, "the newest snapshot is behind it"
    txn = rig.history[-1][0] - 1
    path.rename(path.with_name("elsewhere"))
    planned = make_plan(rig.files, rig.directory, PAST, until=txn)
    path.with_name("elsewhere").rename(path)
    with pytest.raises(Divergence) as caught:
        rebuild(planned, rig.files, str(tmp_path / "out"), workers=0)
    row = caught.value.place.rows[0]
    assert (row.live, row.live_as_of_index) == ({"id": 0, "balance": first}, index)


def test_without_a_live_state_the_replayed_rows_are_named(rig: Rig, tmp_path: Path) -> None:
    """State files that are gone: the report says that the live value is not at hand."""
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    rig.forget_state(0)
    row = diverge(rig, tmp_path / "out").rows[0]
    assert (row.live, row.live_as_of_index) == (None, None)
    assert row.cells[3] == "not at hand"


def test_original_is_untouched_by_a_look_at_its_rows(rig: Rig, tmp_path: Path) -> None:
    """A killed node's state file has its write-ahead log beside it; neither changes, and nothing is made there."""
    rig.batch(0, [(DRIFT, [0])])
    rig.log()
    rig.wal.close()  # its threads make and remove files
    copy = Path(rig.copy(tmp_path / "killed"))  # with the -wal files of states that nobody closed
    for engine in rig.engines.values():
        engine.close()
    state = copy / "state" / "p0000.sqlite"
    assert state.with_name(state.name + "-wal").stat().st_size
    trusted = rig.trust.__class__(rig.files, str(copy))
    for p in range(2):
        trusted.grant(p)
    before = {path: path.read_bytes() for path in sorted(copy.rglob("*")) if path.is_file()}
    with pytest.raises(Divergence) as caught:
        rebuild(make_plan(rig.files, str(copy), PAST), rig.files, str(tmp_path / "out"), workers=0)
    assert caught.value.place.rows[0].live_as_of_index == rig.next_index[0] - 1
    assert {path: path.read_bytes() for path in sorted(copy.rglob("*")) if path.is_file()} == before


def test_other_partitions_go_on_to_their_ends(rig: Rig) -> None:
    """One partition diverges; the other one's state is at its end, and is trusted by the next recovery."""
    rig.batch(0, [(CLOCK, [0])])
    rig.deposits(8)
    rig.close()
    for p in range(2):
        rig.forget_state(p)
    wal = Log.open(rig.files, rig.directory)
    with pytest.raises(Divergence):
        bring_up(rig.files, wal)
    wal.close()
    assert not rig.trust.__class__(rig.files, rig.directory).doubt(1)
    plan = make_plan(rig.files, rig.directory, RECOVER).plan
    assert [(part.source, part.entries) for part in plan.partitions][1] == ("state", 0)


def test_every_stopped_partition_is_named(rig: Rig, tmp_path: Path) -> None:
    """Two partitions that diverge: the error is the first one's, and says as much of the second one."""
    places = [rig.batch(p, [(DRIFT, [10 * p])]) for p in range(2)]
    rig.close()
    with pytest.raises(Divergence) as caught:
        rebuild(make_plan(rig.files, rig.directory, PAST), rig.files, str(tmp_path / "out"), workers=0)
    assert (caught.value.place.partition, caught.value.place.index) == (0, places[0])
    assert [(other.place.partition, other.place.index) for other in caught.value.also] == [(1, places[1])]
    assert f"partition 1 at index {places[1]}" in str(caught.value)
    for stop, account in zip((caught.value, *caught.value.also), (0, 10), strict=True):
        (row,) = stop.place.rows
        assert (stop.place.procedure, row.table, dict(row.key)) == ("drift", "accounts", {"id": account})
        assert stop.summary in str(caught.value)
        assert stop.place.suspects == ((stop.place.txn_id, "drift"),)


def test_batches_of_the_open_transaction_survive(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shares a transaction with the diverging batch is applied again before it: rows are compared from the right state."""
    rig.deposits(4, calls=1)
    rig.batch(0, [(DEPOSIT, [0, 1]), (CLOCK, [0])])
    balance = rig.balances[0]
    rig.close()
    rig.forget_state(0)
    seen = []
    own = partition_replay.PartitionReplay._run_and_undo

    def look(self: partition_replay.PartitionReplay, batch: Batch) -> Trial:
        seen.append(self.state.connection.execute("SELECT balance FROM accounts WHERE id = 0").get)
        return own(self, batch)

    monkeypatch.setattr(partition_replay.PartitionReplay, "_run_and_undo", look)
    wal = Log.open(rig.files, rig.directory)
    with pytest.raises(Divergence):
        bring_up(rig.files, wal)
    wal.close()
    assert seen == [balance - 1] * 2


def test_late_digest_is_compared_all_the_same(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest that stands further behind than entries are kept waiting finds the divergence; only the rows are not named."""
    monkeypatch.setattr(loop, "WAITING_MAX", 3)
    index = rig.batch(0, [(DRIFT, [0])])
    note, rig.notes = rig.notes, []
    for _ in range(5):
        rig.batch(0, [(DEPOSIT, [1, 1])], digest=False)
    rig.log(*note)
    rig.close()
    monkeypatch.setattr(loop, "UNCOMPARED_MAX", 1000)
    place = diverge(rig, tmp_path / "out")
    assert (place.index, place.position, place.rows, place.suspects) == (index, 0, (), ())


def test_digests_of_a_state_that_other_nodes_did_not_have_prove_nothing(rig: Rig, tmp_path: Path) -> None:
    """A member that has diverged says since which entry; what its log says before that is compared."""
    index = rig.batch(0, [(DRIFT, [0])])
    rig.deposits(4)
    rig.close()
    (Path(rig.directory) / "cluster").mkdir()
    known = DivergenceFile(rig.files, rig.directory)
    known.add_divergence(0, PartitionDivergence(index + 1, "planted"))
    assert diverge(rig, tmp_path / "later").index == index
    known.add_divergence(0, PartitionDivergence(index, "planted"))
    report = rebuild(make_plan(rig.files, rig.directory, PAST), rig.files, str(tmp_path / "out"), workers=0)
    without_digest = [result.entries - result.digests for result in report.results]
    assert without_digest[0] - without_digest[1] == rig.next_index[0] - index
    assert [result.distrusted for result in report.results] == [rig.next_index[0] - index, 0]


@pytest.mark.slow
def test_details_come_from_a_worker_too(rig: Rig, tmp_path: Path) -> None:
    """Place, rows and reruns pass through the process boundary; the other partition's process ends its work."""
    index = rig.batch(1, [(DRIFT, [11])])
    rig.close()
    place = diverge(rig, tmp_path / "out", workers=2)
    assert (place.index, place.position, place.procedure) == (index, 0, "drift")
    assert place.rows[0].live == {"id": 11, "balance": balances_of(rig.directory)[11]}
