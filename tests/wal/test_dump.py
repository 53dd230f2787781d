"""What an operator is shown of a log: heads, records, and a full check."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cmdlog.wal import dump
from cmdlog.wal.dump import DUMP_ATTEMPTS, dump_log, inspect_log, verify_log
from cmdlog.wal.errors import Corrupt, WrongDirectory
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import Record, RecordKind, encode_commit_mark, encode_json
from cmdlog.wal.format.segment import segment_name
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn, make_txn_id
from cmdlog.wal.reader import LogReader, Recycled
from tests.wal.logkit import IDENTITY, LOG, NODE, RESERVE_BYTES, append, at, create, hard_state, open_log, sim
from tests.wal.sim.simfiles import SimFiles

CATALOG = {
    "version": 1,
    "procedures": [{"name": "deposit", "parameters": ["account", "amount"]}],
    "bundle": "x" * 5000,
}
TXN = make_txn_id(millis=1_700_000_000_000, counter=0, partition=0)


def node() -> SimFiles:
    """A node with a catalog, a batch of two calls, a commit mark and a digest, over several segments."""
    files = SimFiles()
    catalog = encode_json(RecordKind.CATALOG, CATALOG, partition=CLUSTER_GROUP, term=1, index=1)
    batch = encode_batch(
        partition=0,
        term=1,
        index=1,
        catalog=1,
        txn_ids=range(TXN, TXN + 3072, 1024),
        procedures=[0, 7, 0],
        params=[b"[1,50]", b'["a"]', b"[2,9]"],
        keys=[bytes(16), b"0123456789abcdef", b"a client session" + struct.pack("<QQ", 17, 12)],
        ended=[b"an ended session"],
    )
    mark = encode_commit_mark(partition=0, term=1, commit=1, closed_txn=TXN + 2048)
    create(files, initial=[hard_state(1, 7), catalog, batch, mark])
    log, source = open_log(files)
    log.anchors.set("all", at(1))
    append(log, source, range(10))
    log.close()
    return files.kill()


def test_dump_shows_procedures_by_name_and_everything_as_json() -> None:
    """Calls are named through the catalog of their version; an unknown number stays a number; all of it is JSON."""
    rows = list(dump_log(node(), NODE))
    json.dumps(rows)
    batch = next(row for row in rows if row["kind"] == "batch")
    assert batch["calls"][0] == {
        "txn_id": str(TXN),
        "millis": 1_700_000_000_000,
        "procedure": "deposit",
        "params": {"account": 1, "amount": 50},
    }
    assert batch["calls"][1]["procedure"] == 7
    assert batch["calls"][1]["key"] == b"0123456789abcdef".hex()
    session, ended = b"a client session".hex(), b"an ended session".hex()
    assert {name: batch["calls"][2][name] for name in ("session", "number")} == {"session": session, "number": 17}
    assert batch["floors"] == {session: 12, ended: "ended"}
    assert [row["kind"] for row in rows].count("digest") == 10
    assert "x" * 100 not in json.dumps(rows)
    assert next(row for row in rows if row["kind"] == "commit_mark")["closed_txn"] == str(TXN + 2048)


@pytest.mark.parametrize(
    ("recycled", "after_records", "ends"), [(1, 0, False), (DUMP_ATTEMPTS - 1, 0, False), (DUMP_ATTEMPTS, 0, True), (1, 1, True)]
)
def test_dump_begins_with_what_is_the_oldest_now(
    recycled: int, after_records: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running node may recycle a segment before it is read. That ends the dump only once it has shown something."""
    files, left = node(), [recycled]
    whole = list(dump_log(files, NODE))

    class Overtaken(LogReader):
        def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]:
            left[0] -= 1
            for place, row in enumerate(super().read(after, upto)):
                if left[0] >= 0 and place == after_records:
                    raise Recycled("released")
                yield row

    monkeypatch.setattr(dump, "LogReader", Overtaken)
    shown = []
    with pytest.raises(Recycled) if ends else contextlib.nullcontext():
        for row in dump_log(files, NODE):
            shown.append(row)  # noqa: PERF402 -- what came before the error counts
    assert shown == (whole[:after_records] if ends else whole)


def test_inspect_tells_segments_groups_and_verdict() -> None:
    """Everything that recovery would look at, in one value."""
    seen = inspect_log(node(), NODE)
    json.dumps(seen)
    assert seen["verdict"] == "clean"
    assert seen["error"] is None
    firsts = [segment["first_block"] for segment in seen["segments"]]
    lasts = [segment["last_block"] for segment in seen["segments"]]
    assert firsts[1:] == [last + 1 for last in lasts[:-1]]
    assert seen["groups"][0] | {"last_checksum": ""} == {
        "term": 1,
        "vote": 7,
        "commit": 1,
        "last_index": 1,
        "last_term": 1,
        "last_checksum": "",
        "closed_txn": str(TXN + 2048),
        "last_txn": str(TXN + 2048),
        "configuration": None,
        "catalog_versions": [],
        "snapshots": [],
    }
    assert seen["groups"]["cluster"]["catalog_versions"] == [1]
    assert seen["reserve"] == {"bytes": RESERVE_BYTES, "left_bytes": RESERVE_BYTES}


def test_inspect_tells_what_is_left_of_the_reserve() -> None:
    """Of a full log whose control records have taken some of it, as the running log counts it."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("all", at(1))
    number = 0
    while log.reserve_left_bytes == RESERVE_BYTES:
        append(log, source, [number], size=900)
        log.run_background_work()
        number += 1
    seen = inspect_log(files, NODE)["reserve"]
    assert seen == {"bytes": RESERVE_BYTES, "left_bytes": log.reserve_left_bytes}
    assert seen["left_bytes"] < RESERVE_BYTES


def test_verify_counts_every_block_and_finds_nothing_in_a_whole_log() -> None:
    """A whole log has exit code 0 and as many records as a dump."""
    files = node()
    report = verify_log(files, NODE)
    assert (report.exit_code, report.error) == (0, None)
    assert report.records == len(list(dump_log(files, NODE)))
    assert all(row["error"] is None for row in report.segments)
    json.dumps(report.as_dict())


def test_verify_reports_damage_per_segment_and_goes_on() -> None:
    """Damage in an old segment, which opening does not look at, is named; the other segments are checked all the same."""
    files = node()
    files.flip_bit(f"{LOG}/{segment_name(1)}", 8 * (4096 * 3 + 100))
    report = verify_log(files, NODE)
    assert report.exit_code == Corrupt.exit_code
    assert [row["error"] is not None for row in report.segments] == [True] + [False] * (len(report.segments) - 1)
    with pytest.raises(Corrupt):
        list(dump_log(files, NODE))


def test_a_log_without_a_segment_is_reported() -> None:
    """Every segment deleted: verify names the first one that is missing, with exit code 10, and inspect shows what is left."""
    files = node()
    for name in files.listdir(LOG):
        if name.startswith("seg-"):
            files.unlink(f"{LOG}/{name}")
    report = verify_log(files, NODE)
    assert (report.exit_code, report.segments) == (Corrupt.exit_code, [])
    assert "segment 1 is missing" in str(report.error)
    assert inspect_log(files, NODE)["segments"] == []


def test_looking_at_a_damaged_directory_describes_it() -> None:
    """A log that may not be opened can still be inspected; a directory that is none is named."""
    files = node()
    files.unlink(f"{LOG}/{segment_name(2)}")
    seen = inspect_log(files, NODE)
    assert seen["verdict"] == "missing"
    assert segment_name(2) in seen["error"]["message"]
    assert verify_log(files, NODE).exit_code == 10
    with pytest.raises(WrongDirectory):
        verify_log(files, "/elsewhere")


def test_inspect_tells_the_members_of_a_cluster() -> None:
    """Also those that left; a node alone has none."""
    assert inspect_log(node(), NODE)["members"] == []
    golden = Path(__file__).parents[1] / "golden" / "v1"
    first, second = inspect_log(RealFiles(), str(golden))["members"]
    assert (first["node"], first["state"], first["former"], first["forced"]) == (1, "admitted", ["0001020304050607"], False)
    assert (second["node"], second["state"], second["peer"], second["forced"]) == (2, "removed", "127.0.0.1:7102", True)


def test_inspect_tells_who_is_declared_failed() -> None:
    """The fault log record by record; when it cannot be read, that is said beside all the rest."""
    files = node()
    assert inspect_log(files, NODE)["fault_log"] == {"failed": [], "records": [], "error": None}
    log = FaultLog.open(files, NODE, IDENTITY)
    log.append(failed={9}, term=3, demotions=((CLUSTER_GROUP, 5, 3), (0, 8, 3)), reason="no answer")
    log.append(failed={9, 4}, term=4)
    seen = inspect_log(files, NODE)["fault_log"]
    json.dumps(seen)
    assert seen["failed"] == [4, 9]
    assert [(row["sequence"], row["author"], row["reason"]) for row in seen["records"]] == [(1, 7, "no answer"), (2, 7, "")]
    assert seen["records"][1]["previous_checksum"] == seen["records"][0]["checksum"]
    for name in ("copy-1", "copy-2"):
        files.overwrite(f"{NODE}/faults/{name}", 60, b"damage")
    seen = inspect_log(files, NODE)
    assert (seen["verdict"], seen["fault_log"]["error"]["kind"]) == ("clean", "Corrupt")


@pytest.mark.parametrize(
    "look", [inspect_log, verify_log, lambda files, node: LogReader(files, node).survey], ids=["inspect", "verify", "read"]
)
def test_names_that_cross_are_looked_at_again(look: Callable[[SimFiles, str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A running node takes a segment for its next one between two file names: what is seen then is no damage."""
    files, crossed = node(), [segment_name(2)]
    listed = files.listdir

    def listdir(path: str) -> list[str]:
        gone = crossed.pop() if crossed and path == LOG else ""
        return [name for name in listed(path) if name != gone]

    whole = look(files, NODE)
    monkeypatch.setattr(files, "listdir", listdir)
    assert look(files, NODE) == whole
    assert crossed == []


def test_looking_changes_nothing_and_needs_no_lock() -> None:
    """All three work beside a running node and write nothing."""
    files = sim()
    log, source = open_log(files)
    append(log, source, range(4))
    operations = len(files.trace)
    assert inspect_log(files, NODE)["verdict"] == "unsealed"
    assert verify_log(files, NODE).exit_code == 0
    assert list(dump_log(files, NODE))
    assert len(files.trace) == operations
