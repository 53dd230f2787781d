"""FORMAT.md against the codecs, and the golden log of the format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cmdlog.wal
from cmdlog.wal.dump import dump_log, verify_log
from cmdlog.wal.fault_record import DEMOTION, FAULT, FAULT_COPY
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import BATCH, decode_batch, places_of
from cmdlog.wal.format.block import HEADER, BlockFlag, check_body, decode_header, encode_block
from cmdlog.wal.format.call_places import PLACES
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import (
    COMMIT_MARK,
    DIGEST,
    EMPTY,
    RECORD,
    Record,
    RecordKind,
    decode_body,
    decode_commit_mark,
    encode_commit_mark,
)
from cmdlog.wal.format.segment import SEGMENT
from cmdlog.wal.format.session_columns import ENDED, SESSION, SESSIONS
from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.hard_state import HARDSTATE
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from cmdlog.wal.reader import LogReader
from tests.golden import write_log
from tests.golden.write_log import BATCHES, EVERYWHERE, EVERYWHERE_CALLS, NAMED, NAMED_CALLS, SENT, SENT_CALLS
from tests.wal.sim.simfiles import SimFiles

FORMAT = Path(cmdlog.wal.__file__).with_name("FORMAT.md").read_text(encoding="utf-8")
LAYOUTS = [
    SEGMENT,
    HEADER,
    RECORD,
    BATCH,
    PLACES,
    SESSIONS,
    SESSION,
    DIGEST,
    COMMIT_MARK,
    EMPTY,
    HARDSTATE,
    FAULT_COPY,
    FAULT,
    DEMOTION,
]
GOLDEN = Path(__file__).parents[1] / "golden" / "v1"


def table_under(title: str) -> Iterator[tuple[int, int, str]]:
    """The rows (offset, size, field) of the table below a heading."""
    section = re.split(rf"^#+ {re.escape(title)}$", FORMAT, flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    for offset, size, name in re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|$", section, flags=re.MULTILINE):
        yield int(offset), int(size), name


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
def test_every_layout_is_in_the_document_as_it_is(layout: Layout) -> None:
    """Offsets, sizes and names of the document are those of the codec."""
    assert list(table_under(layout.title)) == [(f.offset, f.size, f.name) for f in layout.fields]
    assert layout.fields[-1].offset + layout.fields[-1].size == layout.bytes


def test_the_document_names_every_record_kind() -> None:
    """Numbers and names of the kinds are those of the code."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", FORMAT, flags=re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(int(kind), kind.name) for kind in RecordKind]


def test_the_hex_dump_is_a_block() -> None:
    """The worked example decodes to what its text says, and encodes to the same bytes."""
    dump = re.findall(r"```hexdump\n(.*?)```", FORMAT, flags=re.DOTALL)[0]
    raw = b"".join(bytes.fromhex(line[4:]) for line in dump.splitlines())
    data = raw.ljust(4096, b"\0")
    header = decode_header(data)
    ((offset, record),) = decode_body(check_body(header, data))
    assert (header.generation, header.number, header.durable_upto) == (0x1122334455667788, 9, 8)
    assert (header.chain, header.open_count, offset) == (0xCAFEF00D, 5, 0)
    assert (record.kind, record.partition, record.term, record.index) == (RecordKind.COMMIT_MARK, 3, 2, 41)
    mark = encode_commit_mark(partition=3, term=2, commit=41, closed_txn=decode_commit_mark(record))
    encoded, checksum = encode_block(
        [mark],
        flags=BlockFlag.NONE,
        generation=header.generation,
        number=9,
        durable_upto=8,
        chain=0xCAFEF00D,
        open_count=5,
    )
    assert encoded == data
    assert f"{checksum:#x}" in FORMAT


def test_the_golden_log_stays_readable() -> None:
    """It verifies, dumps and opens with everything in it."""
    files = in_memory(GOLDEN)
    report = verify_log(files, "/node")
    assert report.error is None
    assert len(report.segments) >= 2
    found = [record for _, record in LogReader(files, "/node").read()]
    assert {record.kind for record in found} == set(RecordKind)
    batches = [decode_batch(record) for record in found if record.kind is RecordKind.BATCH and record.partition == 0]
    assert [batch.record.index for batch in batches] == list(range(2, 2 + BATCHES))
    assert all(batch.params() == [[batch.record.index, 50], [2, "7.25"]] for batch in batches)
    assert [batch.keys is not None for batch in batches[:4]] == [False, False, False, True]
    assert len(list(dump_log(files, "/node"))) == len(found)
    log = Log.open(files, "/node")
    assert log.recovered.verdict.name == "CLEAN"
    assert log.recovered.groups.by_partition[0].commit == 1 + BATCHES
    assert sorted(log.recovered.groups.by_partition[CLUSTER_GROUP].catalogs) == [1]


def golden_batches(partition: int) -> list[Record]:
    """Those of one partition of the golden log."""
    found = [record for _, record in LogReader(in_memory(GOLDEN), "/node").read()]
    return [record for record in found if record.kind is RecordKind.BATCH and record.partition == partition]


def test_golden_sessions_stay_readable() -> None:
    """Every call has the name, and every session the floor, that it was written with."""
    batches = [decode_batch(record) for record in golden_batches(NAMED)]
    assert len(batches) == len(NAMED_CALLS)
    for batch, (calls, ended) in zip(batches, NAMED_CALLS, strict=True):
        names = [call if isinstance(call, bytes) else call[0] + call[1].to_bytes(8, "little") for call in calls]
        assert batch.key_list() == names
        brought = [(call[0], call[2]) for call in calls if not isinstance(call, bytes)]
        assert batch.floors == {session: max(floor for of, floor in brought if of == session) for session, _ in brought} | (
            dict.fromkeys(ended, ENDED)
        )


def test_golden_requests_stay_readable() -> None:
    """A batch says what its callers sent, where that was not the parameters."""
    batches = [decode_batch(record) for record in golden_batches(SENT)]
    assert [batch.sent or [0] * batch.count for batch in batches] == [[sent for _, sent in calls] for calls in SENT_CALLS]
    assert not any(decode_batch(record).sent for record in golden_batches(NAMED))


def test_golden_calls_on_all_partitions_name_their_places() -> None:
    """So does the skip of one; other batches name none."""
    assert [places_of(record) for record in golden_batches(EVERYWHERE)] == list(EVERYWHERE_CALLS)
    skips = [record for _, record in LogReader(in_memory(GOLDEN), "/node").read() if record.kind is RecordKind.SKIP]
    assert [Skip.from_record(record).everywhere for record in skips if record.partition == EVERYWHERE] == [(2,) * 5]
    assert not any(map(places_of, golden_batches(NAMED)))


def test_the_golden_writer_still_writes_the_same_records() -> None:
    """The script beside the golden bytes is the one that made them: same files, same records."""
    made = write_log.write()
    assert sorted(made) == sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file())
    found = [record.raw for _, record in LogReader(in_memory(GOLDEN), "/node").read()]
    assert [raw for raw in found if raw[4] != RecordKind.CHECKPOINT] == write_log.records()


def in_memory(folder: Path) -> SimFiles:
    """A copy of a committed directory on a simulated disk: tests never write to golden files."""
    files, real = SimFiles(), RealFiles()
    for name in ("/node", "/node/log"):
        files.mkdir(name)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = files.open(f"/node/{path.relative_to(folder)}", create=True)
            target.pwrite(real.read_file(str(path)), 0)
            target.fsync()
    for name in ("/", "/node", "/node/log"):
        files.fsync_dir(name)
    return files
