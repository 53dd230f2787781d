"""The forced recovery of a running node: it becomes the only voter of every group, and the cluster gets another name.

One rule: under the driver's lock from the first check to the last entry. The name comes first: nothing that follows from the
entries leaves under the old one (`cmdlog.raft`, duty 14). So members of before, which may live and have a majority after all, are
refused by name by this node, and it by them; they return as new lives of their disks, by copy.

All groups get one epoch in one round. A crash may leave a prefix of that round in the log: `resume` completes it before this node
speaks with anybody, since what was forced in one group is not to be taken back.

Which survivor holds the most is judged by the ends of the logs alone, as in an election (Raft paper, section 5.4.1): a better end
never holds less of what was committed. All groups must agree: one survivor may be ahead in one group and another one elsewhere;
then none has all.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_network import PeerNetwork
from cmdlog.member.lost_majority.forced_epoch import StatedEpoch, groups_left_out, latest_epoch
from cmdlog.operator_error import OperatorError
from cmdlog.raft import RaftCore, Refusal
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.quorum import has_quorum
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId

log = structlog.get_logger("cmdlog.cluster")

Ends = Mapping[int, tuple[int, int]]
"""By group the last term and index of a survivor."""

EPOCH_BITS: Final = 61
HINT: Final = (
    "a forced recovery is for a majority that is lost for good: what only the lost nodes held is gone, and they never come back "
    "as they are; start the lost nodes again if that is possible at all"
)


class UnsafeRecoveryRefused(OperatorError):
    """The node does not become the only voter; nothing was changed. `code` says why."""

    hint = HINT

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why, kind=code)
        self.code = code


class UnsafeRecovery:
    """Of one running node. Any thread."""

    def __init__(self, node: int, driver: Replication, network: PeerNetwork) -> None:
        self._node, self._driver, self._network = node, driver, network

    def become_sole_voter(
        self, *, yes_lose: bool, survivors: Sequence[Mapping[str, Any]] = (), force: bool = False
    ) -> dict[str, Any]:
        """Forces every group. `survivors`: the other nodes that are left, each as {"node", "ends"} of its status.

        With `force` a lesser survivor is taken, and one that reaches a majority. The entries are on their way to the disk on
        return. Repeated when it is done, it answers `already`. Raises: UnsafeRecoveryRefused.
        """
        others = dict(map(_survivor, survivors))
        with self._driver.lock:
            answer: dict[str, Any] = self._driver.ask_groups(
                lambda groups: self._force(groups, others, yes_lose=yes_lose, force=force)
            )
        return answer

    def resume(self) -> None:
        """Completes a forced recovery that a crash left in some of the groups. Before anybody is spoken with."""
        self._driver.ask_groups(self._resume)

    def _resume(self, groups: RaftGroups) -> None:
        """A copied node has groups of before, too: its snapshots may be older than what the cluster group states."""
        stated = {int(group): _stated_epoch(core) for group, core in groups.cores.items()}
        left = groups_left_out(stated)
        if left and all(_is_done(core) for group, core in groups.cores.items() if group not in left):
            epoch = latest_epoch(stated.values())
            log.warning("forced_recovery_resumed", groups=left, epoch=epoch)
            _force_groups(groups, left, epoch)

    def _force(self, groups: RaftGroups, others: Mapping[int, Ends], *, yes_lose: bool, force: bool) -> dict[str, Any]:
        cores = groups.cores
        if all(_is_done(core) for core in cores.values()):
            return self._report(groups, already=True, lost=[])
        if not yes_lose:
            raise UnsafeRecoveryRefused("not_confirmed", "a forced recovery may lose acknowledged calls; it has to be confirmed")
        self._check(cores, others, force=force)
        lost = sorted({n for core in cores.values() for n in core.configuration.members() if n != core.id})
        epoch = 1 + secrets.randbits(EPOCH_BITS)
        self._network.enter_epoch(epoch)
        _force_groups(groups, sorted(cores), epoch)
        log.error("forced_recovery", epoch=epoch, lost=lost, force=force, survivors=list(others))
        return self._report(groups, already=False, lost=lost)

    def _check(self, cores: Mapping[PartitionId, RaftCore], others: Mapping[int, Ends], *, force: bool) -> None:
        """Every group is asked before the first is changed. Raises: UnsafeRecoveryRefused."""
        for group, core in sorted(cores.items()):
            if core.leader is not None:
                raise UnsafeRecoveryRefused(
                    Refusal.LEADER_ALIVE.name.lower(), f"node {core.leader} leads group {group}: its majority is alive"
                )
            if not core.enfranchised or not core.configuration.is_voter(core.id):
                raise UnsafeRecoveryRefused(
                    Refusal.NO_SUCH_VOTER.name.lower(),
                    f"node {self._node} is no voter of group {group}: it may lack what was acknowledged",
                )
        if force:
            return
        near = {NodeId(self._node), *(peer.node for peer in self._network.status().peers if peer.connected_since_s is not None)}
        if any(has_quorum(core.configuration, near) for core in cores.values()):
            raise UnsafeRecoveryRefused(
                "quorum_reachable", f"nodes {', '.join(map(str, sorted(near)))} are connected, and can elect a leader"
            )
        mine = {int(group): end_of(core) for group, core in cores.items()}
        if better := better_ends(self._node, mine, others):
            raise UnsafeRecoveryRefused("lesser_survivor", "; ".join(better))

    def _report(self, groups: RaftGroups, *, already: bool, lost: Sequence[int]) -> dict[str, Any]:
        cores = groups.cores
        return {
            "node": self._node,
            "already": already,
            "epoch": next(iter(cores.values())).configuration.epoch,
            "lost": list(lost),
            "groups": {str(group): {"term": core.term, "last": core.log.last} for group, core in sorted(cores.items())},
        }


def _force_groups(groups: RaftGroups, wanted: Sequence[int], epoch: int) -> None:
    for group in wanted:
        groups.ask(PartitionId(group), lambda core: core.force_recovery(epoch))


def _is_done(core: RaftCore) -> bool:
    """Whether the group is the work of a forced recovery on this node."""
    of = core.configuration
    return of.forced and of.voters == (core.id,) and not of.outgoing


def _stated_epoch(core: RaftCore) -> StatedEpoch:
    at, configuration = core.log.configurations[-1]
    return StatedEpoch(int(core.log.term_at(at) or 0), configuration.epoch)


def _survivor(value: Mapping[str, Any]) -> tuple[int, Ends]:
    try:
        return int(value["node"]), {int(group): (int(end[0]), int(end[1])) for group, end in value["ends"].items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnsafeRecoveryRefused("bad_survivor", f"a survivor is a node and its ends, not {value!r}: {error}") from None


def end_of(core: RaftCore) -> tuple[int, int]:
    """Term and index of the last entry: what survivors of a lost majority are compared by."""
    return int(core.log.last_term), int(core.log.last)


def better_ends(node: int, mine: Ends, others: Mapping[int, Ends]) -> list[str]:
    """Where another survivor holds more than this node, as text; empty when `mine` is the best, or as good as it."""
    found = []
    for other, ends in sorted(others.items()):
        for group, (term, index) in sorted(ends.items()):
            own_term, own_index = mine.get(group, (0, 0))
            if (term, index) > (own_term, own_index):
                name = "the cluster group" if group == CLUSTER_GROUP else f"partition {group}"
                found.append(
                    f"node {other} ends {name} at term {term} index {index}, node {node} at term {own_term} index {own_index}"
                )
    return found
