"""What goes wrong while the members of a cluster change, one deed after the other, under the calls of clients.

One rule: a deed ends with three members that are level, whatever happened in between; so each can follow each.

A step of a change is seen as an operator sees it: by the state that the leading node gives the member, and by what lies in the
directory of the node that is filled. A step may be over before it is seen; then the change is interrupted a little later.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.cluster.members.member_cluster import MemberCluster
from tests.cluster.nemesis import ListClients
from tests.waiting import PATIENCE_S, eventually, wait_for

MEMBERS: Final = 3  # at the end of each deed


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one node that is under way, and how its end is known."""

    node: int
    is_over: Callable[[], bool]
    spare: bool  # calls are answered although one of the others is away meanwhile


class MemberNemesis:
    """See the module."""

    def __init__(self, cluster: MemberCluster, clients: ListClients, seed: int) -> None:
        self.cluster, self.clients, self.rng = cluster, clients, random.Random(seed)
        self._used = max(cluster.nodes)  # no number is used twice

    def do(self, name: str) -> None:
        """One deed, from its beginning to its end."""
        DEEDS[name](self)
        self.settle()

    def settle(self) -> None:
        """Three members, level, and calls are answered."""
        while len(self.cluster.nodes) > MEMBERS:
            self.cluster.leave(self.rng.choice(list(self.cluster.nodes)))
        self.clients.await_answers(3)
        wait_for(
            lambda: all(self.cluster.state_of(node) == "member" for node in self.cluster.nodes), PATIENCE_S, self.cluster.logs
        )

    # -- who -------------------------------------------------------------------------------------------------------------

    def follower(self) -> int:
        """Some node that does not lead."""
        leader = self.cluster.leader()
        return self.rng.choice([node for node in self.cluster.nodes if node != leader])

    def new_number(self) -> int:
        """Of a node that never was."""
        self._used += 1
        return self._used

    def source_for(self, node: int) -> int:
        """The node that copies to this one; 0: none says so."""
        for other in self.cluster.nodes:
            if other != node and any(copy["node"] == node for copy in self.cluster.members(of=[other]).get("copies", ())):
                return other
        return 0

    # -- changes that can be interrupted -----------------------------------------------------------------------------------

    def begin_join(self) -> Change:
        """A node more."""
        node = self.new_number()
        self.cluster.add(node)
        self.cluster.start(node)
        return Change(node, lambda: self.cluster.state_of(node) == "member", spare=True)

    def begin_replacement(self) -> Change:
        """A follower has lost its disk."""
        node = self.follower()
        life = self.cluster.life_of(node)
        self.cluster.kill(node)
        self.clients.await_answers(3)
        self.cluster.wipe(node)
        self.cluster.change("replace", node)
        self.cluster.start(node)
        return Change(node, partial(self._lives_anew, node, life), spare=False)

    def begin_healing(self) -> Change:
        """A follower's log is damaged, and nobody does anything about it."""
        node = self.follower()
        life = self.cluster.life_of(node)
        self.cluster.kill(node)
        self.clients.await_answers(3)
        self.cluster.damage(node)
        self.cluster.start(node)
        return Change(node, partial(self._lives_anew, node, life), spare=False)

    def begin_retirement(self) -> Change:
        """A node more, and then one less."""
        self.cluster.join(self.new_number())
        node = self.follower()
        self.cluster.change("retire", node)
        return Change(node, lambda: self.cluster.state_of(node) == "removed", spare=True)

    def _lives_anew(self, node: int, life: str) -> bool:
        return self.cluster.state_of(node) == "member" and self.cluster.life_of(node) not in {"", life}

    def finish(self, change: Change) -> None:
        """It comes to its end by itself."""
        wait_for(change.is_over, PATIENCE_S, self.cluster.logs)
        if self.cluster.state_of(change.node) == "removed":
            self.cluster.forget(change.node)

    # -- interruptions -----------------------------------------------------------------------------------------------------

    def interrupt(self, begin: Callable[[MemberNemesis], Change], step: str, victim: str) -> None:
        """SIGKILL to the victim as soon as the change is at the step, and a start.

        A disk that is replaced has no vote: of three members two are left, and both are needed.
        """
        change = begin(self)
        eventually(lambda: self._has_come(change, step), PATIENCE_S)
        struck = self._victim(change, victim)
        for node in struck:
            self.cluster.kill(node)
        if victim == "recipient" or (change.spare and victim != "everybody"):
            self.clients.await_answers(3)
        self.cluster.start(*struck)
        self.finish(change)

    def _victim(self, change: Change, victim: str) -> list[int]:
        if victim == "recipient":
            return [change.node]
        if victim == "everybody":
            return [node for node in self.cluster.nodes if self.cluster.is_running(node)]
        return [(victim == "source" and self.source_for(change.node)) or self.cluster.leader()]

    def _has_come(self, change: Change, step: str) -> bool:
        seen = DIRECTORY_STEPS.get(step)
        if seen is not None and seen(self.cluster.data(change.node)):
            return True
        return self.cluster.state_of(change.node) == step or change.is_over()

    def join_while_leader_is_deaf(self) -> None:
        """It leads no more, and a node that joins finds the next one."""
        leader = self.cluster.leader()
        node = self.new_number()
        self.cluster.add(node)
        with self.cluster.deaf(leader):
            self.cluster.start(node)
            self.cluster.leader([other for other in self.cluster.nodes if other != leader])
            self.clients.await_answers(5)
        self.cluster.wait_state(node, "member")

    # -- deeds of their own ------------------------------------------------------------------------------------------------

    def grow_and_shrink(self) -> None:
        """3 -> 5 -> 3 members."""
        for _ in range(2):
            self.cluster.join(self.new_number())
            self.clients.await_answers(5)
        assert len(self.cluster.nodes) == 5
        for _ in range(2):
            self.cluster.leave(self.rng.choice(list(self.cluster.nodes)))
            self.clients.await_answers(5)

    def replace_every_disk(self) -> None:
        """One after the other; the leader's, too."""
        for node in list(self.cluster.nodes):
            self.cluster.replace_disk(node)
            self.clients.await_answers(5)

    def retire_the_leader(self) -> None:
        """It gives its leadership away first."""
        self.cluster.join(self.new_number())
        self.cluster.leave(self.cluster.leader())

    def remove_a_dead_node(self) -> None:
        """It never learns of it."""
        self.cluster.join(self.new_number())
        node = self.follower()
        self.cluster.kill(node)
        self.clients.await_answers(3)
        self.cluster.leave(node, "remove")

    def wipe_a_follower(self) -> None:
        """Its number has another life: with an empty disk it does nothing until an operator says that this is meant."""
        node = self.follower()
        life = self.cluster.life_of(node)
        self.cluster.kill(node)
        self.cluster.wipe(node)
        self.cluster.start(node)
        self.clients.await_answers(10)
        assert self.cluster.life_of(node) == life, "an empty disk is no member by itself"
        self.cluster.change("replace", node)
        wait_for(partial(self._lives_anew, node, life), PATIENCE_S, self.cluster.logs)

    def bring_an_old_directory_back(self) -> None:
        """A copy of a directory from before the disk was replaced: it does not take part as what it was."""
        node = self.follower()
        former = self.cluster.life_of(node)
        self.cluster.kill(node)
        kept = self.cluster.keep_copy(node)
        self.cluster.start(node)
        self.cluster.replace_disk(node)
        life = self.cluster.life_of(node)
        assert life not in {"", former}
        self.cluster.kill(node)
        self.clients.await_answers(3)
        self.cluster.bring_back(node, kept)
        self.cluster.start(node)
        self.clients.await_answers(10)
        assert self.cluster.life_of(node) == life, "the former life is no member"
        if self.cluster.is_running(node):
            self.cluster.kill(node)
        self.cluster.replace_disk(node)
        assert former in self.cluster.member(node)["former"]

    def come_back_after_two_changes(self) -> None:
        """What it knows of the members is old, and those that it knows are still enough to be heard by."""
        node = self.follower()
        self.cluster.kill(node)
        away = [self.new_number(), self.new_number()]
        for number in away:
            self.cluster.join(number)
            self.clients.await_answers(3)
        self.cluster.start(node)
        wait_for(self.cluster.is_level_by_itself, PATIENCE_S, self.cluster.logs)
        for number in away:
            self.cluster.leave(number)

    def ask_from_two_desks(self) -> None:
        """Two administrators at once, from one version: one is taken, the other one is refused and has changed nothing."""
        version = self.cluster.members(of=[self.cluster.leader()])["version"]
        first, second = self.new_number(), self.new_number()
        answers: dict[int, tuple[int, dict[str, Any]]] = {}

        def ask(node: int, at: int) -> None:
            address = {"peer": self.cluster.peer_address(node), "client": self.cluster.urls[node]}
            answers[node] = self.cluster.ask("add", node, at=at, base=version, **address)

        leader = self.cluster.leader()
        desks = [threading.Thread(target=ask, args=(node, leader)) for node in (first, second)]
        for desk in desks:
            desk.start()
        for desk in desks:
            desk.join()
        codes = sorted(status for status, _ in answers.values())
        assert codes == [200, 409], answers
        refused = next(told for status, told in answers.values() if status == 409)
        assert refused["code"] == "stale_base", answers
        taken = next(node for node, (status, _) in answers.items() if status == 200)
        self.cluster.join(taken)


Step = Callable[[Path], object]
DIRECTORY_STEPS: Final[Mapping[str, Step]] = {
    "wanted": lambda data: (data / "cluster" / "rejoin.json").exists(),
    "fetching": lambda data: any((data / "copying").glob("*")),
    "quarantined": lambda data: any((data / "quarantine").glob("*")),
}
CHANGES: Final[Mapping[str, Callable[[MemberNemesis], Change]]] = {
    "join": MemberNemesis.begin_join,
    "replacement": MemberNemesis.begin_replacement,
    "healing": MemberNemesis.begin_healing,
    "retirement": MemberNemesis.begin_retirement,
}
INTERRUPTED: Final = (
    *(("join", step, "leader") for step in ("expected", "joining", "admitted", "fetching")),
    *(("join", step, "recipient") for step in ("wanted", "joining", "fetching", "admitted")),
    ("join", "fetching", "source"),
    ("join", "admitted", "everybody"),
    *(("replacement", step, "leader") for step in ("leaving_old", "expected", "joining", "admitted")),
    *(("replacement", step, "recipient") for step in ("wanted", "fetching")),
    ("replacement", "fetching", "source"),
    ("replacement", "joining", "everybody"),
    *(("healing", step, "leader") for step in ("leaving_old", "admitted")),
    *(("healing", step, "recipient") for step in ("wanted", "fetching", "quarantined")),
    ("healing", "fetching", "source"),
    *(("retirement", "leaving", victim) for victim in ("leader", "recipient", "everybody")),
)
DEEDS: Final[Mapping[str, Callable[[MemberNemesis], None]]] = {
    **{
        f"{victim} killed at {step} of a {change}": partial(
            MemberNemesis.interrupt, begin=CHANGES[change], step=step, victim=victim
        )
        for change, step, victim in INTERRUPTED
    },
    "a node joins while the leader is deaf": MemberNemesis.join_while_leader_is_deaf,
    "3 to 5 to 3 members": MemberNemesis.grow_and_shrink,
    "every disk is replaced": MemberNemesis.replace_every_disk,
    "the leader retires": MemberNemesis.retire_the_leader,
    "a dead node is removed": MemberNemesis.remove_a_dead_node,
    "a follower is wiped": MemberNemesis.wipe_a_follower,
    "an old directory comes back": MemberNemesis.bring_an_old_directory_back,
    "back after two changes": MemberNemesis.come_back_after_two_changes,
    "two administrators at once": MemberNemesis.ask_from_two_desks,
}
