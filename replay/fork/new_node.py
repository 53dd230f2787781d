"""The node that a fork makes: a cluster of its own, with the other code as its only catalog version.

One rule: it is made from what the log states at its end, so nothing that the old log knew (transaction ids, keys, calls on all
partitions) is given a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cmdlog.wal.directory.instance import Identity, Instance, Origin
from cmdlog.wal.format.control_record import single
from cmdlog.wal.group_state import GroupState, GroupStates, LoggedCatalog, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from procedures.code.bundle import Bundle, environment
from procedures.code.procedure_versions import catalog_value
from replay.errors import ReplayError
from replay.recover.to_directory import FIRST_RECORDS_BLOCK, end_at
from replay.results import PartitionResult


class OtherDatabase(ReplayError):
    """The code belongs to another application, by the name of its `Database`."""

    exit_code = 11
    hint = "fork with a version of the application that the directory was made for"


def check_database(groups: GroupStates, db: Database) -> None:
    catalogs = groups.state(CLUSTER_GROUP).catalogs
    made_for = catalogs[max(catalogs)].value.get("database", db.name) if catalogs else db.name
    if made_for != db.name:
        raise OtherDatabase(f"the directory belongs to database {made_for!r}, not to {db.name!r}")


def first_groups(
    groups: GroupStates, results: Sequence[PartitionResult], db: Database, bundle: Bundle, *, node_id: int
) -> tuple[GroupStates, int]:
    """Every group as the new log begins, and the version of its only catalog."""
    for result in results:
        end_at(groups, result)
    cluster = groups.state(CLUSTER_GROUP)
    cluster.commit = cluster.last_index
    newest = max(cluster.catalogs, default=0)
    value = cluster.catalogs[newest].value if newest else None
    if value is None or value["hash"] != bundle.hash:
        newest += 1
        value = catalog_value(db, bundle, newest, value, partitions=groups.cluster.partitions)
    index = cluster.last_index
    cluster.catalogs = {newest: LoggedCatalog(index, value, stated_block=FIRST_RECORDS_BLOCK, used_block=FIRST_RECORDS_BLOCK)}
    cluster.environment = Stated(index, cluster.term, environment())
    for state in groups.by_partition.values():
        _make_single(state, node_id)
    return groups, newest


def _make_single(state: GroupState, node_id: int) -> None:
    """The first configuration of another cluster, independent of the votes and failures in the one that was forked."""
    state.vote = node_id
    state.configurations = [replace(newest, value=single(newest.value, node_id)) for newest in state.configurations[-1:]]


def fresh_instance(instance: Instance, origin: Origin) -> Instance:
    """The new node: a cluster of its own."""
    return replace(instance, identity=Identity.fresh(), forked_from=origin)
