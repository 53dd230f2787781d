"""The life of a made-up cluster: who belongs to it, who failed and came back, and what happens to its directories.

One rule: in the order of the contract: a demotion is committed before the failure set is written, a node marks itself before it
discards its log, it is a voter again before the set without it is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.replay.historycluster import Cluster
from tests.replay.historynode import Base, Entry, Held, base_of

STAGES = ("marked", "discarded", "copied", "promoted", "done")  # of a rejoin, in order


class History(Cluster):
    """A cluster at work, with members that come and go."""

    def configure(
        self, group: int, voters: Iterable[int], learners: Iterable[int] = (), outgoing: Iterable[int] = ()
    ) -> Entry | None:
        """The leader appends a configuration; only if the one before is committed, and an entry of its own term."""
        number = self.leader(group)
        held = self.nodes[number].group(group)
        done = self.truth.last(group)
        if (
            self.nodes[number].silent
            or held.configuration()[0] > done
            or self.leads[group][number] != self.truth.committed[group][-1].term
        ):
            return None
        return self.control(group, RecordKind.CONFIGURATION, self._members(group, voters, learners, outgoing))

    def members(self, group: int) -> tuple[set[int], set[int]]:
        """Voters and learners, as the leader has them."""
        value = self.nodes[self.leader(group)].group(group).configuration()[2]
        return set(value.get("voters", ())), set(value.get("learners", ()))

    def demote(self, failed: int, group: int, to: Iterable[int] | None = None) -> Entry | None:
        """One group makes the node a learner; None unless that is committed among `to`."""
        voters, learners = self.members(group)
        if failed == self.leader(group) or failed not in voters or len(voters) == 1:
            return None
        self._renew(group, to)
        entry = self.configure(group, voters - {failed}, learners | {failed})
        self.spread(group, to)
        return entry if entry is not None and self.truth.last(group) >= entry.index else None

    def declare_failed(self, failed: int, told: Iterable[int] | None = None) -> bool:
        """Every group demotes the node; then the failure set is written by its author and all that are told and up."""
        told = [n for n in (self.nodes if told is None else told) if n != failed and self.nodes[n].up]
        demotions = []
        for group in self.groups:
            entry = self.demote(failed, group, told)
            if entry is None:
                return False
            demotions.append((group, entry.index, entry.term))
        self.write_faults(self.failed | {failed}, told, demotions, f"node {failed} does not answer")
        return True

    @property
    def failed(self) -> frozenset[int]:
        """The failure set as the cluster has it."""
        return self.lineage[-1].failed if self.lineage else frozenset()

    def write_faults(
        self, failed: Iterable[int], told: Iterable[int], entries: Sequence[tuple[int, int, int]], reason: str
    ) -> FaultRecord:
        """The cluster group's leader adds a record to the fault log, and the others take it over."""
        author = self.leader(CLUSTER_GROUP)
        log = self.nodes[author].faults
        log.adopt(self.lineage)
        record = log.append(failed=failed, epoch=self.epoch, term=self.leads[CLUSTER_GROUP][author], demotions=tuple(entries),
                            reason=reason)  # fmt: skip
        self.lineage.append(record)
        self.tell_faults(told)
        return record

    def tell_faults(self, told: Iterable[int]) -> None:
        """These nodes take over what they have not yet."""
        for number in told:
            if self.nodes[number].up:
                self.nodes[number].faults.adopt(self.lineage)

    def rejoin(self, number: int, upto: str = "done", told: Iterable[int] | None = None) -> bool:
        """A failed node comes back: marks itself, discards its log, is filled, made a voter anew, and the set is written.

        `upto` is the last step that happens.
        """
        node = self.nodes[number]
        told = [n for n in (self.nodes if told is None else told) if n != number and self.nodes[n].up]
        if not node.up:
            node.start()
        node.faults.adopt(self.lineage)
        mark = node.faults.mark_rejoining(term=self._terms[CLUSTER_GROUP])
        if not self.lineage or mark.sequence > self.lineage[-1].sequence:
            self.lineage.append(mark)
        self.tell_faults(told)
        node.silent = True
        if upto == "marked":
            return True
        node.discard()
        if upto == "discarded":
            return True
        if not self.fill(number):
            return False
        if upto == "copied":
            return True
        if not self.promote(number, told):
            return False
        if upto == "promoted":
            return True
        self.write_faults(self.failed - {number}, [*told, number], self.promotions(number), f"node {number} is complete")
        node.copying = False
        return True

    def fill(self, number: int) -> bool:
        """The node is given a snapshot of every partition and the entries behind it."""
        node, bases = self.nodes[number], dict[int, Base]()
        node.silent = node.copying = True
        for group in self.groups:
            source = self.nodes[self.leader(group)]
            base = self._base(group, source.group(group)) if source.up and not source.silent else None
            if base is None:
                return False
            bases[group] = base
            node.copied_from[group] = source.group(group).last_index
        node.fill(bases, self.truth.facts(self.nodes[self.leader(CLUSTER_GROUP)].group(CLUSTER_GROUP).configuration()[2]))
        if self.lineage and node.faults.newest is None:
            node.faults.adopt(self.lineage)
        reached = [self.replicate(group, number) for group in reversed(self.groups)]
        return all(reached)

    def promote(self, number: int, told: Iterable[int] | None = None) -> bool:
        """Every group makes the node a voter, committed by the old voters and by the new ones."""
        told = list(self.nodes if told is None else told)
        for group in reversed(self.groups):
            voters, learners = self.members(group)
            self._renew(group, [*told, number])
            if self.configure(group, voters | {number}, learners - {number}) is None:
                return False
            if not self.spread(group, [*told, number]):
                return False
        self.nodes[number].silent = False
        return True

    def add_node(self, number: int, *, promote: bool = True) -> bool:
        """Growth: a new directory, filled and made a voter."""
        node = self.nodes[number] = self.new_node(number)
        for group in self.groups:
            voters, learners = self.members(group)
            self._renew(group)
            self.configure(group, voters, learners | {number})
            if not self.spread(group, [n for n in self.nodes if n != number]):
                return False
        if not self.fill(number):
            return False
        if not promote:
            return True
        if not self.promote(number):
            return False
        node.copying = False
        return True

    def remove_node(self, number: int) -> bool:
        """Shrinkage: no group lists the node any more. Its directory stays as it is."""
        for group in self.groups:
            voters, learners = self.members(group)
            self._renew(group)
            if number == self.leader(group) or self.configure(group, voters - {number}, learners - {number}) is None:
                return False
            if not self.spread(group, [n for n in self.nodes if n != number]):
                return False
        return True

    @property
    def is_settled(self) -> bool:
        """No node's log was lost, and none is being filled."""
        return not any(node.silent or node.copying for node in self.nodes.values())

    # -- files -------------------------------------------------------------------------------------------------------------

    def snapshot(self, number: int, partition: int) -> str | None:
        """The node seals a snapshot of what it has executed; None when there is nothing to take."""
        node = self.nodes[number]
        held = node.group(partition)
        image = self.truth.image(partition, min(held.commit, held.last_index))
        if image is None or not node.up or image[1]["index"] <= held.base:
            return None
        path, position = image
        return node.put_snapshot(partition, path, position, self.truth.facts(node.group(CLUSTER_GROUP).configuration()[2]))

    def lose_disk(self, number: int) -> None:
        """The node comes back with an empty disk; nothing that it had counts."""
        self.nodes[number].lose_disk()
        self.nodes[number].silent = True

    def take_copy(self, number: int) -> None:
        """The directory is copied aside, to be handed over later in place of the node's own."""
        if self.nodes[number].up:
            folder = os.path.join(self.folder, "copies")
            os.makedirs(folder, exist_ok=True)
            self.copies.append((number, self.nodes[number].copy_to(folder)))

    def restore_copy(self, number: int, copy: str) -> None:
        """The node's directory is one that was copied away earlier."""
        self.nodes[number].stop()
        self.given[number] = copy

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _base(self, group: int, source: Held) -> Base | None:
        """Where a node that is filled begins in this group: at an image's position, or at the last configuration's."""
        image = None
        at = max(1, min(source.commit, self.truth.last(group)))  # everybody is made with the first configuration
        if group != CLUSTER_GROUP:
            image = self.truth.image(group, at)
            if image is None:
                return None
            at = int(image[1]["index"])
        if at < source.base:
            return None
        base = base_of(source, group, at, self.truth.last_txn(group, at), self.truth.catalogs)
        return Base(base.held, base.state, *image) if image is not None else base

    def promotions(self, number: int) -> list[tuple[int, int, int]]:
        """The entries by which every group has made the node a voter."""
        found = []
        for group in self.groups:
            index, term, value = self.nodes[self.leader(group)].group(group).configuration()
            assert number in value["voters"]
            found.append((group, index, term))
        return found
