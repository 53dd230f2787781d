"""What a recipient and a source of a copy say to each other, as values and as JSON.

One rule: whatever came by the wire is checked once, in `from_json`, and trusted inside. A name of a file can lead nowhere else
than to a file of a snapshot.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TypeVar

from cmdlog.cluster.copying.copy_frames import COPY_ID_BYTES
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.wal.directory.instance import BadSettings, check_log_sizes
from cmdlog.wal.format.checked_json import MANIFEST_BYTES_MAX
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.json_reader import fixed_bytes, read_document, whole_number
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.group_state import GroupState

INCARNATION_BYTES: Final = 8
AFTER_S_MAX: Final = 3600.0  # a source may say that it is asked again
FILE_NAME: Final = re.compile(r"p\d{4}-\d{16}(?:-\d{1,4})?/(?:manifest\.json|image\.sqlite|delta\.sqlite)")

V = TypeVar("V")


class RefusalCode(enum.StrEnum):
    """Why a copy is not given: words for ever, for machines and people."""

    WRONG_RECIPIENT = "wrong_recipient"  # not the life of that node's disk that the cluster has admitted
    NOT_ADMITTED = "not_admitted"  # the cluster has not added the node yet
    DELETED = "deleted"  # the cluster has removed the node
    STALE_TERM = "stale_term"  # the recipient knows a newer term than the source: ask another node
    NOT_BEHIND = "not_behind"  # the logs of the cluster hold all that it lacks
    ALREADY_COPYING = "already_copying"  # the same node has a copy under way by another connection
    BUSY = "busy"  # as many copies as are allowed are under way
    UNKNOWN_COPY = "unknown_copy"  # it ended, or nothing was fetched for too long: begin again
    CANCELLED = "cancelled"  # by an operator of the source
    FILE_LOST = "file_lost"  # the source cannot read what it promised: begin again, or with another source
    BAD_REQUEST = "bad_request"  # no such file, or no such bytes
    UNAVAILABLE = "unavailable"  # the source cannot serve now; `why` says what is wrong with it


class CopyRefused(OperatorError):
    """The source has answered, and does not give what was asked for."""

    hint = "the source's log says the same; `cmdlog cluster status` shows who is a member"

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"the copy is refused: {why}", kind=code)
        self.code, self.why = code, why


@dataclass(frozen=True, slots=True)
class CopyRefusal:
    """REFUSED, and within STANDING."""

    code: str  # a `RefusalCode`, or one of a newer program
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"code": str(self.code), "why": self.why}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(_text(value["code"]), _text(value["why"]))

    def as_error(self) -> CopyRefused:
        return CopyRefused(self.code, self.why)


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Who leads, as the asked node believes."""

    node: int
    peer: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(whole_number(value["node"]), _text(value["peer"]))


@dataclass(frozen=True, slots=True)
class RollAddress:
    """A member of the cluster, and where it is reached."""

    node: int
    peer: str
    client: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(whole_number(value["node"]), _text(value["peer"]), _text(value["client"]))


@dataclass(frozen=True, slots=True)
class CopyStanding:
    """STANDING: the state of a wish, as the asked node knows it. Ask again, every second at least, until `member` is
    admitted as the life that asks."""

    node: int  # that answers
    begun: bool  # the cluster has begun: its log has entries that this node has not made by itself
    leads: bool  # the asked node leads, and has taken the wish
    leader: LeaderAddress | None  # whom to ask instead; None: it is not known
    member: ClusterMember | None  # what the log states of the node that asks; None: nothing
    refusal: CopyRefusal | None  # the wish is refused, for the time being or for good
    roll: tuple[RollAddress, ...]  # of all members

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "begun": self.begun,
            "leads": self.leads,
            "leader": None if self.leader is None else asdict(self.leader),
            "member": None if self.member is None else self.member.to_json(),
            "refusal": None if self.refusal is None else self.refusal.to_json(),
            "roll": [asdict(address) for address in self.roll],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: ValueError, KeyError, TypeError, BadRecord."""
        return cls(
            whole_number(value["node"]),
            _flag(value["begun"]),
            _flag(value["leads"]),
            _optional(value["leader"], LeaderAddress.from_json),
            _optional(value["member"], ClusterMember.from_json),
            _optional(value["refusal"], CopyRefusal.from_json),
            tuple(RollAddress.from_json(address) for address in value["roll"]),
        )


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """BEGIN. `groups`: term and last index of each group, as the recipient's log says; {}: it has none, or will use none."""

    node: int
    incarnation: bytes  # [8] of the life that is to be made
    groups: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        groups = {str(group): list(place) for group, place in self.groups.items()}
        return {"node": self.node, "incarnation": self.incarnation.hex(), "groups": groups}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        places = {int(group): (whole_number(term), whole_number(index)) for group, (term, index) in value["groups"].items()}
        return cls(whole_number(value["node"]), _incarnation(value["incarnation"]), places)


@dataclass(frozen=True, slots=True)
class CopyFile:
    """A file of a copy: `name` is that of its snapshot, a slash, and that of the file."""

    file: int  # its number in this copy
    partition: int
    name: str
    size: int  # bytes
    crc32c: int  # of the whole file

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        name = _text(value["name"])
        if FILE_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no file of a snapshot")
        number, partition, size, crc32c = _numbers(value, "file", "partition", "size", "crc32c")
        return cls(number, partition, name, size, crc32c)


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The last entry that the copied state of a partition holds."""

    index: int
    term: int
    checksum: int  # of the entry's record
    txn_id: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(*_numbers(value, "index", "term", "checksum", "txn_id"))


@dataclass(frozen=True, slots=True)
class LogShape:
    """How the source's log is laid out, so that the recipient's has the same room."""

    segment_bytes: int
    segments: int
    reserve_bytes: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: KeyError, ValueError; BadSettings for a log that no directory can have."""
        segment_bytes, segments, reserve_bytes = _numbers(value, "segment_bytes", "segments", "reserve_bytes")
        check_log_sizes(segment_bytes, segments=segments, reserve_bytes=reserve_bytes)
        return cls(segment_bytes, segments, reserve_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyManifest:
    """MANIFEST: all that a copy consists of. Every file lies still at the source while the copy is under way.

    Of each partition the files are those of one snapshot with all that it depends on, newest first; the state that they restore
    ends with `partitions[p]`, and so does `groups[p]`. The cluster group's state ends with an entry that is committed.
    """

    copy: bytes  # [16] id; the same after a reconnect
    source: int  # node
    groups: Mapping[int, GroupState]  # what a CHECKPOINT of the new log says; no votes, no snapshots
    faults: tuple[bytes, ...]  # records of the source's fault log, oldest first
    log: LogShape
    files: tuple[CopyFile, ...]  # `files[n].file == n`
    partitions: Mapping[int, CopyPlace]
    rate: int  # bytes per second that all copies of the source share; 0: no limit
    peers: Mapping[NodeId, PeerRecord]  # what the source has met, itself included

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "copy": self.copy.hex(),
            "source": self.source,
            "groups": {str(group): state.to_json() for group, state in sorted(self.groups.items())},
            "faults": [record.hex() for record in self.faults],
            "log": asdict(self.log),
            "files": [asdict(file) for file in self.files],
            "partitions": {str(partition): asdict(place) for partition, place in sorted(self.partitions.items())},
            "rate": self.rate,
            "peers": {str(node): record.to_json() for node, record in sorted(self.peers.items())},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: ValueError, KeyError, TypeError, BadRecord."""
        files = tuple(CopyFile.from_json(file) for file in value["files"])
        if [file.file for file in files] != list(range(len(files))) or len({file.name for file in files}) != len(files):
            raise ValueError("files out of order, or twice")
        return cls(
            copy=fixed_bytes(value["copy"], COPY_ID_BYTES),
            source=whole_number(value["source"]),
            groups={int(group): GroupState.from_json(state) for group, state in value["groups"].items()},
            faults=tuple(bytes.fromhex(record) for record in value["faults"]),
            log=LogShape.from_json(value["log"]),
            files=files,
            partitions={int(partition): CopyPlace.from_json(place) for partition, place in value["partitions"].items()},
            rate=whole_number(value["rate"]),
            peers={NodeId(int(node)): PeerRecord.from_json(record) for node, record in value["peers"].items()},
        )


@dataclass(frozen=True, slots=True)
class CopyWait:
    """WAIT: the source is making what the copy needs; begin again after that time."""

    after_s: float
    why: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(min(float(value["after_s"]), AFTER_S_MAX), _text(value["why"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class CopyEnding(enum.StrEnum):
    """How a copy ended, as the recipient says."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """END: the source may let go of what it keeps."""

    copy: bytes  # [16] id
    ending: CopyEnding
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"copy": self.copy.hex(), "outcome": self.ending.value, "why": self.why}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(fixed_bytes(value["copy"], COPY_ID_BYTES), CopyEnding(value["outcome"]), _text(value["why"]))


def encode_value(value: Mapping[str, Any]) -> bytes:
    """The body of a frame."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def decode_value(body: bytes, read: Callable[[Any], V]) -> V:
    """What a body says. Raises: BadFrame."""
    try:
        return read(read_document(body, bytes_max=MANIFEST_BYTES_MAX))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, BadSettings, BadRecord) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadFrame(FrameFault.MALFORMED, f"{read.__qualname__.split('.')[0]}: {what}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _numbers(value: Mapping[str, Any], *names: str) -> Iterator[int]:
    return (whole_number(value[name]) for name in names)


def _incarnation(value: Any) -> bytes:
    return fixed_bytes(value, INCARNATION_BYTES)


def _optional(value: Any, read: Callable[[Any], V]) -> V | None:
    return None if value is None else read(value)
