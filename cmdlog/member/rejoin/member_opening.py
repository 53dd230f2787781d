"""The opening of a member's directory: as it is, or after a copy has made it again.

One rule: this table decides. It is tried from the top; exactly one row holds.

    tombstone   rejoin.json   instance.json   peers             then
    yes         -             -               -                 REFUSE   the cluster has removed this node
    no          yes           -               -                 RESUME   a copy is wanted, or under way
    no          no            yes             -                 OPEN     as it is; damaged, and a peer has begun: COPY
    no          no            no              one has begun     COPY     the disk is new, or was emptied
    no          no            no              none has begun    CREATE   the first start of a new cluster

A tombstone that lies beside `rejoin.json` still refuses: the cluster has said no. A directory that turns out to be damaged is
copied once, and only while another node of the cluster answers that it has begun; else the damage is the error of the start, as
on a node alone.

Another node's directory is refused before anything is asked or changed. Its life is not this node's, so the cluster would say
that it was replaced, and a healthy copy of the data would go into quarantine.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import structlog

from cmdlog.member.rejoin.admission import ASK_EVERY_S, AdmissionWish, AskedCluster, Neighbours, rest_until
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import RejoinFile, RejoinReason, RejoinRecord, RejoinState, read_tombstone
from cmdlog.member.rejoin.rejoin_steps import INCARNATION_BYTES, RejoinSteps
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.directory.instance import INSTANCE_NAME, load_instance
from cmdlog.wal.directory.lock import DirectoryLock, make_folder, take_ownership
from cmdlog.wal.errors import Corrupt, Foreign, WalError, WrongDirectory
from cmdlog.wal.format.record import BadRecord
from replay.errors import EntryMissing, RemoteError, StateDamaged, StreamDamaged
from snapshot.errors import SnapshotDamaged

DAMAGE: Final = (Corrupt, BadRecord, SnapshotDamaged, StateDamaged, EntryMissing, StreamDamaged)
SEEK_S: Final = 20.0  # nodes that are started together, on a busy machine, answer one after the other
DAMAGE_KINDS: Final = frozenset(error.__name__ for error in DAMAGE)  # as a replay process reports them

N = TypeVar("N")

log = structlog.get_logger("cmdlog.cluster")


class OpeningVerdict(enum.Enum):
    """What a start does with its directory."""

    REFUSE = "refuse"
    RESUME = "resume"
    OPEN = "open"
    COPY = "copy"
    CREATE = "create"


def decide_start(
    *, has_tombstone: bool, has_rejoin: bool, has_instance: bool, has_begun: bool | None = None
) -> OpeningVerdict | None:
    """The row that holds; None: the peers have to be asked first whether one has begun."""
    if has_tombstone:
        return OpeningVerdict.REFUSE
    if has_rejoin:
        return OpeningVerdict.RESUME
    if has_instance:
        return OpeningVerdict.OPEN
    if has_begun is None:
        return None
    return OpeningVerdict.COPY if has_begun else OpeningVerdict.CREATE


def open_own(ground: RejoinGround, open_node: Callable[[], N]) -> N:
    """`open_whole`, of a directory that is this node's. Raises: Foreign; as `open_whole`."""
    check_owner(ground)
    ground.member.warn_unencrypted()
    return open_whole(ground, open_node)


def open_whole(ground: RejoinGround, open_node: Callable[[], N]) -> N:
    """Opens the node, after a copy if one is wanted, under way, or the only way.

    Raises: MemberRemoved; what a copy and `open_node` raise.
    """
    prepare_directory(ground)
    try:
        return open_node()
    except (OperatorError, BadRecord) as error:
        if not is_damage(error) or not wish_healing(ground, error):
            raise
    prepare_directory(ground)
    return open_node()


def prepare_directory(ground: RejoinGround) -> None:
    """On return the directory is one that can be opened, or that the first start of a new cluster makes.

    Raises: MemberRemoved; what `RejoinSteps.make_node` raises.
    """
    files, directory = ground.files, ground.directory
    tombstone, record = read_tombstone(files, directory), RejoinFile(files, directory).read_record()
    has_instance = files.exists(os.path.join(directory, INSTANCE_NAME))
    decide = partial(decide_start, has_tombstone=tombstone is not None, has_rejoin=record is not None, has_instance=has_instance)
    incarnation = os.urandom(INCARNATION_BYTES)
    verdict = decide() or decide(has_begun=_ask_peers(ground, incarnation).has_begun)
    if verdict is OpeningVerdict.REFUSE and tombstone is not None:
        raise tombstone.error(directory)
    if verdict is OpeningVerdict.COPY:
        why = "the directory holds no node, and the cluster has begun"
        record = RejoinRecord(RejoinState.WANTED, RejoinReason.EMPTY, why, incarnation=incarnation)
    if record is not None:
        with contextlib.closing(_owned(ground)) as owner:
            if verdict is OpeningVerdict.COPY:
                RejoinFile(files, directory).write_record(record)
            RejoinSteps(ground, owner).make_node(record)


def is_damage(error: BaseException) -> bool:
    """Whether it says that what this node had written is not there any more."""
    return isinstance(error, DAMAGE) or (isinstance(error, RemoteError) and error.kind in DAMAGE_KINDS)


def wish_healing(ground: RejoinGround, error: BaseException) -> bool:
    """Writes that the damaged directory is to be made again; False: no other node was found to copy from."""
    until = ground.now() + SEEK_S
    while not _ask_peers(ground, os.urandom(INCARNATION_BYTES)).has_begun:
        if ground.now() >= until:
            log.error("damaged_and_alone", why=str(error), remedy="start the other nodes, then this one again")
            return False
        rest_until(ground, ASK_EVERY_S, {"copy": "ABSENT", "why": "the node is damaged, and no other one answers"})
    wish_copy(ground, RejoinReason.DAMAGED, full_text(error))
    return True


def wish_copy(ground: RejoinGround, reason: RejoinReason, why: str) -> None:
    """The next start makes this directory again; durable on return. What is wished already stays."""
    file = RejoinFile(ground.files, ground.directory)
    if file.read_record() is None:
        file.write_record(RejoinRecord(RejoinState.WANTED, reason, why, former=former_life(ground)))
        log.error("copy_wanted", reason=reason.value, why=why)


def former_life(ground: RejoinGround) -> bytes:
    """The incarnation of the directory as it is; empty when nothing says it."""
    with contextlib.suppress(WalError):
        return load_instance(ground.files, ground.directory).identity.incarnation
    return b""


def _ask_peers(ground: RejoinGround, incarnation: bytes) -> AskedCluster:
    neighbours = Neighbours(ground.node, ground.member.cluster.members)
    return AdmissionWish(ground, neighbours, incarnation).ask_once(reason="")


def _owned(ground: RejoinGround) -> DirectoryLock:
    if not ground.files.exists(ground.directory):
        make_folder(ground.files, ground.directory)
    return take_ownership(ground.files, ground.directory)


def check_owner(ground: RejoinGround) -> None:
    """Raises: Foreign, where the directory says that it is another node's."""
    try:
        identity = load_instance(ground.files, ground.directory).identity
    except (WrongDirectory, Corrupt):
        return  # it does not say; the opening decides
    if identity.cluster_id != ground.member.cluster.cluster_id:
        raise Foreign(f"{ground.directory} belongs to {identity}, and the cluster file is another cluster's")
    if identity.node_id != ground.node:
        raise Foreign(
            f"{ground.directory} is node {identity.node_id}'s, not node {ground.node}'s",
            hint=f"start it with --node {identity.node_id}, or give node {ground.node} a directory of its own",
        )
