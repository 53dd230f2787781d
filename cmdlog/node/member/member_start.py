"""The start of a node that is one of several: making its part of a new cluster, and what its log says of the program.

One rule: nothing is written that the others might not agree with. The first entries are compared with the cluster file's digest
before the directory is made, and a start adds nothing to the log: what is new is proposed by the node that leads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import structlog

from cmdlog.cluster.cluster_file import BadClusterFile, ClusterFile
from cmdlog.cluster.genesis import Genesis
from cmdlog.cluster.restored_groups import Place
from cmdlog.node.boot import Boot, OtherApplication, check_fit, key_policy, table_changes
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import SlotMap
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity
from cmdlog.wal.directory.sizing import reserve_for
from cmdlog.wal.errors import Foreign, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, environment
from procedures.code_versions import CodeVersions
from procedures.execution.idempotency import KeyPolicy
from procedures.procedure_versions import catalog_value
from replay.state.trust import read_position, state_path

log = structlog.get_logger("cmdlog.cluster")


class OtherProgram(WalError):
    """The program is not the one whose calls the cluster runs."""

    exit_code = 13
    hint = "start the node with the code that the cluster runs"


class OtherEnvironment(WalError):
    """The same calls might do something else here than on the other nodes."""

    exit_code = 13
    hint = (
        "run the node with what the cluster runs; to move the cluster to another Python or SQLite, stop it, and recover its "
        "directories into a new one with `cmdlog recover DIR... --to OUT`"
    )


def make_genesis(db: Database, bundle: Bundle, settings: Settings, voters: tuple[int, ...]) -> Genesis:
    """What a new cluster of this program begins with."""
    partitions = settings.partitions
    shape = {
        "partitions": partitions, "slots": SlotMap(partitions).ranges(), "key_policy": asdict(key_policy(settings)),
    }  # fmt: skip
    catalog = catalog_value(db, bundle, 1, None, partitions=partitions)
    return Genesis(voters, shape, catalog, environment(), db.plan_schema({}))


def ensure_member(
    files: Files, directory: str, settings: Settings, db: Database, *, target: str | None, cluster: ClusterFile, node: int
) -> Bundle | None:
    """Makes the directory of this member, where there is none; then the code with which it was made.

    Raises: BadClusterFile, OtherApplication, OtherProgram, WalError, BundleError.
    """
    cluster.member(node)
    if os.path.exists(os.path.join(directory, INSTANCE_NAME)):
        return None
    if cluster.database != db.name:
        raise OtherApplication(f"the cluster is for database {cluster.database!r}, not for {db.name!r}")
    check_file_size(directory, settings.segment_bytes)
    bundle = capture_bundle(db, target)
    genesis = Genesis(cluster.nodes, cluster.shape, *_program(db, bundle, cluster))
    if (digest := genesis.digest()) != cluster.genesis:
        raise OtherProgram(
            f"this program, with Python and packages as they are here, begins a cluster as {digest}, but the cluster file says "
            f"{cluster.genesis}: it was made for other code, or in another environment"
        )
    Log.create(
        files,
        directory,
        Identity(cluster.cluster_id, node, os.urandom(8)),
        segment_bytes=settings.segment_bytes,
        segments=settings.segments,
        reserve_bytes=reserve_for(settings.partitions, settings.segment_bytes, settings.log_reserve_bytes),
        initial=genesis.records(),
        whole_ring=settings.preallocate == "ring",
    )
    return bundle


def _program(db: Database, bundle: Bundle, cluster: ClusterFile) -> tuple[dict, dict, list[str]]:  # type: ignore[type-arg]
    partitions = int(cluster.shape["partitions"])
    return catalog_value(db, bundle, 1, None, partitions=partitions), environment(), list(db.plan_schema({}))


def member_boot(groups: Mapping[int, GroupState], db: Database, identity: Identity, cluster: ClusterFile, bundle: Bundle) -> Boot:
    """What this node's log says; a program that it does not know is proposed when this node leads.

    Raises: Foreign, OtherApplication, OtherEnvironment.
    """
    if identity.cluster_id != cluster.cluster_id:
        raise Foreign(f"the directory belongs to {identity}, and the cluster file is another cluster's")
    state = groups[CLUSTER_GROUP]
    configuration = state.configuration or {}
    if "key_policy" not in configuration:
        raise BadClusterFile("the log states no shape: the directory is not a member's")
    code = CodeVersions({version: catalog.value for version, catalog in state.catalogs.items()})
    if (made_for := code.newest_value.get("database", db.name)) != db.name:
        raise OtherApplication(f"the cluster belongs to database {made_for!r}, not to {db.name!r}")
    if state.environment is not None:
        check_environment(state.environment.value, environment())
    return Boot(
        term=max(group.term for group in groups.values()),
        code=code,
        bundle=bundle,
        policy=KeyPolicy(**configuration["key_policy"]),
        terms=[],
        records=[],
        before={},
        changes=[],
        node_id=identity.node_id,
        configurations={group: dict(of.configuration or {}) for group, of in groups.items()},
    )


def check_environment(stated: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises: OtherEnvironment when the cluster runs another Python or SQLite than this process."""
    there, this = dict(stated), dict(here)
    for versions in (there, this):
        versions["python"] = ".".join(str(versions.get("python", "")).split(".")[:2])
    names = {"python": "Python", "implementation": "the Python", "sqlite": "SQLite"}
    other = [
        f"{text} {there.get(name)}, not {this.get(name)}" for name, text in names.items() if there.get(name) != this.get(name)
    ]
    if other:
        raise OtherEnvironment(f"the cluster runs {'; '.join(other)} as here: results and rows might differ between nodes")


def check_program(directory: str, settings: Settings, db: Database, boot: Boot, wal: Log) -> None:
    """Whether a program that the log does not know can become the cluster's: the log has room for it, and its tables suit.

    Raises: RecordsTooLarge, SchemaConflict.
    """
    if boot.bundle.hash in {value["hash"] for value in boot.code.by_version.values()}:
        if boot.bundle.hash != boot.code.newest_hash:
            log.warning("older_program", bundle=boot.bundle.hash[:12], runs=boot.code.newest_hash[:12])
        return
    value = catalog_value(db, boot.bundle, boot.catalog + 1, boot.code.newest_value, partitions=settings.partitions)
    record = encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=boot.term, index=1)
    check_fit(replace(boot, records=[record]), wal)
    table_changes(db, directory, settings.partitions, lambda _connection, _partition: None)
    log.warning("new_program", bundle=boot.bundle.hash[:12], runs=boot.code.newest_hash[:12])


def read_places(directory: str, partitions: Iterable[int]) -> tuple[dict[int, Place], dict[int, int]]:
    """By partition the last entry that its state holds, and the transaction id up to which it holds all; none of no state."""
    places, txns = dict[int, Place](), dict[int, int]()
    for partition in partitions:
        position = read_position(state_path(directory, partition), partition)
        if not isinstance(position, str):
            places[partition], txns[partition] = Place(position.index, position.term), position.txn_id
    return places, txns
