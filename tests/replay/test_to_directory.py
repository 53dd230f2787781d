"""Recovery into another directory: a whole node, at the wanted moment, with the original untouched."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cmdlog.wal.errors import Corrupt, WrongDirectory
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from replay.errors import PlanOutdated, UntilUnreachable
from replay.plan.in_place_plan import plan_in_place
from replay.plan.node_plan import Plan, Planned
from replay.plan.planner import PAST, RECOVER, make_plan
from replay.plan.until import parse_until
from replay.recover.in_place import bring_up
from replay.recover.to_directory import rebuild
from snapshot.catalog import check, list_snapshots
from tests.replay.rig import DEPOSIT, FIRST_MILLIS, Rig, balances_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A node with some deposits behind it, running."""
    rig = Rig(tmp_path)
    rig.deposits(12)
    return rig


def rebuilt(rig: Rig, out: Path, until: int | None = None) -> dict[int, int]:
    """Balances of the node that a recovery makes."""
    rebuild(make_plan(rig.files, rig.directory, PAST, until=until), rig.files, str(out), workers=0)
    return balances_of(str(out))


def contents(directory: str) -> dict[str, bytes]:
    """Every file below the directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


def test_result_is_a_node_that_starts_where_the_old_one_ended(rig: Rig, tmp_path: Path) -> None:
    """Its log opens, its groups stand at the old ends with code and configuration, and its states need no replay."""
    rig.close()
    before, ends = rig.digests(), {p: index - 1 for p, index in rig.next_index.items()}
    rebuilt(rig, tmp_path / "out")
    out = str(tmp_path / "out")
    assert rig.digests(out) == before
    wal = Log.open(RealFiles(), out)
    groups = wal.recovered.groups
    assert {p: groups.state(p).last_index for p in range(2)} == ends
    assert groups.state(CLUSTER_GROUP).catalogs[1].value == rig.bundles["1"]
    assert groups.state(CLUSTER_GROUP).configuration is not None
    assert wal.recovered.txn_id_max >= rig.last_txn
    assert wal.instance.identity.incarnation != rig.identity.incarnation
    assert wal.instance.identity.cluster_id == rig.identity.cluster_id
    plan, report = bring_up(RealFiles(), wal)
    assert ([part.source for part in plan.partitions], report.calls) == (["state", "state"], 0)
    wal.close()


def test_result_recovers_from_its_own_snapshots(rig: Rig, tmp_path: Path) -> None:
    """Each partition has one verified snapshot; with the states lost it is all that is needed."""
    rig.close()
    before = rig.digests()
    rebuilt(rig, tmp_path / "out")
    out, files = str(tmp_path / "out"), RealFiles()
    wal = Log.open(files, out)
    snapshots = list_snapshots(files, out, wal.instance.identity)
    assert [(s.partition, check(files, s)) for s in snapshots] == [(0, ""), (1, "")]
    for p in range(2):
        Path(rig.state_file(p).replace(rig.directory, out)).unlink()
    plan, _ = bring_up(files, wal)
    wal.close()
    assert [part.source for part in plan.partitions] == ["snapshot", "snapshot"]
    assert rig.digests(out) == before


def test_original_is_untouched(rig: Rig, tmp_path: Path) -> None:
    """Not one byte of the source directory changes."""
    rig.snapshot(0)
    rig.close()
    before = contents(rig.directory)
    rebuilt(rig, tmp_path / "out")
    assert contents(rig.directory) == before


def test_until_every_transaction_equals_the_model(rig: Rig, tmp_path: Path) -> None:
    """Cut at any transaction, inside batches too, the balances are those of a model that stopped there."""
    rig.close()
    chosen = [entry for n, entry in enumerate(rig.history) if n >= 6 and n % 5 == 0]
    for n, (txn, balances) in enumerate(chosen):
        found = rebuilt(rig, tmp_path / f"out{n}", txn)
        assert found == balances, f"until {txn}, call {n} of {len(chosen)}"
        wal = Log.open(RealFiles(), str(tmp_path / f"out{n}"))
        plan, _ = bring_up(RealFiles(), wal)
        wal.close()
        assert [part.source for part in plan.partitions] == ["state", "state"], "log and states end at the same entries"


def test_until_a_time_is_inclusive(rig: Rig, tmp_path: Path) -> None:
    """Transactions of that very millisecond are in, those of the next are not."""
    rig.close()
    txn, balances = rig.history[20]
    moment = datetime.fromtimestamp((txn >> 21) / 1000, UTC)
    assert parse_until(moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")) >= txn
    assert rebuilt(rig, tmp_path / "out", parse_until(moment.isoformat(timespec="milliseconds"))) == balances


def test_until_uses_a_snapshot_from_before(rig: Rig, tmp_path: Path) -> None:
    """A snapshot behind the wanted end is passed over and named, an older one is used."""
    rig.snapshot(0)
    rig.deposits(4)
    until, balances = rig.history[-1]
    rig.deposits(4)
    rig.snapshot(0)
    rig.close()
    planned = make_plan(rig.files, rig.directory, PAST, until=until)
    part = planned.plan.partitions[0]
    assert part.source == "snapshot"
    assert ["after the requested end" in passed.why for passed in part.passed] == [True]
    assert rebuilt(rig, tmp_path / "out", until) == balances


def test_until_honours_a_skip_that_was_logged_later(rig: Rig, tmp_path: Path) -> None:
    """The watchdog needs its time: other batches, and the wanted end, lie between a batch and the record that skips its call."""
    index = rig.batch(0, [(DEPOSIT, [0, 1]), (DEPOSIT, [1, 1_000_000])], skips=frozenset({1}), digest=False)
    rig.batch(0, [(DEPOSIT, [2, 7])])
    until, balances = rig.history[-1]
    rig.batch(0, [(DEPOSIT, [2, 9])])
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 1, "reason": "hung", "txn_id": rig.tick(1, 0)[0]})
    rig.close()
    assert rebuilt(rig, tmp_path / "out", until) == balances


def test_partly_applied_batch_does_not_stop_the_new_node(rig: Rig, tmp_path: Path) -> None:
    """The new node goes on behind a batch that was cut in the middle: next index, next transaction."""
    rig.close()
    txn, balances = rig.history[-2]
    assert rebuilt(rig, tmp_path / "out", txn) == balances
    wal = Log.open(RealFiles(), str(tmp_path / "out"))
    group = wal.recovered.groups.state(1)
    assert group.last_index == rig.next_index[1] - 1
    assert group.last_txn >= rig.last_txn, "an id that the old node gave is not given again"
    wal.close()


def test_until_before_everything_is_refused_when_the_log_does_not_reach_back(rig: Rig, tmp_path: Path) -> None:
    """A node that was rebuilt has no history before its snapshots."""
    rig.close()
    rebuilt(rig, tmp_path / "out")
    with pytest.raises(UntilUnreachable):
        make_plan(RealFiles(), str(tmp_path / "out"), PAST, until=rig.history[7][0])


def test_target_that_is_not_empty_is_refused(rig: Rig, tmp_path: Path) -> None:
    """Nothing of what is there is touched."""
    rig.close()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(WrongDirectory):
        rebuilt(rig, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_failed_rebuild_leaves_an_empty_directory(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step fails, nothing is left that looks like a node."""
    rig.close()
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        rebuilt(rig, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_plan_from_a_file_does_the_same(rig: Rig, tmp_path: Path) -> None:
    """A plan that went through a file gives the same states as one that did not."""
    txn, balances = rig.history[-5]
    rig.close()
    plan = Plan.from_json(make_plan(rig.files, rig.directory, PAST, until=txn).plan.to_json())
    rebuild(Planned.of(rig.files, plan), rig.files, str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == balances


def test_plan_in_place_that_the_log_has_outgrown_is_refused(rig: Rig) -> None:
    """A plan made before more was logged would leave it out."""
    rig.stop()
    plan = make_plan(rig.files, rig.directory, RECOVER).plan
    rig.restart()
    rig.batch(0, [(DEPOSIT, [0, 1])])
    rig.stop()
    wal = Log.open(rig.files, rig.directory)
    with pytest.raises(PlanOutdated):
        plan_in_place(rig.files, wal, rig.trust, given=plan)
    wal.close()


@pytest.mark.parametrize("behind", [2, 40], ids=["in the newest segment", "in a full segment"])
def test_damaged_log_is_refused_and_its_good_part_given_on_request(rig: Rig, tmp_path: Path, behind: int) -> None:
    """A flipped bit in an acknowledged block: refused; with the loss accepted, everything before it comes back."""
    balances = dict(rig.balances)
    rig.batch(0, [(DEPOSIT, [0, 424242])])
    rig.deposits(behind)
    rig.close()
    segment = next(path for path in Path(rig.directory, "log").glob("seg-*") if b"424242" in path.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"424242", b"424243"))
    with pytest.raises(Corrupt):
        make_plan(rig.files, rig.directory, PAST)
    planned = make_plan(rig.files, rig.directory, PAST, accept_data_loss=True)
    assert planned.plan.notes
    rebuild(planned, rig.files, str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == balances


def test_replaced_suffix_is_not_replayed(rig: Rig) -> None:
    """An entry of a higher term at the same index puts the old one and all behind it out of force."""
    rig.close()
    rig.restart()
    at = rig.next_index[0]
    rig.entry(
        0, RecordKind.SCHEMA, {"statements": ["CREATE TABLE wrong (id INTEGER NOT NULL PRIMARY KEY)"], "txn_id": 1}, live=False
    )
    rig.entry(0, RecordKind.CONFIGURATION, {"voters": [1], "learners": [], "epoch": 1}, live=False)
    rig.next_index[0], rig.term = at, rig.term + 1
    rig.batch(0, [(DEPOSIT, [0, 77])], live=False)
    rig.stop()
    wal = Log.open(rig.files, rig.directory)
    plan, _ = bring_up(rig.files, wal)
    wal.close()
    assert plan.partitions[0].to_index == at
    assert balances_of(rig.directory) == rig.balances


def test_until_is_a_number_or_a_time_with_zone() -> None:
    """A decimal number is a transaction id; a time without zone, or nonsense, is refused in words."""
    assert parse_until("17") == 17
    assert parse_until("1970-01-01T00:00:00Z") < FIRST_MILLIS << 21
    for wrong in ("2026-01-01T00:00:00", "yesterday"):
        with pytest.raises(Exception, match="time"):
            parse_until(wrong)


@pytest.mark.parametrize("inside", ["copy", "archive/copy", "."])
def test_a_place_in_the_directory_itself_is_refused(rig: Rig, tmp_path: Path, inside: str) -> None:
    """What is recovered from stays as it is; by a link to it, too."""
    rig.deposits(2)
    rig.stop()
    before = contents(rig.directory)
    (tmp_path / "link").symlink_to(rig.directory)
    for directory in (rig.directory, str(tmp_path / "link")):
        with pytest.raises(WrongDirectory):
            rebuilt(rig, Path(directory) / inside)
    assert contents(rig.directory) == before
