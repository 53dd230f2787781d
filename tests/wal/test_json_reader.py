"""JSON that others wrote is read to its limits, and no reader of it fails otherwise than it says."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from cmdlog.cluster.copying.copy_values import CopyManifest, LogShape, decode_value
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.node.forwarding.forwarded_calls import decode_reply
from cmdlog.node.outcome import UnknownOutcome
from cmdlog.raft.configuration import Configuration
from cmdlog.raft.errors import BadConfiguration
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity, load_instance
from cmdlog.wal.divergence_file import DivergenceFile
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.checked_json import read_checked
from cmdlog.wal.format.json_reader import DEPTH_MAX, VALUES_MAX, BadJson, load_document, read_document, whole_number
from cmdlog.wal.format.record import BadRecord, RecordKind, decode_record, encode_record
from replay.errors import BadPlan
from replay.log.collect_evidence import BOOK_PATH, peers_met
from replay.log.evidence import PeersMet
from replay.plan.cluster_plan import JointPlan
from replay.plan.node_plan import Plan
from snapshot.archive.archive_retention import PROMISE_NAME, read_promise
from snapshot.archive_layout import ARCHIVE, decode_segment_manifest
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import decode_manifest
from snapshot.recovery_points import list_points

FILES, ME = RealFiles(), Identity(bytes(16), 1, bytes(8))
HOSTILE = {
    "brackets without end": b'{"format":' + b"[" * 1_000_000,
    "objects without end": b'{"a":' * 200_000,
    "levels that Python does not recurse": b'{"format":' + b"[" * 900 + b"]" * 900 + b"}",
    "levels that are not written": b'{"format":' + b"[" * 300 + b"]" * 300 + b"}",
    "values without content": b'{"format":[' + b"[]," * VALUES_MAX + b"[]]}",
    "no object": b"[1]",
    "no text": b"\xff\xfe",
    "nothing": b"",
}


def nested(levels: int) -> bytes:
    """An object with so many levels."""
    return b'{"a":' * levels + b"1" + b"}" * levels


def at(folder: Path, *names: str) -> Callable[[bytes], Path]:
    """Writes a file of a directory, which is returned."""

    def write(text: bytes) -> Path:
        path = folder.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return folder

    return write


def refuses(error: type[Exception], read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """A reader that raises its own error."""

    def check(text: bytes) -> None:
        with pytest.raises(error):
            read(text)

    return check


def returns(value: object, read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """A reader that returns a value for what it cannot read."""

    def check(text: bytes) -> None:
        assert read(text) == value

    return check


def record_of(payload: bytes) -> bytes:
    """A control record."""
    return encode_record(RecordKind.SCHEMA, payload, partition=0, term=1, index=1)


def readers(folder: Path) -> dict[str, Callable[[bytes], None]]:
    """All that reads a document of somebody else."""
    instance, diverged = at(folder, INSTANCE_NAME), at(folder, "cluster", "diverged.json")
    book, promise = at(folder, *BOOK_PATH), at(folder, ARCHIVE, PROMISE_NAME)
    point, copied = at(folder, "snapshots", "points", "17.json"), at(folder, "copying.json")
    return {
        "copy": refuses(BadFrame, lambda text: decode_value(text, CopyManifest.from_json)),
        "log shape": refuses(BadFrame, lambda text: decode_value(text, LogShape.from_json)),
        "copy, stored": refuses(Corrupt, lambda text: read_checked(FILES, f"{copied(text)}/copying.json")),
        "snapshot": refuses(SnapshotDamaged, lambda text: decode_manifest(text, path="m")),
        "archived segment": refuses(SnapshotDamaged, lambda text: decode_segment_manifest(text, path="m")),
        "instance": refuses(Corrupt, lambda text: load_instance(FILES, str(instance(text)))),
        "divergence": refuses(Corrupt, lambda text: DivergenceFile(FILES, str(diverged(text)))),
        "book of peers": refuses(Corrupt, lambda text: PeerBook.open(FILES, str(book(text)), ME)),
        "book of peers, for a plan": returns(PeersMet(), lambda text: peers_met(FILES, str(book(text)), ME)),
        "promise": returns(math.inf, lambda text: read_promise(FILES, str(promise(text)))),
        "point": returns(["17.json"], lambda text: [bad.name for bad in list_points(FILES, str(point(text)))[1]]),
        "plan": refuses(BadPlan, Plan.from_json),
        "joint plan": refuses(BadPlan, JointPlan.from_json),
        "record": refuses(BadRecord, lambda text: decode_record(record_of(text)).json()),
        "configuration": refuses(BadConfiguration, lambda text: Configuration.from_bytes(text.replace(b"format", b"voters"))),
        "refusal of a call": returns(UnknownOutcome, lambda text: type(decode_reply(255, 0, text, b""))),
        "trace of a call": returns(UnknownOutcome, lambda text: type(decode_reply(2, 1, b"{}", text or b"[]"))),
    }  # fmt: skip


def test_every_reader_refuses_what_is_beyond_the_limits(tmp_path: Path) -> None:
    """With its own error, whatever the document does, and at the cost of a small multiple of its bytes."""
    for name, reader in readers(tmp_path).items():
        for what, text in HOSTILE.items():
            tracemalloc.start()
            try:
                reader(text)
                _, peak = tracemalloc.get_traced_memory()
            except BaseException as error:
                raise AssertionError(f"{name}: {what}: {error!r:.300}") from error
            finally:
                tracemalloc.stop()
            assert peak < 16 * len(text) + (1 << 20), (name, what)


def test_documents_are_read_up_to_their_limits() -> None:
    """Levels, values and bytes; texts may hold as many commas and brackets as they like."""
    assert read_document(nested(DEPTH_MAX)) == orjson.loads(nested(DEPTH_MAX))
    with pytest.raises(BadJson, match="64 levels"):
        read_document(nested(DEPTH_MAX + 1))
    code = orjson.dumps({"code": 'f(a[1], "b", {c, d})\\' * (VALUES_MAX // 4)})
    assert len(read_document(code, bytes_max=len(code))) == 1
    with pytest.raises(BadJson, match=f"{len(code)} bytes of JSON, at most {len(code) - 1}"):
        read_document(code, bytes_max=len(code) - 1)


def test_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    """A sparse one claims what no memory holds."""
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Corrupt, match="at most 4194304"):
        load_document(FILES, str(path))
    with pytest.raises(Corrupt, match="at most 268435456"):
        FILES.read_file(str(path))


@pytest.mark.parametrize("value", [-1, 1 << 63, 1.0, True, "1", None, [1]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    """Numbers of others become places, sizes and ids."""
    assert whole_number((1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(ValueError, match="whole number"):
        whole_number(value)
