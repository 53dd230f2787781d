"""`cluster/tombstone.json`: this node was removed from its cluster, and what it had then.

One rule: written before the node ends, and never removed by the program. What a removed node votes or serves would count for
nothing, so a later start is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.operator_error import OperatorError
from cmdlog.wal.directory.instance import CLUSTER_FOLDER
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import read_checked, write_checked

TOMBSTONE_NAME: Final = "tombstone.json"


class MemberRemoved(OperatorError):
    """The cluster has removed this node."""

    exit_code = 11
    hint = (
        "it serves nothing any more; to have it again: `cmdlog cluster add NODE` on a node of the cluster, then start it with an "
        "empty directory. What this directory holds can still be read by `cmdlog recover DIR... --plan`"
    )


@dataclass(frozen=True, slots=True)
class MemberTombstone:
    """What is known of a member that is none any more."""

    node: int
    incarnation: bytes  # [8] whose data the directory holds
    ended: Mapping[int, tuple[int, int]]  # group -> term, index: the last entry of each group when it left

    def error(self, directory: str) -> MemberRemoved:
        """What a start of this directory ends with."""
        last = ", ".join(f"{group}: {term}.{index}" for group, (term, index) in sorted(self.ended.items()))
        where = f"; last entries by group (term.index): {last}" if last else ""
        return MemberRemoved(f"node {self.node} was removed from its cluster; its directory is {directory}{where}")


def read_tombstone(files: Files, directory: str) -> MemberTombstone | None:
    """None: the node was not removed, as far as it knows. Raises: Corrupt."""
    path = os.path.join(directory, CLUSTER_FOLDER, TOMBSTONE_NAME)
    value = read_checked(files, path)
    if value is None:
        return None
    try:
        ended = {int(group): (int(term), int(index)) for group, (term, index) in value["ended"].items()}
        return MemberTombstone(int(value["node"]), bytes.fromhex(value["incarnation"]), ended)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"the file names no removed node ({error!r})", path=path) from error


def write_tombstone(files: Files, directory: str, tombstone: MemberTombstone) -> None:
    """Durable on return. Raises: DiskFull, WriteFailed."""
    value: dict[str, Any] = {
        "node": tombstone.node,
        "incarnation": tombstone.incarnation.hex(),
        "ended": {str(group): list(place) for group, place in sorted(tombstone.ended.items())},
    }
    write_checked(files, os.path.join(directory, CLUSTER_FOLDER, TOMBSTONE_NAME), value)
