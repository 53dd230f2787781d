"""Which survivor of a lost majority holds the most: what an operator chooses by, and what a lesser one is refused with.

One rule: pure, and by the ends of the logs alone, as in an election (Raft paper, section 5.4.1). A better end never holds less of
what was committed. All groups must agree: one survivor may be ahead in one group and another one elsewhere; then none has all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cmdlog.raft.core import RaftCore
from cmdlog.wal.ids import CLUSTER_GROUP


@dataclass(frozen=True, slots=True)
class SurvivorEnds:
    """One node that is left."""

    node: int
    ends: Mapping[int, tuple[int, int]]  # group -> (last term, last index)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gives. Raises: KeyError, TypeError, ValueError, IndexError."""
        ends = {int(group): (int(end[0]), int(end[1])) for group, end in value["ends"].items()}
        return cls(int(value["node"]), ends)

    def to_json(self) -> dict[str, Any]:
        return {"node": self.node, "ends": {str(group): list(end) for group, end in sorted(self.ends.items())}}


def better_ends(mine: SurvivorEnds, others: Iterable[SurvivorEnds]) -> list[str]:
    """Where another survivor holds more, as text; empty when `mine` is the best, or as good as it."""
    found = []
    for other in sorted(others, key=lambda one: one.node):
        for group, (term, index) in sorted(other.ends.items()):
            own_term, own_index = mine.ends.get(group, (0, 0))
            if (term, index) > (own_term, own_index):
                name = "the cluster group" if group == CLUSTER_GROUP else f"partition {group}"
                found.append(
                    f"node {other.node} ends {name} at term {term} index {index}, "
                    f"node {mine.node} at term {own_term} index {own_index}"
                )
    return found


def end_of(core: RaftCore) -> tuple[int, int]:
    """Term and index of the last entry: what survivors of a lost majority are compared by."""
    return int(core.log.last_term), int(core.log.last)
