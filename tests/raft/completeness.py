"""Which logs, by what they say themselves, prove that nothing committed is missing: recovery's argument, restated small.

One rule: that of `replay.plan.authority`, on the disks of a test. Logs *suffice* when they meet every majority of each half of
the newest configuration that one of them knows to be committed, and of every later one that any of them holds. Then one of them
must hold whatever is committed. It is about disks that lost nothing: after a wipe it says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from cmdlog.raft import Configuration, Entries, HardState, NodeId, SnapshotDescriptor
from cmdlog.raft.messages import KIND_CONFIGURATION
from cmdlog.raft.quorum import majority


class Durable(Protocol):
    """What is durable of one node."""

    @property
    def hard_state(self) -> HardState:
        """With the commit mark."""

    @property
    def manifest(self) -> SnapshotDescriptor:
        """Where the log begins."""

    @property
    def entries(self) -> Entries:
        """The log behind it."""


def unseeing(disks: Mapping[NodeId, Durable], holders: Collection[NodeId]) -> tuple[NodeId, ...]:
    """Nodes whose logs suffice although none of them is a holder of something committed; none, when all is well.

    A log that knows of more changes may ask for voters that are not there, so those that know less are tried without it, too.
    """
    ends = {node: max((at for at, _ in _stated(disk)), default=0) for node, disk in disks.items() if node not in holders}
    for end in sorted(set(ends.values())):
        part = {node: disks[node] for node, at in ends.items() if at <= end}
        if suffice(part):
            return tuple(sorted(part))
    return ()


def suffice(disks: Mapping[NodeId, Durable]) -> bool:
    """Whether these logs meet every majority that may have committed something, as far as they know."""
    known, later = 0, dict[int, list[Configuration]]()
    commit = max((disk.hard_state.commit for disk in disks.values()), default=0)
    for disk in disks.values():
        for at, configuration in _stated(disk):
            later.setdefault(at, []).append(configuration)
            if at <= max(disk.hard_state.commit, disk.manifest.index):
                known = max(known, at)
    deciding = [each for at in later if at == known or at > max(known, commit) for each in later[at]]
    return bool(deciding) and all(_are_met(half, disks) for each in deciding for half in (each.voters, each.outgoing))


def _are_met(half: Collection[NodeId], nodes: Iterable[NodeId]) -> bool:
    return not half or len(set(half).difference(nodes)) < majority(len(half))


def _stated(disk: Durable) -> Iterator[tuple[int, Configuration]]:
    """(index, configuration): of the manifest, if it has one, and of the entries behind it."""
    if disk.manifest.configuration.voters:
        yield disk.manifest.index, disk.manifest.configuration
    kinds, at = disk.entries.kinds, -1
    while (at := kinds.find(KIND_CONFIGURATION, at + 1)) >= 0:
        yield disk.entries.first + at, Configuration.from_bytes(disk.entries.payloads[at])
