"""Where recovered states go, how an interrupted run is resumed, and the results of the partitions."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from cmdlog.wal.files import Files
from replay.errors import Divergence, Poison
from replay.plan.node_plan import PartitionPlan, Plan
from replay.recover.quarantine import Aside, QuarantineFile
from replay.results import PartitionResult
from replay.state.set_aside_state import kept_path
from replay.state.trust import STATE_FOLDER, Trust, state_path

HANG_AFTER_S: Final = 3600.0  # of one call, in worker processes: as long as a node can be configured to let a call run


@dataclass(slots=True)
class Target:
    """Where the recovered states go: the node's own directory, or another one."""

    files: Files
    directory: str  # its folder state/ holds the result
    state_folder: str = field(init=False)
    trust: Trust = field(init=False)

    def __post_init__(self) -> None:
        self.state_folder = os.path.join(self.directory, STATE_FOLDER)
        self.trust = Trust(self.files, self.directory)


@dataclass(slots=True)
class PartitionsDone:
    """The results of the partitions."""

    results: list[PartitionResult] = field(default_factory=list)
    stops: list[Divergence | Poison] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)

    def raise_stops(self, target: Target, directory: str, *, quarantine: bool) -> NoReturn:
        """Raises: Divergence or Poison of the first partition that stopped, naming the others.

        Unless calls were set aside already, its hint is the command that does so with what `directory` holds.
        """
        for stop in self.stops:
            if isinstance(stop, Divergence):
                target.trust.discard(stop.place.partition)
        first, *others = sorted(self.stops, key=lambda stop: stop.place.partition)
        stop = type(first)(first.place, others)
        stop.keeps([path for one in stop.stops if os.path.exists(path := kept_path(target.directory, one.place.partition))])
        if not quarantine:
            out = target.directory if target.directory != directory else f"{directory}-recovered"
            stop.advise(shlex.join(["cmdlog", "recover", directory, "--to", out, "--quarantine"]))
        raise stop


def remaining_plan(plan: Plan, target: Target, partitions: Collection[int]) -> Plan:
    """The rest of a plan that was begun in this directory, and there alone: these partitions from where their states are.

    A trusted state is used as it is, as at a start. A partition in which calls were set aside begins again: what touched their
    rows is known only from a complete run.
    """
    file = QuarantineFile(target.directory)
    anew = {call.partition for call in file.read()}.intersection(partitions)
    for partition in sorted(anew):
        target.trust.discard(partition)
    file.drop(anew)
    return replace(
        plan, partitions=tuple(_rest(part, target) if part.partition in partitions else part for part in plan.partitions)
    )


def _rest(part: PartitionPlan, target: Target) -> PartitionPlan:
    position = target.trust.position(part.partition)
    if isinstance(position, str) or not part.from_index <= position.index <= part.to_index:
        return part
    done = (position.index - part.from_index) / max(1, part.to_index - part.from_index)
    return replace(
        part,
        source="state",
        name=state_path(target.directory, part.partition),
        from_index=position.index,
        from_term=position.term,
        from_checksum=position.checksum,
        entries=part.to_index - position.index,
        calls=round(part.calls * (1 - done)),
        bytes=round(part.bytes * (1 - done)),
        why="an earlier run of this plan reached this point",
    )
