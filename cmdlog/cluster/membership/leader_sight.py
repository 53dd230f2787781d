"""The membership view, taken from the groups that this node leads.

One rule: it only looks, under the driver's lock, at one moment of all groups.
"""

from __future__ import annotations

from collections.abc import Collection

from cmdlog.cluster.membership.membership_view import GroupSight
from cmdlog.raft.core import RaftCore
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.ids import CLUSTER_GROUP


def see_groups(groups: RaftGroups, *, diverged: Collection[int], after: int) -> dict[int, GroupSight]:
    """Every group. `diverged` nodes hold nothing whole; a node is level once it has the cluster group's entry `after`: the
    failure set that lists it."""
    return {
        int(group): _see_group(core, diverged, after if group == CLUSTER_GROUP else 0) for group, core in groups.cores.items()
    }


def silent_ticks(groups: RaftGroups) -> dict[int, int]:
    """Of every other node the ticks since it was heard from in any group, or since this node leads."""
    silent: dict[int, int] = {}
    for core in groups.cores.values():
        for node, progress in core.progress.items():
            ticks = core.ticks - progress.heard
            silent[node] = min(ticks, silent.get(node, ticks))
    return silent


def _see_group(core: RaftCore, diverged: Collection[int], after: int) -> GroupSight:
    log, live = core.log, core.live()
    at = core.configuration_index
    needed = max(at, log.last - core.settings.promotion_entries_max, after)
    matches = {node: progress.match for node, progress in core.progress.items()} | {core.id: log.last}
    term = log.term_at(at)
    return GroupSight(
        core.configuration,
        (log.base_term if term is None else term, at),
        at <= log.commit,
        frozenset(live),
        frozenset(node for node in live if node not in diverged and matches.get(node, 0) >= log.commit),
        frozenset(node for node in live if matches.get(node, 0) >= needed),
    )
