"""Snapshots of simulated sites, as files on a simulated disk: the product's folders and manifests around a state as JSON.

One rule: what a recovery or a copy reads of a snapshot is what was synced here; the manifest's checksums are the product's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import orjson

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import FOLDER
from snapshot.manifest import IMAGE_NAME, MANIFEST_NAME, FileEntry, Manifest, encode_manifest, snapshot_name
from tests.cluster.sim.list_sites import ListState
from tests.wal.sim.simfiles import SimFiles

if TYPE_CHECKING:
    from tests.cluster.sim.sim_member import SimMember

_NUMBERS: Final = ("partition", "partitions", "index", "term", "txn_id", "checksum")


def encode_state(state: ListState) -> bytes:
    """A whole state."""
    value: dict[str, Any] = {name: getattr(state, name) for name in _NUMBERS}
    value["lists"] = state.lists
    value["keys"] = {key.hex(): [status, str(txn_id), body.decode()] for key, (status, txn_id, body) in state.keys.items()}
    value["owners"] = {key.hex(): owner for key, owner in state.owners.items()}
    value["floors"] = {session.hex(): floor for session, floor in state.floors.items()}
    return orjson.dumps(value)


def decode_state(data: bytes) -> ListState:
    """The inverse."""
    value = orjson.loads(data)
    keys = {bytes.fromhex(key): (status, int(txn), body.encode()) for key, (status, txn, body) in value["keys"].items()}
    owners = {bytes.fromhex(key): owner for key, owner in value["owners"].items()}
    floors = {bytes.fromhex(session): floor for session, floor in value["floors"].items()}
    numbers = {name: value[name] for name in _NUMBERS}
    return ListState(**numbers, lists=value["lists"], keys=keys, owners=owners, floors=floors)


def write_image(files: SimFiles, directory: str, identity: Identity, state: ListState, *, groups: GroupStates, block: int) -> str:
    """Makes the state a snapshot of this node; durable on return. Its name."""
    name, data = snapshot_name(state.partition, state.index), encode_state(state)
    folder = os.path.join(directory, FOLDER, name)
    if files.exists(os.path.join(folder, MANIFEST_NAME)):
        return name
    if not files.exists(folder):
        files.mkdir(folder)
    files.write_file_atomic(os.path.join(folder, IMAGE_NAME), data)
    cluster = groups.state(CLUSTER_GROUP)
    entry = FileEntry(IMAGE_NAME, len(data), google_crc32c.value(data), hashlib.sha256(data).hexdigest())
    manifest = Manifest(
        **identity.as_text(), partition=state.partition, index=state.index, term=state.term, checksum=state.checksum,
        txn_id=state.txn_id, log_block=block, epoch=groups.cluster.epoch, configuration=cluster.configuration,
        catalogs={str(version): catalog.value for version, catalog in sorted(cluster.catalogs.items())},
        environment=cluster.environment.value if cluster.environment else None, key_policy=dict(groups.cluster.key_policy),
        schema=(), tables=(), files=(entry,), created="2026-01-01T00:00:00Z",
    )  # fmt: skip
    files.write_file_atomic(os.path.join(folder, MANIFEST_NAME), encode_manifest(manifest))
    files.fsync_dir(os.path.join(directory, FOLDER))
    return name


@contextmanager
def undisturbed(files: SimFiles) -> Iterator[None]:
    """Nothing else happens while these files are synced."""
    before, files.before = files.before, None
    try:
        yield
    finally:
        files.before = before


def capture_image(member: SimMember, partition: int) -> None:
    """A snapshot as files: starts and recoveries may begin with it. Nothing where the disk takes none."""
    state, files, log = member.machine.states[partition].captured(), member.machine.files, member.log
    if not state.checksum:
        return
    block = member.driver.entry_blocks.block_of(partition, state.index) or 1
    try:
        with undisturbed(files):
            write_image(files, log.directory, log.instance.identity, state, groups=log.recovered.groups, block=block)
    except WalError:
        return
    member.machine.captured[partition] = state


def read_image(files: Any, path: str) -> ListState:
    """The state in a snapshot's folder."""
    return decode_state(files.read_file(os.path.join(path, IMAGE_NAME)))
