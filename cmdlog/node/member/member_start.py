"""The start of a node that is one of several: making its part of a new cluster, and what its log says of the program.

One rule: nothing is written that the others might not agree with. The first entries are compared with the cluster file's digest
before the directory is made, and a start adds nothing to the log: what is new is proposed by the node that leads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

from cmdlog.cluster.cluster_file import BadClusterFile, ClusterFile
from cmdlog.cluster.genesis import Genesis
from cmdlog.node.boot import Boot, OtherApplication, key_policy
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import SlotMap
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity
from cmdlog.wal.directory.sizing import reserve_for
from cmdlog.wal.errors import Foreign, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, environment
from procedures.execution.idempotency import KeyPolicy
from procedures.procedure_versions import catalog_value


class OtherProgram(WalError):
    """The program is not the one whose calls the cluster runs."""

    exit_code = 13
    hint = "start the node with the code that the cluster runs"


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

    Raises: BadClusterFile, OtherProgram, WalError, BundleError.
    """
    cluster.member(node)
    if os.path.exists(os.path.join(directory, INSTANCE_NAME)):
        return None
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
    """What this node's log says. Raises: Foreign, OtherApplication, OtherProgram."""
    if identity.cluster_id != cluster.cluster_id:
        raise Foreign(f"the directory belongs to {identity}, and the cluster file is another cluster's")
    state = groups[CLUSTER_GROUP]
    configuration = state.configuration or {}
    if "key_policy" not in configuration:
        raise BadClusterFile("the log states no shape: the directory is not a member's")
    version = max(state.catalogs)
    newest = state.catalogs[version].value
    if newest.get("database", db.name) != db.name:
        raise OtherApplication(f"the cluster belongs to database {newest['database']!r}, not to {db.name!r}")
    if newest["hash"] != bundle.hash:
        raise OtherProgram(f"the cluster runs code {newest['hash'][:12]}, and this program is {bundle.hash[:12]}")
    catalogs = {str(known): catalog.value for known, catalog in sorted(state.catalogs.items())}
    return Boot(
        term=max(group.term for group in groups.values()),
        catalog=version,
        bundle=bundle,
        policy=KeyPolicy(**configuration["key_policy"]),
        catalogs=catalogs,
        terms=[],
        records=[],
        before={},
        changes=[],
        node_id=identity.node_id,
        configurations={group: dict(of.configuration or {}) for group, of in groups.items()},
    )
