"""The archive on disk: names, manifests, and which files follow each other without a gap.

One rule: it only reads, and a name decides only where to look. `archive/` holds

    log-<cluster>-n<node>-<first block>-<last block>.seg    the blocks of one segment of the log, byte for byte
    log-<cluster>-n<node>-<first block>-<last block>.json   its manifest: checksums, transactions, and the file before it
    snap-<cluster>-n<node>-<snapshot name>                  a snapshot's folder, as it was in snapshots/

A segment needs its manifest for nothing but knowing what it holds without reading it: header, block chain and checksums are in
the file itself, so a recovery still reads one whose manifest is lost. A manifest without its file says exactly what is missing.
Two files follow each other when the blocks do and the later one's header names the generation of the earlier.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.checked_json import encode_checked
from cmdlog.wal.format.segment import BadSegment, SegmentHeader, decode_segment_header
from cmdlog.wal.opening.survey import SegmentFile
from snapshot.errors import SnapshotDamaged, SnapshotForeign
from snapshot.manifest import CRC_KEY, decode_manifest_fields

ARCHIVE: Final = "archive"
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 1 << 20  # two numbers for each of the most partitions that there can be fit many times
SEGMENT_SUFFIX: Final = ".seg"
MANIFEST_SUFFIX: Final = ".json"
_LOG_NAME: Final = re.compile(r"log-([0-9a-f]{8})-n(\d{1,10})-(\d{16})-(\d{16})(\.seg|\.json)")
_SNAPSHOT_NAME: Final = re.compile(r"snap-([0-9a-f]{8})-n(\d{1,10})-(p\d{4}-\d{16}(?:-\d{1,4})?)")


@dataclass(frozen=True, slots=True)
class TxnRange:
    """First and last transaction of a partition in a segment."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The archive file with the blocks before, as it was when this one was made."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """What an archived segment holds."""

    cluster_id: str  # hex
    node_id: int
    incarnation: str  # hex
    generation: int
    previous_generation: int  # of the segment before it
    sequence: int
    first_block: int
    last_block: int
    previous_chain: int  # what the first block carries as chain
    last_chain: int  # what the next segment's first block carries
    predecessor: Predecessor | None  # None: nothing before it was in the archive
    partitions: Mapping[int, TxnRange]  # of those that have any transaction here
    first_millis: int | None  # clock of the transactions; None without any
    last_millis: int | None
    bytes: int
    sha256: str
    created: str  # RFC 3339; for the reader, decides nothing


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A segment of the archive, or what is left of one."""

    path: str  # of the .seg file, also where it is missing
    first_block: int
    last_block: int
    segment: SegmentFile | None  # None: it cannot be read, and `problem` says why
    manifest: SegmentManifest | None  # None: `doubt` says why
    problem: str = ""
    doubt: str = ""
    foreign: bool = False
    bytes: int = 0

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def follows(self, header: SegmentHeader, last_block: int) -> bool:
        """Whether it continues where a segment with this header and last block ends."""
        mine = self.segment
        return (
            mine is not None
            and mine.header.first_block == last_block + 1
            and mine.header.previous_generation == header.generation
        )


def prefix_of(identity: Identity) -> str:
    """The part of a name that says whose file it is; manifest and header state it in full."""
    return f"{identity.cluster_id.hex()[:8]}-n{identity.node_id}"


def segment_file_name(identity: Identity, *, first_block: int, last_block: int) -> str:
    return f"log-{prefix_of(identity)}-{first_block:016d}-{last_block:016d}{SEGMENT_SUFFIX}"


def manifest_path(segment_path: str) -> str:
    return segment_path.removesuffix(SEGMENT_SUFFIX) + MANIFEST_SUFFIX


def snapshot_folder_name(identity: Identity, name: str) -> str:
    return f"snap-{prefix_of(identity)}-{name}"


def archived_snapshot(name: str) -> str | None:
    """The snapshot's own name, of a folder in the archive; None for any other name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    return match[3] if match else None


def list_segments(files: Files, directory: str, identity: Identity) -> list[ArchivedSegment]:
    """Every archived segment by first block. Headers and manifests are checked, blocks are not read."""
    folder = os.path.join(directory, ARCHIVE)
    found = [look_at(files, os.path.join(folder, name), identity) for name in segment_names(files, folder)]
    return sorted(found, key=lambda archived: (archived.first_block, archived.last_block))


def segment_names(files: Files, folder: str) -> list[str]:
    """Names of the .seg files that are in the archive, or whose manifest is, ascending."""
    names = [name for name in files.listdir(folder) if _LOG_NAME.fullmatch(name)] if files.exists(folder) else []
    return sorted({name.rpartition(".")[0] + SEGMENT_SUFFIX for name in names})


def run_before(segments: Sequence[ArchivedSegment], first: SegmentHeader) -> list[ArchivedSegment]:
    """The readable segments that end where the segment with this header begins, without a gap, oldest first."""
    run: list[ArchivedSegment] = []
    block, generation = int(first.first_block), first.previous_generation
    for archived in reversed(segments):
        if archived.segment is None or archived.last_block != block - 1 or archived.segment.header.generation != generation:
            continue
        run.insert(0, archived)
        block, generation = archived.first_block, archived.segment.header.previous_generation
    return run


def runs(segments: Iterable[ArchivedSegment]) -> list[list[ArchivedSegment]]:
    """The readable segments, grouped so that each group has no gap; oldest first."""
    found: list[list[ArchivedSegment]] = []
    for archived in segments:
        if archived.segment is None:
            continue
        last = found[-1][-1] if found else None
        if last is not None and last.segment is not None and archived.follows(last.segment.header, last.last_block):
            found[-1].append(archived)
        else:
            found.append([archived])
    return found


def gaps(segments: Iterable[ArchivedSegment], live_first: int) -> list[tuple[int, int]]:
    """Ranges of blocks, both ends included, that are missing between the first readable segment and the live log."""
    ends = [(archived.first_block, archived.last_block) for archived in segments if archived.segment is not None]
    ends = [found for found in ends if found[0] < live_first] + [(live_first, live_first)]
    return [(a[1] + 1, b[0] - 1) for a, b in pairwise(ends) if a[1] + 1 < b[0]]


def manifest_bytes_max(partitions: int) -> int:
    """What the manifest of a segment with so many partitions takes at most."""
    return 2048 + 128 * partitions


def encode_segment_manifest(manifest: SegmentManifest) -> bytes:
    """The file's bytes."""
    value = {"format": FORMAT, "kind": "segment", **asdict(manifest)}
    value["partitions"] = {str(p): [of.first, of.last] for p, of in sorted(manifest.partitions.items())}
    return encode_checked(value, key=CRC_KEY)


def decode_segment_manifest(data: bytes, *, path: str) -> SegmentManifest:
    """Checks the file's bytes. Raises: SnapshotDamaged, SnapshotForeign (a newer format)."""
    value = decode_manifest_fields(data, path=path)
    if (value.pop("format", None), value.pop("kind", None)) != (FORMAT, "segment"):
        raise SnapshotForeign(f"{path} has another format than {FORMAT}; use the newer cmdlog that wrote it")
    try:
        value["partitions"] = {int(p): TxnRange(int(first), int(last)) for p, (first, last) in value["partitions"].items()}
        before = value["predecessor"]
        value["predecessor"] = Predecessor(**before) if before is not None else None
        return SegmentManifest(**value)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise SnapshotDamaged(f"{path} lacks a field: {error}") from error


def look_at(files: Files, path: str, identity: Identity) -> ArchivedSegment:
    """One segment, by the path of its .seg file, which must be of the strict form."""
    match = _LOG_NAME.fullmatch(os.path.basename(path))
    assert match is not None
    first_block, last_block = int(match[3]), int(match[4])
    manifest, doubt = _read_manifest(files, manifest_path(path))
    size, problem, foreign = 0, "", False
    try:
        header, size = _read_header(files, path)
        problem = _misplaced(header, identity, first_block)
        foreign = bool(problem)
        if not problem and manifest is not None:
            doubt = _disagreement(manifest, header, size, last_block)
        if not problem:
            segment = SegmentFile(path, header)
            return ArchivedSegment(path, first_block, last_block, segment, manifest, "", doubt, bytes=size)
        problem = f"{path}: {problem}"
    except FileNotFoundError:
        problem = f"{path} is missing"
    except (OSError, WalError) as error:
        problem = f"{path} cannot be read: {error}"
    except BadSegment as error:
        problem, foreign = f"the head of {path} is damaged ({error.reason})", error.newer
    return ArchivedSegment(path, first_block, last_block, None, manifest, problem, doubt, foreign, size)


def _read_header(files: Files, path: str) -> tuple[SegmentHeader, int]:
    with contextlib.closing(files.open(path, read_only=True)) as file:
        return decode_segment_header(file.pread(SECTOR_BYTES, 0)), file.size()


def _read_manifest(files: Files, path: str) -> tuple[SegmentManifest | None, str]:
    try:
        with contextlib.closing(files.open(path, read_only=True)) as file:
            data = file.pread(MANIFEST_BYTES_MAX, 0)
        return decode_segment_manifest(data, path=path), ""
    except FileNotFoundError:
        return None, f"{path} is missing"
    except (OSError, WalError, SnapshotDamaged, SnapshotForeign) as error:
        return None, str(error)


def _misplaced(header: SegmentHeader, identity: Identity, first_block: int) -> str:
    owner = Identity(header.cluster_id, header.node_id, header.incarnation)
    if not identity.owns(owner):
        return f"it is a segment of {owner}; this directory belongs to {identity}"
    if header.first_block != first_block:
        return f"it begins at block {header.first_block}: it was renamed"
    return ""


def _disagreement(manifest: SegmentManifest, header: SegmentHeader, size: int, last_block: int) -> str:
    """Why manifest and file do not belong together; "" when they do."""
    stated = (manifest.generation, manifest.first_block, manifest.last_block, manifest.bytes)
    found = (header.generation, int(header.first_block), last_block, size)
    return "" if stated == found else f"the manifest is of (generation, blocks, bytes) {stated}, the file of {found}"
