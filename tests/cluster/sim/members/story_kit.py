"""A simulated cluster in peace, in which a test does one thing after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from tests.cluster.sim.members.changing_cluster import ChangingCluster
from tests.cluster.sim.members.changing_member import ChangingMember

STEPS_MAX = 40_000


def peaceful_cluster(seed: int = 1, *, nodes: int = 3) -> ChangingCluster:
    """One whose leader has stated all members."""
    world = ChangingCluster(seed, nodes=nodes)
    world.loss = 0.0
    run_until(world, lambda: len(stated(world)) == nodes)
    return world


def run_until(world: ChangingCluster, reached: Callable[[], bool], *, steps: int = STEPS_MAX) -> None:
    """Raises: AssertionError when it is not reached, or anybody failed."""
    for _ in range(steps):
        if reached():
            return
        world.step()
        world.check()
    raise AssertionError(f"it does not come to that: {world.describe()}")


def leader(world: ChangingCluster) -> ChangingMember:
    """Who takes calls; there has to be one."""
    found = world.leader()
    assert found is not None
    return found


def stated(world: ChangingCluster) -> dict[int, ClusterMember]:
    """As the leading node knows it; nothing while none leads."""
    found = world.leader()
    return {} if found is None else dict(found.roll.stated)


def is_member(world: ChangingCluster, node: int, *, life: bytes = b"") -> bool:
    """Whether the node votes everywhere, as far as the leader knows; not with that life of its disk."""
    of, found = stated(world).get(node), world.leader()
    return (
        of is not None and found is not None and of.stage is MemberStage.MEMBER and of.incarnation != life
        and node not in (found.roll.faults.failed if found.roll.faults is not None else ())
        and all(node in core.configuration.voters for core in found.groups.cores.values())
    )  # fmt: skip


def request(world: ChangingCluster, kind: str, node: int) -> None:
    """An operator asks until the request is taken."""
    run_until(world, lambda: leader_takes(world, kind, node))


def leader_takes(world: ChangingCluster, kind: str, node: int) -> bool:
    """Whether it begins now."""
    found = world.leader()
    return found is not None and found.request(kind, node)  # type: ignore[arg-type]


def failed_by_logs(world: ChangingCluster, nodes: Iterable[int]) -> list[set[int]]:
    """The failure set that the fault log of each of these nodes ends with."""
    return [set(world.members[node].fault_log.failed) for node in nodes]


def votes_everywhere(world: ChangingCluster, node: int) -> bool:
    """Whether every live node's groups have it as a voter."""
    return all(node in core.configuration.voters for member in world.members.values() for core in member.groups.cores.values())


def cluster_version(world: ChangingCluster) -> int:
    """The roll's."""
    return leader(world).roll.version
