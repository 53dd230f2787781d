"""Compares this node's sums of the log with those of its peers, and says whose disk differs.

One rule: a majority decides, and nothing is guessed. Entries that are committed have the same bytes on every disk. So where a
majority of the voters has one sum, a node with another one holds something else, although every block of it reads well; where no
majority agrees it is reported and nobody is blamed. A peer that has not read a range yet, or cannot be reached, says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from cmdlog.cluster.copying.log_sums import RANGES_MAX
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, RangeSums, range_end

log = structlog.get_logger("cmdlog.scrub")


@dataclass(frozen=True, slots=True)
class SumVerdict:
    """A range that is not the same on all disks that were asked."""

    group: int
    range: int
    differs: tuple[int, ...]  # nodes whose disk differs from the majority; (): no majority agrees

    @property
    def indexes(self) -> tuple[int, int]:
        """First and last entry of the range."""
        return max(1, self.range * RANGE_ENTRIES), range_end(self.range)


class ScrubPeers(Protocol):
    """The cluster, as the scrub of one of its members needs it. Called by the scrub's thread alone."""

    node: int  # this one

    def others(self) -> Sequence[int]:
        """The other voters, ascending."""
        ...

    def committed(self) -> Mapping[int, int]:
        """The last entry of each group that is known here to be committed."""
        ...

    def ask_sums(self, node: int, group: int, *, first: int, last: int) -> RangeSums:
        """What the peer knows of these ranges. Raises: OSError, when it cannot be asked."""
        ...

    def quorum_is_safe(self) -> bool:
        """Whether the others could serve without this node for as long as a copy takes."""
        ...

    @property
    def turn_s(self) -> float:
        """How long this node waits after a finding, so that two nodes do not go at the same moment."""
        ...

    def want_copy(self, reason: str) -> None:
        """This node is to be copied from its peers and starts again for that. Repeating it does nothing."""
        ...


def judge_sums(by_node: Mapping[int, Mapping[int, RangeSums]], *, voters: int) -> list[SumVerdict]:
    """node -> group -> range -> sum; the ranges in which two nodes differ, by group and range."""
    found = []
    places = sorted({(group, number) for groups in by_node.values() for group, sums in groups.items() for number in sums})
    for group, number in places:
        sums = {node: groups[group][number] for node, groups in by_node.items() if number in groups.get(group, {})}
        ((common, count), *others) = Counter(sums.values()).most_common()
        if others:
            differing = sorted(node for node, value in sums.items() if value != common)
            found.append(SumVerdict(group, number, tuple(differing) if count > voters // 2 else ()))
    return found


class LogComparison:
    """One comparison: a question per step, so that none of them holds anything up for long."""

    def __init__(self, peers: ScrubPeers, mine: Mapping[int, RangeSums]) -> None:
        self._peers, self.node, others = peers, peers.node, list(peers.others())
        self._by_node: dict[int, dict[int, dict[int, int]]] = {peers.node: {g: dict(sums) for g, sums in mine.items()}}
        self._voters = len(others) + 1
        self._questions = [
            (node, group, first, min(first + RANGES_MAX, max(sums) + 1) - 1)
            for node in others
            for group, sums in sorted(mine.items())
            if sums
            for first in range(min(sums), max(sums) + 1, RANGES_MAX)
        ]

    def ask_next(self) -> bool:
        """One question; False when there was none left."""
        if not self._questions:
            return False
        node, group, first, last = self._questions.pop(0)
        try:
            said = self._peers.ask_sums(node, group, first=first, last=last)
        except OSError as error:
            log.info("scrub_peer_not_asked", node=node, reason=str(error))
            self._questions = [question for question in self._questions if question[0] != node]
            return True
        mine = self._by_node[self._peers.node][group]
        theirs = self._by_node.setdefault(node, {}).setdefault(group, {})
        theirs.update({number: value for number, value in said.items() if number in mine})
        return True

    @property
    def answered(self) -> list[int]:
        """Nodes that are compared, this one too."""
        return sorted(self._by_node)

    @property
    def ranges(self) -> int:
        """How many ranges of this node at least one other has as well."""
        mine = {(group, number) for group, sums in self._by_node[self.node].items() for number in sums}
        others = [groups for node, groups in self._by_node.items() if node != self.node]
        return sum(any(number in groups.get(group, {}) for groups in others) for group, number in mine)

    def verdicts(self) -> list[SumVerdict]:
        """After the last question."""
        return judge_sums(self._by_node, voters=self._voters)
