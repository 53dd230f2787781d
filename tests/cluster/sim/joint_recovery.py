"""What `cmdlog recover n1 n2 n3 --to OUT` makes of the disks of a simulated cluster, with the states of its simulated sites.

One rule: which entries count, and what is skipped or void, is decided by the product's plan, and its loop reads the logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record, decode_digest
from cmdlog.wal.ids import Lsn
from cmdlog.wal.skips import VOID
from procedures.idempotency.known_outcome import KeyPolicy
from replay.loop import EntryQueue, ReplayLoop
from replay.plan.cluster_plan import JointPlan, check_complete
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.node_plan import PartitionPlan, Plan, Planned
from replay.plan.planner import MEMBER_QUARANTINE
from snapshot.catalog import FOLDER
from tests.cluster.sim.list_images import read_image
from tests.cluster.sim.list_sites import ListState
from tests.wal.sim.simfiles import SimFile, SimFiles


class Mounted(Files):
    """Several disks side by side, for reading: `/n1` is the first one's."""

    def __init__(self, disks: Mapping[int, SimFiles]) -> None:
        self._disks = dict(disks)

    def _of(self, path: str) -> SimFiles:
        return self._disks[int(path.split("/")[1][1:])]

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> SimFile:
        assert not create, f"a plan creates {path}"
        return self._of(path).open(path, read_only=True)

    def listdir(self, path: str) -> list[str]:
        return self._of(path).listdir(path)

    def exists(self, path: str) -> bool:
        return self._of(path).exists(path)

    def boot_id(self) -> str:
        return "recovery"

    def mkdir(self, path: str) -> None:
        raise AssertionError(f"a plan changes {path}")

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"a plan changes {source}")

    def unlink(self, path: str) -> None:
        raise AssertionError(f"a plan changes {path}")

    def fsync_dir(self, path: str) -> None:
        raise AssertionError(f"a plan changes {path}")

    def lock(self, path: str) -> Any:
        raise AssertionError(f"a plan locks {path}")


class _Applying:
    """`replay.loop.EntryPolicy`: entries go to a state; what the live run did is compared."""

    def __init__(self, plan: PartitionPlan, state: ListState) -> None:
        self.plan, self.state = plan, state
        self.calls = 0
        self.awaits_digest = False
        self._uncompared: dict[int, tuple[Record, BatchAnswer]] = {}  # batches that were applied without a digest, by index
        self._skipped = {index: set(positions) for index, positions in plan.skips.items()}
        for index in plan.dropped:
            self._skipped[index] = {VOID}

    def apply_entry(self, _lsn: Lsn, record: Record, digest: Record | None) -> None:
        answer = self.state.apply(record, self._skipped)
        if answer is None:
            return
        if digest is None:
            self._uncompared[record.index] = record, answer
        else:
            _compare(record, answer, digest)

    def compare_late(self, digest: Record) -> None:
        """A node that was killed had no digests of some batches, and has run them again: those come after younger ones'."""
        if digest.index in self._uncompared:
            _compare(*self._uncompared.pop(digest.index), digest)

    def change_key_policy(self, policy: KeyPolicy) -> None:
        """These keys never end."""


def _compare(record: Record, answer: BatchAnswer, digest: Record) -> None:
    live = decode_digest(digest)
    assert digest.term == record.term, f"{record.partition}/{record.index} of term {record.term} has a digest of {digest.term}"
    did = (answer.rows_digest, answer.result_hashes)
    assert did == (live.rows_digest, bytes(live.result_hashes)), f"{record.partition}/{record.index} diverges in recovery"


def _image(files: Mounted, leg: Plan, part: PartitionPlan) -> ListState:
    """The state that a snapshot holds, which the plan has checked."""
    directory = leg.origins.get(part.partition, leg.directory)
    return read_image(files, os.path.join(directory, FOLDER, part.name))


def plan_recovery(files: Mounted, nodes: Iterable[int]) -> JointPlan:
    """Raises: what the plan raises."""
    plan = make_joint_plan(files, [f"/n{node}" for node in sorted(nodes)], purpose=MEMBER_QUARANTINE)
    check_complete(plan)
    return plan


def recover_states(disks: Mapping[int, SimFiles], partitions: int) -> dict[int, ListState]:
    """The states that a recovery of all the disks makes. Raises: what the plan raises."""
    files = Mounted(disks)
    plan = plan_recovery(files, disks)
    states: dict[int, ListState] = {}
    for leg in plan.legs:
        queues = {}
        for part in leg.partitions:
            if part.source == "snapshot":
                states[part.partition] = _image(files, leg, part)
            assert part.source == "empty" or part.partition in states, f"partition {part.partition} begins with {part.source}"
            state = states.setdefault(part.partition, ListState(part.partition, partitions, index=0))
            queues[part.partition] = EntryQueue(
                part.partition, _Applying(part, state), after_index=state.index, to_index=part.to_index, voids=part.voids,
                progress=lambda *_: None,
            )  # fmt: skip
        ReplayLoop(queues).run(Planned.of(files, leg).records(), "/")
    return states
