"""What happens to the members of a simulated cluster, beside what happens to any cluster: a mixture that a seed chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cmdlog.cluster.membership.operator_desk import RequestKind
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.directory.instance import load_instance
from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.sim_member import Machine, directory_of

if TYPE_CHECKING:
    from tests.cluster.sim.members.changing_cluster import ChangingCluster

MEMBER_RATE: Final = 0.0015
NODES_MIN: Final = 2


class MemberFaults(ClusterFaults):
    """The faults of one history."""

    world: ChangingCluster

    def __init__(self, world: ChangingCluster) -> None:
        super().__init__(world)
        rng = self._rng
        kinds: dict[str, Callable[[], None]] = {
            "add": self._add,
            "remove": self._remove,
            "replace": self._replace,
            "wipe": self._wipe,
            "damage": self._damage,
            "silence": self._silence,
            "restore": self._restore_old,
            "two administrators": self._ask_twice,
            "source dies": self._kill_source,
            "copy dies": self._kill_copy,
            "leader moves": self._move_leader,
            "hours apart": self._part_clocks,
        }
        self.member_names = names = sorted(kinds)
        chosen = {*rng.sample(names, rng.randint(2, 4)), names[world.seed % len(names)], names[(world.seed * 5 + 1) % len(names)]}
        if rng.random() < 0.5:  # fewer of the others
            kept = {"capture", rng.choice(sorted(self.kinds))}
            self.kinds = {name: happen for name, happen in self.kinds.items() if name in kept}
        self.kinds |= {name: kinds[name] for name in sorted(chosen)}
        self._first |= {name: rng.randrange(150, 700) for name in sorted(chosen)}

    def step(self) -> None:
        super().step()
        if self._rng.random() < 0.003:
            self._save_old()

    def _nodes(self) -> list[int]:
        return sorted(self.world.machines)

    def _request(self, kind: RequestKind, node: int) -> None:
        """At a node that leads: two nodes may think that they do."""
        leaders = [member for member in self.world.members.values() if member.leads]
        if leaders and self._rng.choice(leaders).request(kind, node):
            self.world.happened[f"{kind} begun"] += 1

    def _add(self) -> None:
        world = self.world
        blank = [each for each in world.machines if each > world.first]
        if not blank and world.add_machine() is None:
            return
        self._request("add", max(world.machines) if not blank else blank[-1])

    def _remove(self) -> None:
        if len(self.world.machines) > NODES_MIN:
            self._request("remove", self._rng.choice(self._nodes()))

    def _replace(self) -> None:
        """By an operator: the old disk is given up although it works."""
        node = self._rng.choice(self._nodes())
        if self.world.can_spare(node):
            self._request("replace", node)

    def _wipe(self) -> None:
        node = self._rng.choice(self._nodes())
        if node in self.world.members and self.world.can_spare(node):
            self.world.wipe(node)
            self.world.happened["wiped"] += 1

    def _damage(self) -> None:
        """Other bytes in the middle of a log, found at the next start."""
        world, node = self.world, self._rng.choice(self._nodes())
        if node not in world.members or not world.can_spare(node):
            return
        folder = f"{directory_of(node)}/log"
        block = int(world.members[node].log.durable_block)
        world.spoil(node)
        files = world.machines[node].files
        names = [name for name in files.listdir(folder) if name.startswith("seg-")]
        if not names or block < 40:
            return
        files.overwrite(f"{folder}/{names[0]}", self._rng.randrange(0, 8192), self._rng.randbytes(600))
        world.happened["damaged"] += 1

    def _silence(self) -> None:
        """A node is not heard for long."""
        if not self.world.muted:
            node = self._rng.choice(self._nodes())
            self.world.muted[node] = self.world.ticks + self._rng.randint(20, 60), self._rng.random() < 0.5

    def _save_old(self) -> None:
        world, node = self.world, self._rng.choice(self._nodes())
        member = world.members.get(node)
        if member is None or node in world.saved:
            return
        machine = world.machines[node]
        states = {partition: state.captured() for partition, state in machine.captured.items()}
        world.saved[node] = machine.files.kill(), states, {p: s.captured() for p, s in states.items()}, member.book.start.number

    def _restore_old(self) -> None:
        """An old copy of a directory, of a life whose later start every peer has met, or whose life is over."""
        world = self.world
        for node in sorted(world.saved):
            files, states, captured, start = world.saved[node]
            if node not in world.machines or not world.can_spare(node):
                continue
            identity = load_instance(files, directory_of(node)).identity
            peer = Peer(node, identity.incarnation)  # type: ignore[arg-type]
            if not all(self._refuses(other, peer, start) for other in world.machines if other != node):
                continue
            world.spoil(node)
            world.machines[node] = Machine(files.kill(), states, captured, world.machines[node].life)
            world.forgetful[peer] += 1
            del world.saved[node]
            world.happened["old copy"] += 1
            return

    def _refuses(self, other: int, peer: Peer, start: int) -> bool:
        member = self.world.members.get(other)
        if member is None:
            return False
        record = member.book.records.get(peer.node)
        if record is None:
            return False
        later = record.start is not None and record.start.number > start
        return peer.incarnation in record.former or (record.incarnation == peer.incarnation and later)

    def _ask_twice(self) -> None:
        for kind in self._rng.sample(["add", "remove", "replace"], 2):
            {"add": self._add, "remove": self._remove, "replace": self._replace}[kind]()

    def _kill_source(self) -> None:
        if self.world.rejoins:
            self._kill()

    def _kill_copy(self) -> None:
        world = self.world
        if world.rejoins:
            node = self._rng.choice(sorted(world.rejoins))
            if self._rng.random() < 0.5:
                world.machines[node].files.crash_at(self._rng.randint(1, 40))
            else:
                world.crash(node, power=self._rng.random() < 0.5)

    def _move_leader(self) -> None:
        leader = self.world.leader()
        if leader is not None:
            self._isolate_leader()

    def _part_clocks(self) -> None:
        for node in self._nodes():
            self.world.clock_offsets[node] = self._rng.choice([0.0, 3600.0, -3600.0])
