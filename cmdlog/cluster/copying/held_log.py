"""The log after the snapshots of a copy, held at the source until the recipient has caught up, or until the node needs the room.

One rule: a copy never makes a log full. Where the log is short of room, the anchors of copies are released, and the recipient may
find that entries are gone when its files are there: then it copies again, and fetches only what is new. Without that rule one
slow copy would stop a busy node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CATCH_UP_S: Final = 600.0  # from the last file until the recipient has what the log holds: it restores, starts, and reads


class HeldLog:
    """By recipient the anchors that are set for it. Not thread-safe."""

    def __init__(self, hold: Callable[[str, int], None], let_go: Callable[[str], None]) -> None:
        """`hold` sets an anchor of that name at a block, `let_go` removes it."""
        self._hold, self._let_go = hold, let_go
        self._names: dict[int, list[str]] = {}  # node -> anchors
        self._until_s: dict[int, float] = {}  # of those whose copy is done

    def hold_partition(self, node: int, partition: int, block: int) -> None:
        """Everything from that block on is kept for the node."""
        name = f"copy-{node}-{partition}"
        self._hold(name, block)
        self._names.setdefault(node, []).append(name)
        self._until_s.pop(node, None)

    def keep_for_catch_up(self, node: int, now_s: float) -> None:
        """Its copy is done: it is let go of when the node has caught up, or after `CATCH_UP_S`."""
        if node in self._names:
            self._until_s[node] = now_s + CATCH_UP_S

    def release_node(self, node: int) -> None:
        """Nothing is kept for it any more. Idempotent."""
        self._until_s.pop(node, None)
        for name in self._names.pop(node, ()):
            self._let_go(name)

    def release_done(self, now_s: float, is_waiting: Callable[[int], bool]) -> None:
        """Lets go of what is kept for nodes that have caught up, or that took too long. `is_waiting`: it has not caught up."""
        for node in [node for node, until_s in self._until_s.items() if until_s < now_s or not is_waiting(node)]:
            self.release_node(node)

    @property
    def nodes(self) -> list[int]:
        """For whom something is kept."""
        return sorted(self._names)
