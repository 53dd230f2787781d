"""The restore drill: it proves what is whole, names what is not, and leaves nothing but its report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import orjson
import pytest

import cmdlog
from cmdlog.wal.errors import Locked
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import decode_record
from cmdlog.wal.reader import Recycled
from procedures.samples import bank
from replay.drill import drill as module
from replay.drill import proofs
from replay.drill import report as drillreport
from replay.drill.drill import drill
from replay.drill.proofs import NoRoom
from replay.drill.report import FOLDER, DrillReport, Proof, alone, last_proven, last_report
from replay.plan.planner import make_plan
from replay.recover.execute import execute
from snapshot import retention
from snapshot.archive.archive_retention import write_promise
from snapshot.manifest import TableEntry, decode_manifest, encode_manifest, file_entry
from snapshot.table_digest import open_image, table_digests
from tests.replay.archiverig import FOREVER_S, ArchiveRig
from tests.replay.drills import left_behind, run_drill, with_snapshots
from tests.replay.rig import DEPOSIT, DRIFT, Rig

FILES = RealFiles()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """See `with_snapshots`."""
    return with_snapshots(tmp_path)


def change_row(snapshot: str, *, account: int, stated: bool = True) -> None:
    """Changes a row of an image, and makes the checksums of the snapshot fit again: that of the file, if `stated` of the rows."""
    image, path = Path(snapshot, "image.sqlite"), Path(snapshot, "manifest.json")
    connection = apsw.Connection(str(image))
    connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = ?", (account,))
    connection.close()
    manifest = decode_manifest(path.read_bytes(), path=str(path))
    opened = open_image(image)
    tables = tuple(TableEntry(name, digest.rows, digest.sha256) for name, digest in table_digests(opened).items())
    opened.close()
    path.write_bytes(
        encode_manifest(replace(manifest, tables=tables if stated else manifest.tables, files=(file_entry(str(image)),)))
    )


# -- what is whole -------------------------------------------------------------------------------------------------------


def test_whole_node_is_proven_in_two_ways(rig: Rig) -> None:
    """Both proofs of every partition, with calls replayed and digests and tables compared; the node's own files are untouched."""
    files = [path for path in Path(rig.directory).rglob("*") if path.is_file() and not path.name.startswith("free-")]
    before = {path: path.stat().st_mtime_ns for path in files}  # but for segments that the log's own thread makes ready
    report = run_drill(rig)
    assert (report.error, report.verdict, report.attempts) == (None, "proven", 1)
    for partition in (0, 1):
        newest, second = report.newest[partition], report.second[partition]
        assert newest.from_index <= newest.to_index < rig.next_index[partition]
        assert (second.snapshot < newest.snapshot, second.to_index) == (True, newest.from_index)
        assert second.calls == 12
        assert second.digests == 4
        assert newest.tables == second.tables == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert left_behind(rig) == ["lock"]


def test_report_says_what_was_proven_and_when(rig: Rig) -> None:
    """The file bears the time, and holds what the drill returned."""
    began = datetime.now(UTC) - timedelta(seconds=1)
    report = run_drill(rig, seed=7)
    value = orjson.loads(Path(report.path).read_bytes())
    assert value == report.to_json() == last_report(rig.directory)
    assert (value["verdict"], value["seed"], value["error"]) == ("proven", 7, None)
    assert Path(report.path).stem[:8] == began.strftime("%Y%m%d")
    proven = last_proven(rig.directory)
    assert proven is not None
    assert began <= proven <= datetime.now(UTC)


def test_a_seed_repeats_a_drill_and_others_reach_other_moments(rig: Rig) -> None:
    """The moment that is replayed to is drawn by the seed alone."""
    ends = {seed: [proof.to_index for proof in run_drill(rig, seed=seed).newest.values()] for seed in range(8)}
    assert ends[3] == [proof.to_index for proof in run_drill(rig, seed=3).newest.values()]
    assert len({tuple(of) for of in ends.values()}) > 1


def test_node_without_snapshots_is_replayed_from_nothing(tmp_path: Path) -> None:
    """The log that reaches back to the first entry is what a recovery would use."""
    rig = Rig(tmp_path)
    rig.deposits(8)
    rig.log()
    report = run_drill(rig)
    assert report.verdict == "proven"
    assert [proof.snapshot for proof in report.newest.values()] == ["", ""]
    assert report.second == {}


@pytest.mark.slow
def test_promised_past_is_proven_from_the_archive(tmp_path: Path) -> None:
    """Each seed draws a moment of the window; all partitions get there, over files of the archive; the report says which."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(8)
    write_promise(FILES, rig.directory, window_s=FOREVER_S)
    reports = [run_drill(rig, seed=seed) for seed in range(6)]
    assert [report.verdict for report in reports] == ["proven"] * 6, [report.error for report in reports]
    assert len({report.moment_txn for report in reports}) == 6
    assert sum(bool(report.archive) for report in reports) >= 3
    for report in reports:
        assert report.moment.keys() == {0, 1}
        assert report.moment_txn is not None
        assert all(proof.to_txn <= report.moment_txn for proof in report.moment.values())
    value = reports[0].to_json()
    assert value["moment"] == {"txn_id": str(reports[0].moment_txn), "archive": list(reports[0].archive)}
    assert left_behind(rig) == ["lock"]


@pytest.mark.slow
def test_promised_past_that_is_lost_is_caught(tmp_path: Path) -> None:
    """Files of the archive are gone or nonsense: a drill that draws a moment in them says so; without a promise none is drawn."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(8)
    write_promise(FILES, rig.directory, window_s=FOREVER_S)
    for n, name in enumerate(rig.names(".seg")):
        path = Path(rig.directory, "archive", name)
        path.unlink() if n % 2 else path.write_bytes(b"nonsense")
    reports = [run_drill(rig, seed=seed) for seed in range(4)]
    assert {report.verdict for report in reports} >= {"damaged"}
    damaged = next(report for report in reports if report.error is not None)
    assert f"transaction {damaged.moment_txn} of the promised window cannot be restored" in str(damaged.error)
    assert damaged.exit_code == 10
    write_promise(FILES, rig.directory, window_s=0)
    assert run_drill(rig).moment_txn is None


# -- what is not ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1], ids=["second", "newest"])
def test_row_that_changed_together_with_its_checksums_is_caught(tmp_path: Path, at: int) -> None:
    """No checksum tells: only the other way to the same state does."""
    rig = Rig(tmp_path, partitions=1)
    paths = []
    for _ in range(2):
        rig.batch(0, [(DEPOSIT, [0, 5])] * 3)
        paths.append(rig.snapshot(0))
    change_row(paths[at], account=2)  # which no call touches, so no digest of a batch tells either
    report = run_drill(rig)
    assert (report.verdict, report.exit_code) == ("diverged", 16)
    assert "differ in accounts (3 rows against 3)" in str(report.error)
    assert last_proven(rig.directory) is None
    assert left_behind(rig) == ["lock"]


def test_image_whose_rows_are_not_those_of_its_manifest_is_caught(tmp_path: Path) -> None:
    """Before anything is replayed: the file is whole, and holds something else."""
    rig = Rig(tmp_path)
    rig.deposits(8)
    change_row(rig.snapshot(0), account=0, stated=False)
    report = run_drill(rig)
    assert report.verdict == "diverged"
    assert "its manifest" in str(report.error)


def test_chain_of_deltas_is_proven_and_a_wrong_row_in_it_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest state and second proof come from deltas on images of their own. What a delta makes its manifest does not say."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 10.0)
    directory, kinds = tmp_path / "chained", []
    with cmdlog.open(directory, bank.db, partitions=1, segments=4, segment_bytes=4 << 20) as opened:
        opened.call("open_accounts", branch=1, first=0, count=100, savings=5, checking=5)
        for customer in range(4):
            kinds += [described["kind"] for described in opened.node.take_snapshot()]
            opened.call("deposit_checking", branch=1, customer=customer, amount=7)
    assert kinds == ["full", "full", "delta", "delta"]
    report = drill(FILES, str(directory), seed=1)
    assert (report.error, report.verdict) == (None, "proven")
    newest = max(directory.glob("snapshots/p0000-*"))
    delta, path = newest / "delta.sqlite", newest / "manifest.json"
    connection = apsw.Connection(str(delta))
    connection.execute("UPDATE accounts SET checking = checking + 1")
    connection.close()
    manifest = decode_manifest(path.read_bytes(), path=str(path))
    path.write_bytes(encode_manifest(replace(manifest, files=(file_entry(str(delta)),))))
    report = drill(FILES, str(directory), seed=1)
    assert report.verdict == "diverged"
    assert "differ in accounts" in str(report.error)


def test_procedure_that_is_not_deterministic_is_caught_by_digests(rig: Rig) -> None:
    """The report names the call."""
    rig.batch(0, [(DRIFT, [0])])
    for partition in (0, 1):
        rig.snapshot(partition)
    report = run_drill(rig)
    assert (report.verdict, report.exit_code) == ("diverged", 16)
    assert "drift" in str(report.error)
    assert "state was removed" not in str(report.to_json())


def test_entry_that_is_missing_in_the_log_is_caught(rig: Rig) -> None:
    """The site applied an entry that the log does not hold."""
    record = rig.log
    rig.log = lambda *_records: 0  # type: ignore[method-assign]
    rig.batch(0, [(DEPOSIT, [0, 1])], digest=False)
    rig.log = record  # type: ignore[method-assign]
    rig.deposits(4)
    for partition in (0, 1):
        rig.snapshot(partition)
    report = run_drill(rig)
    assert report.exit_code == 10
    assert report.verdict == "damaged"


def test_entry_that_is_another_one_in_the_log_is_caught(rig: Rig) -> None:
    """The log holds a call that the site never ran: no digest was written for it."""
    index = rig.next_index[0]
    other = encode_batch(
        partition=0, term=rig.term, index=index, catalog=rig.version, txn_ids=rig.tick(1, 0), procedures=[DEPOSIT],
        params=[orjson.dumps([0, 17])],
    )  # fmt: skip
    written = rig.log
    rig.log = lambda *_records: written(other)  # type: ignore[method-assign]
    rig.batch(0, [(DEPOSIT, [0, 18])], digest=False)
    rig.log = written  # type: ignore[method-assign]
    rig.deposits(2)
    for partition in (0, 1):
        rig.snapshot(partition)
    assert decode_record(other).index == index
    assert run_drill(rig).verdict == "diverged"


@pytest.mark.parametrize("at", [-1, -2], ids=["newest", "second"])
def test_damaged_snapshot_is_named(rig: Rig, at: int) -> None:
    """A recovery would go on with an older one; the drill says what is wrong, and exits with 10."""
    path = sorted(Path(rig.directory, "snapshots").glob("p0000-*"))[at]
    image = path / "image.sqlite"
    data = bytearray(image.read_bytes())
    data[5000] ^= 1
    image.write_bytes(data)
    report = run_drill(rig)
    assert (report.verdict, report.exit_code) == ("damaged", 10)
    assert path.name in str(report.error)


def test_disk_without_room_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drill refuses before it writes: the disk may be the one that the node's log needs."""
    monkeypatch.setattr(proofs, "ROOM_BYTES_MIN", 1 << 60)
    report = run_drill(rig)
    assert isinstance(report.error, NoRoom)
    assert (report.verdict, report.exit_code) == ("not_run", 14)


# -- beside a node -------------------------------------------------------------------------------------------------------


def test_what_the_node_recycles_meanwhile_is_looked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in a plan, once in a replay; and a node that always does so ends the drill, without a word about its snapshots."""
    failures: list[Exception | None] = [Recycled("gone"), None, Recycled("gone"), None, None]

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if failures and (failure := failures.pop(0)) is not None:
                raise failure
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(proofs, "make_plan", failing(make_plan))
    monkeypatch.setattr(proofs, "execute", failing(execute))
    report = run_drill(rig)
    assert (report.verdict, report.attempts) == ("proven", 3)
    failures += [Recycled("gone")] * 100
    report = run_drill(rig)
    assert (report.verdict, report.attempts) == ("not_run", module.ATTEMPTS_MAX)
    assert left_behind(rig) == ["lock"]


def test_interrupted_drill_leaves_nothing(rig: Rig) -> None:
    """Ctrl-C in the middle of a replay: no throw-away folder, no report."""

    def interrupt(_progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drill(FILES, rig.directory, seed=1, progress=interrupt)
    assert os.listdir(Path(rig.directory, FOLDER)) == ["lock"]


def test_what_a_killed_drill_left_goes_with_the_next_one(rig: Rig) -> None:
    """Only folders of the drill's own names are swept."""
    for name in ("tmp-0123456789abcdef", "tmp-mine"):
        os.makedirs(Path(rig.directory, FOLDER, name, "state"))
    run_drill(rig)
    assert sorted(left_behind(rig)) == ["lock", "tmp-mine"]


def test_two_drills_at_a_time_are_one_too_many(rig: Rig) -> None:
    """The second is refused: it would sweep the first one's folder away."""
    run_drill(rig)
    with alone(str(Path(rig.directory, FOLDER))), pytest.raises(Locked):
        run_drill(rig)


def test_reports_are_bounded_and_the_last_proof_is_found_among_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go; two of one second have two names; one that cannot be read says nothing."""
    monkeypatch.setattr(drillreport, "REPORTS_MAX", 3)
    moment = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)

    def drilled(second: int) -> DrillReport:
        monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _zone: moment + timedelta(seconds=second)))
        return drill(FILES, rig.directory, seed=1)

    for _ in range(2):
        drilled(0)
    monkeypatch.setattr(proofs, "ROOM_BYTES_MIN", 1 << 60)
    failed = drilled(1)
    assert failed.verdict == "not_run"
    names = sorted(name for name in os.listdir(Path(rig.directory, FOLDER)) if name.endswith(".json"))
    assert names == ["20260131T120000Z-2.json", "20260131T120000Z.json", "20260131T120001Z.json"]
    assert last_proven(rig.directory) == moment
    report = last_report(rig.directory)
    assert report is not None
    assert report["verdict"] == "not_run"
    for second in (2, 3):
        drilled(second)
    assert last_proven(rig.directory) is None
    Path(rig.directory, FOLDER, "20260131T130000Z.json").write_bytes(b"{")
    assert last_report(rig.directory) is not None


@pytest.mark.parametrize("seed", range(4))
def test_log_without_a_second_way_is_replayed_to_its_end(tmp_path: Path, seed: int) -> None:
    """Without a snapshot from the first entry, and after a single one: nothing else would compare those calls."""
    rig = Rig(tmp_path)
    rig.deposits(8)
    rig.snapshot(0)
    rig.deposits(8)
    rig.log()
    report = run_drill(rig, seed=seed)
    assert {p: proof.to_index for p, proof in report.newest.items()} == {p: rig.next_index[p] - 1 for p in (0, 1)}
    assert (report.newest[0].snapshot != "", report.newest[1].snapshot) == (True, "")
    assert min(proof.calls for proof in report.newest.values()) > 0
    assert report.uncompared == []


def test_values_of_a_report_are_plain() -> None:
    """Transaction ids are decimal strings, as everywhere."""
    proof = Proof("p", 1, 2, 1 << 60, 3, 4, 5, 6)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    told = DrillReport("d", 1, now, now, newest={0: proof}).to_json()["partitions"][0]
    assert told["newest"] == {**asdict(proof), "to_txn": str(1 << 60)}
    assert told["second"] is None
