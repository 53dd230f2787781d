"""`instance.json`: who a node directory belongs to, and the fixed sizes of its log. FORMAT.md "Instance file".

One rule: it is written last when a node is created. So where it is, a whole node was; and a node directory without it is refused,
never started empty. `creating.json` exists while a creation is under way: only then is half a node swept away.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict

import orjson

from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME
from cmdlog.wal.errors import Corrupt, NewerFormat, WalError, WrongDirectory
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.checked_json import decode_checked, encode_checked
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX, BadJson, load_document
from cmdlog.wal.format.segment import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX, SEGMENTS_MIN

FORMAT: Final = 1
INSTANCE_NAME: Final = "instance.json"
CREATING_NAME: Final = "creating.json"
LOCK_NAME: Final = "LOCK"
NODES_NAMED_MAX: Final = 5  # as what was perhaps meant
NO_CONTENT: Final = frozenset({"lost+found", "cmdlog.toml"})  # in the root of a new volume; the settings of a node to be made
LOG_FOLDER: Final = "log"
CLUSTER_FOLDER: Final = "cluster"  # what a member knows beside its log
SEGMENT_BYTES: Final = 16 << 20  # default: a rotation costs about 2 ms, a start reads one segment
SEGMENTS: Final = 64  # default: 1 GiB of log
RESERVE_BYTES: Final = 1 << 20  # default: some hundred control records
FOLDERS: Final = (LOG_FOLDER, "archive", "faults", "snapshots", "state")
NODE_ID_MAX: Final = (1 << 32) - 1


class BadSettings(WalError):
    """Sizes that no log can have."""

    exit_code = 2
    hint = "change the setting that the message names"


class IdentityText(TypedDict):
    """An identity as manifests and reports hold it; bytes in hexadecimal."""

    cluster_id: str
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Which node of which cluster, and which life of its disk: an emptied disk comes back with another incarnation."""

    cluster_id: bytes  # [16] UUID
    node_id: int
    incarnation: bytes  # [8] random
    earlier: tuple[bytes, ...] = field(default=(), compare=False)  # incarnations whose files this one took over, oldest first

    @classmethod
    def fresh(cls, node_id: int = 1) -> Identity:
        return cls(uuid.uuid4().bytes, node_id, os.urandom(8))

    def owns(self, other: Identity) -> bool:
        """Whether files of that identity belong here: it is this one, or one that it took over (`cmdlog.wal.opening.home`)."""
        mine = other.incarnation == self.incarnation or other.incarnation in self.earlier
        return mine and (other.cluster_id, other.node_id) == (self.cluster_id, self.node_id)

    def succeeded(self) -> Identity:
        """The same node in a new incarnation that takes over the files of this one."""
        return replace(self, incarnation=os.urandom(8), earlier=(*self.earlier, self.incarnation))

    def as_text(self) -> IdentityText:
        return {"cluster_id": self.cluster_id.hex(), "node_id": self.node_id, "incarnation": self.incarnation.hex()}

    def __str__(self) -> str:
        return f"cluster {uuid.UUID(bytes=self.cluster_id)}, node {self.node_id}, incarnation {self.incarnation.hex()}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a forked history left another one."""

    cluster_id: bytes  # [16] UUID of the cluster whose log was forked
    txn_id: int  # up to it both are the same, 0 = nowhere


@dataclass(frozen=True, slots=True)
class Instance:
    identity: Identity
    segment_bytes: int
    segments: int  # files of the log, in use and free together
    log_reserve_bytes: int  # for control records alone
    forked_from: Origin | None = None

    def check(self) -> None:
        """Raises: BadSettings naming the size that cannot be."""
        if len(self.identity.cluster_id) != 16 or len(self.identity.incarnation) != 8:
            raise BadSettings("cluster_id must have 16 bytes and incarnation 8")
        if not 0 <= self.identity.node_id <= NODE_ID_MAX:
            raise BadSettings(f"node_id {self.identity.node_id} is outside [0, {NODE_ID_MAX}]")
        check_log_sizes(self.segment_bytes, segments=self.segments, reserve_bytes=self.log_reserve_bytes)


def check_log_sizes(segment_bytes: int, *, segments: int, reserve_bytes: int) -> None:
    """Raises: BadSettings naming the size that cannot be."""
    if segment_bytes % SECTOR_BYTES or not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
        bounds = f"a multiple of {SECTOR_BYTES} in [{SEGMENT_BYTES_MIN}, {SEGMENT_BYTES_MAX}]"
        raise BadSettings(f"segment_bytes {segment_bytes} is not {bounds}")
    if not SEGMENTS_MIN <= segments <= SEGMENTS_MAX:
        raise BadSettings(f"segments {segments} is outside [{SEGMENTS_MIN}, {SEGMENTS_MAX}]")
    if not 0 <= reserve_bytes <= segment_bytes // 2:
        raise BadSettings(f"log_reserve_bytes {reserve_bytes} is more than half a segment")


def write_instance(files: Files, directory: str, instance: Instance) -> None:
    """Durable on return: from here on the directory is a node."""
    value: dict[str, Any] = {
        "format": FORMAT,
        "cluster_id": str(uuid.UUID(bytes=instance.identity.cluster_id)),
        "node_id": instance.identity.node_id,
        "incarnation": instance.identity.incarnation.hex(),
        "segment_bytes": instance.segment_bytes,
        "segments": instance.segments,
        "log_reserve_bytes": instance.log_reserve_bytes,
    }
    if (origin := instance.forked_from) is not None:
        value["forked_from"] = {"cluster_id": str(uuid.UUID(bytes=origin.cluster_id)), "txn_id": str(origin.txn_id)}
    if instance.identity.earlier:
        value["earlier_incarnations"] = [incarnation.hex() for incarnation in instance.identity.earlier]
    files.write_file_atomic(os.path.join(directory, INSTANCE_NAME), encode_checked(value))


def load_instance(files: Files, directory: str) -> Instance:
    """Reads and checks `instance.json`.

    Raises: WrongDirectory (there is no node here, or part of one), Corrupt, NewerFormat.
    """
    path = os.path.join(directory, INSTANCE_NAME)
    if not files.exists(path):
        raise _no_instance(files, directory)
    try:
        value = decode_checked(files.read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
    except BadJson as error:
        raise Corrupt(f"instance file cannot be read: {error}", path=path) from error
    if value.get("format") != FORMAT:
        raise NewerFormat(f"{path} has format {value.get('format')}, this program reads up to {FORMAT}")
    identity = Identity(
        uuid.UUID(value["cluster_id"]).bytes,
        int(value["node_id"]),
        bytes.fromhex(str(value["incarnation"])),
        tuple(bytes.fromhex(str(earlier)) for earlier in value.get("earlier_incarnations", ())),
    )
    instance = Instance(
        identity, value["segment_bytes"], value["segments"], value["log_reserve_bytes"], _origin(value.get("forked_from"))
    )
    if not files.exists(os.path.join(directory, LOG_FOLDER)):
        raise WrongDirectory(f"{directory} is a node ({identity}) whose folder {LOG_FOLDER}/ is missing")
    return instance


def _origin(value: dict[str, Any] | None) -> Origin | None:
    return Origin(uuid.UUID(value["cluster_id"]).bytes, int(value["txn_id"])) if value else None


def write_marker(files: Files, directory: str, by: str, facts: Mapping[str, Any] | None = None) -> None:
    """Says that a node is being made here, and by what; "" for a new and empty one. Durable on return."""
    value = {**(facts or {}), **({"by": by} if by else {})}
    files.write_file_atomic(os.path.join(directory, CREATING_NAME), orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


def read_marker(files: Files, directory: str) -> dict[str, Any] | None:
    """What is being made here; None when nothing is. One that cannot be read says nothing but that."""
    path = os.path.join(directory, CREATING_NAME)
    if not files.exists(path):
        return None
    try:
        return load_document(files, path)
    except BadJson:
        return {"by": "program"}


def begin_creation(files: Files, directory: str, *, by: str = "") -> None:
    """Checks that a node may be created here and sweeps what a broken-off creation left. `by`: what has begun it.

    The caller holds the lock. Raises: WrongDirectory when anything else is in the directory, or what something else has begun.
    """
    names = set(files.listdir(directory))
    if INSTANCE_NAME in names:
        raise WrongDirectory(f"{directory} already holds a node")
    log = os.path.join(directory, LOG_FOLDER)
    if CREATING_NAME not in names:
        if strange := sorted(names - {LOCK_NAME, LOCAL_TOKEN_NAME, CREATING_NAME + TEMP_SUFFIX} - NO_CONTENT):
            raise WrongDirectory(f"{directory} is neither empty nor a node: it holds {', '.join(strange[:5])}")
        write_marker(files, directory, by)
    elif (found := (read_marker(files, directory) or {}).get("by", "")) != by:
        raise WrongDirectory(_why_unfinished(directory, found))
    elif LOG_FOLDER in names:
        for name in files.listdir(log):
            files.unlink(os.path.join(log, name))
    for name in FOLDERS:
        if name not in names:
            files.mkdir(os.path.join(directory, name))
    files.fsync_dir(log)
    files.fsync_dir(directory)


def end_creation(files: Files, directory: str) -> None:
    """Removes the marker of a creation that is complete; does nothing where there is none."""
    path = os.path.join(directory, CREATING_NAME)
    if files.exists(path):
        files.unlink(path)
        files.fsync_dir(directory)


def _no_instance(files: Files, directory: str) -> WrongDirectory:
    if not files.exists(directory):
        return WrongDirectory(f"{directory} does not exist")
    if (marker := read_marker(files, directory)) is not None:
        return WrongDirectory(_why_unfinished(directory, marker.get("by", "")))
    if files.exists(os.path.join(directory, LOG_FOLDER)):
        return WrongDirectory(f"{directory} holds a log but {INSTANCE_NAME} is missing")
    try:
        paths = [os.path.join(directory, name) for name in sorted(files.listdir(directory))]
    except NotADirectoryError:
        return WrongDirectory(f"{directory} is a file")
    nodes = [path for path in paths if files.exists(os.path.join(path, INSTANCE_NAME))]
    hint = (
        f"there is a node in {', '.join(nodes[:NODES_NAMED_MAX])}" if nodes else "give the directory of `cmdlog serve --data DIR`"
    )
    return WrongDirectory(f"{directory} is not a node directory: {INSTANCE_NAME} is missing", hint=hint + "; nothing was written")


def _why_unfinished(directory: str, by: str) -> str:
    what = {"": "node whose creation", "recovery": "recovery that", "fork": "fork that", "copy": "copy of a node that"}.get(
        by, f"{by} that"
    )
    remedy = {
        "": "create it again",
        "recovery": "run the same `cmdlog recover` command again to resume it, or delete the directory",
        "fork": "run the same `cmdlog fork` command again to resume it, or delete the directory",
        "copy": "start the node with `cmdlog serve --join` to resume it",
    }.get(by, "delete the directory and start over")
    return f"{directory} holds a {what} was interrupted; {remedy}"
