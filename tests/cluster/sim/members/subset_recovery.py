"""Recoveries from every subset of the directories of a simulated cluster, judged from outside.

One rule: what a recovery has to prove follows from what the world has seen: a configuration that some node was told is committed,
and the disks that have lost nothing. A recovery says *proved* when its directories meet every majority that may have acknowledged
something, and only then; and what it proves holds everything that any node was told is committed.

Old copies of directories are the exception: one is found by what another directory at hand knows. Where all at hand are old
copies, each looks like a node that lagged, and nothing is asked of the recovery. Beside any other directory they must not count.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import Configuration
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import ReplayError
from replay.log.collect_evidence import gather
from replay.log.evidence import BOOTSTRAP_INDEX, NodeEvidence
from tests.cluster.sim.joint_recovery import Mounted, recover_states
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.sim_member import PARTITIONS, directory_of

if TYPE_CHECKING:
    from tests.cluster.sim.members.changing_cluster import ChangingCluster

SUBSETS_MAX: Final = 8  # of one moment; of five directories that is a quarter
GROUPS: Final = (*range(PARTITIONS), CLUSTER_GROUP)


@dataclass(frozen=True, slots=True)
class Moment:
    """The disks of a cluster whose processes have all ended, and what is known from outside."""

    evidence: Mapping[int, NodeEvidence]
    whole: frozenset[int]  # nodes whose disks have lost nothing, and that no fault log calls failed
    told: Mapping[int, tuple[int, Configuration]]  # of each group the newest one known committed, with its index
    old: frozenset[int]  # nodes whose directories are old copies; every other one has met a later start of theirs

    @classmethod
    def of(cls, world: ChangingCluster) -> Moment:
        files = Mounted({node: machine.files for node, machine in world.machines.items()})
        evidence = {node: gather(files, directory_of(node)) for node in sorted(world.machines)}
        failed = {node for one in evidence.values() for node in (one.faults[-1].failed if one.faults else ())}
        whole = {node for node, one in evidence.items() if one.refused is None} - world.spoiled - failed
        forgetful = {(int(life.node), life.incarnation.hex()) for life in world.forgetful}
        old = {node for node, one in evidence.items() if (node, one.incarnation) in forgetful}
        committed = {group: told_configuration(world, group) for group in GROUPS}
        return cls(evidence, frozenset(whole), committed, frozenset(old))

    def can_judge(self, subset: frozenset[int]) -> bool:
        """Whether a directory is at hand that is no old copy."""
        return not self._present(subset) <= self.old

    def must_prove(self, subset: frozenset[int]) -> bool:
        """Whether every majority that may have decided anything is met by directories that have lost nothing."""
        return all(
            _meets(half, subset & self.whole)
            for group, (index, told) in self.told.items()
            for half in (told.voters, told.outgoing, *self._at_hand(group, index, subset))
        )

    def must_not_prove(self, subset: frozenset[int]) -> bool:
        """Whether some majority that may have acknowledged something is outside."""
        counted = self._present(subset) - self.old
        return any(not _meets(half, counted) for _, known in self.told.values() for half in (known.voters, known.outgoing))

    def _present(self, subset: frozenset[int]) -> frozenset[int]:
        return frozenset(node for node in subset if self.evidence[node].refused is None)

    def _at_hand(self, group: int, index: int, subset: frozenset[int]) -> Iterator[frozenset[int]]:
        """What these logs state from the newest one on that they know to be committed: a mark may have been lost, and what comes
        after may be committed, too."""
        logs = [of for node in subset if (of := self.evidence[node].groups.get(group)) is not None]
        stated = [(one, one.index <= max(of.commit, BOOTSTRAP_INDEX)) for of in logs for one in of.configurations]
        known = min(index, max((one.index for one, committed in stated if committed), default=0))
        for one, _ in stated:
            if one.index >= known:
                yield from (one.voters, one.outgoing)


def told_configuration(world: ChangingCluster, group: int) -> tuple[int, Configuration]:
    """The newest configuration of the group that some node was told is committed."""
    found = {
        index: record
        for (of, index), (_, record) in world.agreed.items()
        if of == group and record[4] == RecordKind.CONFIGURATION
    }
    if not found:
        return 1, Configuration(voters=tuple(range(1, world.first + 1)))  # type: ignore[arg-type]
    newest = max(found)
    return newest, Configuration.from_bytes(orjson.dumps(decode_record(found[newest]).json()))


def check_subsets(world: ChangingCluster, rng: random.Random, settled: Mapping[int, ListState] | None = None) -> None:
    """Recovers every subset, or some of many. `settled`: what each proved one has to be. Raises: AssertionError."""
    moment = Moment.of(world)
    nodes = sorted(world.machines)
    subsets = [frozenset(of) for size in range(1, len(nodes) + 1) for of in combinations(nodes, size)]
    chosen = subsets if len(subsets) <= SUBSETS_MAX else [subsets[-1], *rng.sample(subsets[:-1], SUBSETS_MAX - 1)]
    told = {p: max((index for group, index in world.agreed if group == p), default=0) for p in range(PARTITIONS)}
    for subset in chosen:
        found = _recover(world, subset)
        if isinstance(found, Exception):
            assert not moment.must_prove(subset), f"directories {sorted(subset)} prove everything, and are refused: {found}"
            world.happened["recovery not proved"] += 1
            continue
        if not moment.can_judge(subset):
            world.happened["recovery of old copies alone"] += 1
            continue
        world.happened["recovery proved"] += 1
        assert not moment.must_not_prove(subset), f"directories {sorted(subset)} cannot prove what {moment.told} may have decided"
        for partition, index in told.items():
            at = found[partition].index
            assert at >= index, f"directories {sorted(subset)} end partition {partition} at {at}, and {index} was committed"
        if settled is None:
            world.check_alternative(found)
            continue
        for partition, state in settled.items():
            of = found[partition]
            assert (of.lists, of.keys) == (state.lists, state.keys), f"{sorted(subset)}: {of} and not {state}"


def _recover(world: ChangingCluster, subset: frozenset[int]) -> dict[int, ListState] | Exception:
    try:
        return recover_states({node: world.machines[node].files for node in sorted(subset)}, PARTITIONS)
    except (WalError, ReplayError, OperatorError) as error:
        return error


def _meets(half: Collection[int], nodes: frozenset[int]) -> bool:
    """Whether the nodes have a member in every majority of the half."""
    return not half or len(nodes.intersection(half)) >= len(half) - (len(half) // 2 + 1) + 1
