"""What goes wrong in a simulated cluster: a mixture that a seed chooses; two kinds follow from the seed's number, so any eight
seeds in a row have all.

One rule: only what a cluster of three survives. At most one disk fails at a time for good; losses of power take what was not
synced, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cmdlog.cluster.leader_fitness import FIT, Unfitness
from cmdlog.raft import RaftCore
from tests.wal.sim.simfiles import Fault

if TYPE_CHECKING:
    from tests.cluster.sim.sim_cluster import SimCluster

RATE: Final = 0.0012  # of each kind that a history has, per step
HEAL_RATE: Final = 0.01
FIRST_STEPS: Final = (400, 1000)  # in which each kind that a history has happens for certain
STOP_TICKS: Final = 30
UNHEARD_TICKS: Final = 8  # without what the leader says in one group
LOST_TICKS: Final = 25  # of one group: longer than any time-out


class ClusterFaults:
    """The faults of one history."""

    def __init__(self, world: SimCluster) -> None:
        self.world, self._rng = world, world.rng
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "crash": self._crash_at_a_step,
            "all": self._kill_all,
            "cut": self._cut,
            "leader": self._isolate_leader,
            "pause": self._pause,
            "group": self._lose_group,
            "clock": self._jump,
            "sync": self._fail_sync,
            "full": self._fill_disk,
            "loss": self._lose,
            "capture": self._capture,
            "skip": self._skip,
            "stop": self._stop,
            "unfit": self._weaken,
        }
        self.names, at = sorted(kinds), 2 * world.seed
        names = self.names
        chosen = {*self._rng.sample(names, self._rng.randint(0, 3)), *(names[(at + each) % len(names)] for each in range(2))}
        self.kinds = {name: kinds[name] for name in kinds if name in chosen or name == "capture"}
        self._unheard_ends = 0  # tick
        self._steps, self._first = 0, {name: self._rng.randrange(*FIRST_STEPS) for name in self.kinds}

    def step(self) -> None:
        """Something may go wrong, or be well again."""
        rng, world = self._rng, self.world
        self._steps += 1
        for name, happen in self.kinds.items():
            if self._steps == self._first[name] or rng.random() < (RATE / 8 if name == "all" else RATE):
                world.happened[name] += 1
                happen()
        if world.unheard and world.ticks >= self._unheard_ends:
            self._end_unheard()
        if rng.random() < HEAL_RATE:
            self._heal()
        for node in [node for node, member in world.members.items() if member.failure is not None]:
            if rng.random() < 0.02:  # the process has ended; its supervisor starts it
                world.machines[node].files.heal()
                world.machines[node].files.capacity_bytes = 1 << 30
                world.crash(node, power=False)
        for node, member in list(world.members.items()):
            if member.stops_at is not None and (not member.leads or world.ticks >= member.stops_at):
                world.crash(node, power=False)
        down = sorted(set(world.machines) - set(world.members))
        if down and rng.random() < 0.02:
            world.boot(rng.choice(down))

    def dies_syncing(self) -> bool:
        """Whether a node loses power while its disk syncs: what it was said to have written is gone."""
        return self._rng.random() < (0.05 if "crash" in self.kinds else 0.004)

    def _heal(self) -> None:
        world = self.world
        choice = self._rng.randrange(3)
        if choice == 0:
            world.cut.clear()
        elif choice == 1:
            for member in world.members.values():
                member.paused = False
                if member.stops_at is None:
                    member.transfer.set_reasons(FIT)
        else:
            world.loss = 0.01

    def _some(self) -> int:
        return self._rng.choice(sorted(self.world.machines))

    def _leader(self) -> int:
        """A node that leads, if there is one; else any."""
        leaders = [node for node, member in self.world.members.items() if member.leads]
        return self._rng.choice(leaders) if leaders and self._rng.random() < 0.7 else self._some()

    def _kill(self) -> None:
        node = self._leader()
        if node in self.world.members:
            self.world.crash(node, power=self._rng.random() < 0.5)

    def _crash_at_a_step(self) -> None:
        """At one of the next operations of the disk, in the middle of a write maybe."""
        node = self._leader()
        if node in self.world.members:
            self.world.machines[node].files.crash_at(self._rng.randint(1, 12))

    def _kill_all(self) -> None:
        power = self._rng.random() < 0.7
        for node in sorted(self.world.members):
            self.world.crash(node, power=power)

    def _cut(self) -> None:
        """Some directions, at random."""
        nodes = sorted(self.world.machines)
        self.world.cut = {(a, b) for a in nodes for b in nodes if a != b and self._rng.random() < 0.3}

    def _isolate_leader(self) -> None:
        """Both ways, or one."""
        node, others = self._leader(), sorted(self.world.machines)
        ways = self._rng.choice(["both", "in", "out"])
        self.world.cut = {(node, other) for other in others if ways != "in"} | {
            (other, node) for other in others if ways != "out"
        }

    def _pause(self) -> None:
        node = self._leader()
        if node in self.world.members:
            self.world.members[node].paused = True

    def _lose_group(self) -> None:
        """The leader of all groups loses one of them, as after a pause that few time-outs fall into, and leads on; a call on all
        partitions that is under way reaches the others alone."""
        self.world.unheard, self._unheard_ends = {(self._leader(), self._rng.randrange(2))}, self.world.ticks + UNHEARD_TICKS

    def _end_unheard(self) -> None:
        """The followers of the group have waited long enough."""
        ((leader, group),), self.world.unheard = self.world.unheard, set()
        for node, member in list(self.world.members.items()):
            if node != leader and not member.paused and member.failure is None:
                for _ in range(LOST_TICKS):
                    member.driver.ask(group, RaftCore.tick)

    def _jump(self) -> None:
        """A wall clock, forwards or back."""
        self.world.clock_offsets[self._some()] += self._rng.choice([-86_400, -3_600, -5, -0.5, 0.5, 5, 3_600, 86_400])

    def _sound(self) -> bool:
        """No disk fails at present."""
        return all(member.failure is None for member in self.world.members.values())

    def _fail_sync(self) -> None:
        """The next one of some disk, once: the node is silent from then on."""
        node = self._leader()
        if self._sound() and node in self.world.members:
            self.world.machines[node].files.fail_at(self._rng.randint(1, 3), Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))

    def _fill_disk(self) -> None:
        node = self._leader()
        if self._sound() and node in self.world.members:
            files = self.world.machines[node].files
            if self._rng.random() < 0.5:
                files.capacity_bytes = files.disk.used_bytes()
            else:
                files.fail_at(self._rng.randint(1, 3), Fault.NO_SPACE)

    def _lose(self) -> None:
        self.world.loss = self._rng.choice([0.05, 0.2, 0.5])

    def _capture(self) -> None:
        node = self._some()
        if node in self.world.members:
            self.world.members[node].capture(self._rng.randrange(2))

    def _skip(self) -> None:
        """A call that a leader has at its site cannot be run there."""
        node = self._leader()
        if node not in self.world.members:
            return
        member, partition = self.world.members[node], self._rng.randrange(2)
        if member.sites.runs_batch(partition):
            member.skip(partition)

    def _stop(self) -> None:
        """In order: leadership is offered first."""
        node = self._leader()
        if node in self.world.members:
            member = self.world.members[node]
            member.stops_at = self.world.ticks + STOP_TICKS
            member.transfer.set_reasons(Unfitness.STOPPING)

    def _weaken(self) -> None:
        """A node that should not lead while others can."""
        node = self._leader()
        if node in self.world.members and self.world.members[node].stops_at is None:
            self.world.members[node].transfer.set_reasons(self._rng.choice([Unfitness.LOG_FULL, Unfitness.STUCK]))
