"""A cluster of real processes with a proxy on every way between them, clients that append to lists, and what goes wrong.

One rule: a client writes down what it knows, and nothing else: 200 is done, 503 is "nothing was logged", and everything that is
neither an answer nor a refusal is unknown until an answer comes under the same key.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.histories.list_history import ListHistory, Operation
from tests.cluster.lists_app import list_names
from tests.cluster.proxy import HOLD, PASS, SWALLOW, TWICE, Proxy, Rule
from tests.cluster.served import ServedCluster
from tests.node.rig import rows
from tests.waiting import PATIENCE_S, eventually, wait_for

APP: Final = "tests.cluster.lists_app:db"
PARTITIONS: Final = 2
LISTS: Final = tuple(list_names(PARTITIONS))
ANSWER_S: Final = 1.5  # of patience with one node
BRIEF_FREEZES: Final = 5
BRIEF_S: Final = (0.8, 2.5)  # about an election

Lists = dict[str, list[int]]


class NemesisCluster(ServedCluster):
    """Three nodes; what node `a` sends to node `b` goes through `ways[a, b]`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, partitions=PARTITIONS, app=APP)
        value = json.loads((folder / "cluster.json").read_text())
        self._peers = {member["node"]: member["peer"] for member in value["members"]}
        self.ways: dict[tuple[int, int], Proxy] = {}
        for node in self.nodes:
            for other in self.nodes:
                if node != other:
                    host, port = self._peers[other].rsplit(":", 1)
                    self.ways[node, other] = Proxy((host, int(port)))
            members = [{**member, "peer": self._address(node, member["node"])} for member in value["members"]]
            (folder / f"cluster{node}.json").write_text(json.dumps({**value, "members": members}))

    def _address(self, node: int, other: int) -> str:
        if node == other:
            return str(self._peers[node])
        host, port = self.ways[node, other].address
        return f"{host}:{port}"

    def join_options(self, node: int) -> list[str]:
        host, port = self._peers[node].rsplit(":", 1)
        return ["--join", f"cluster{node}.json", "--peer-host", host, "--peer-port", port]

    def close(self) -> None:
        super().close()
        for way in self.ways.values():
            way.stop()

    def is_level(self) -> bool:
        """Every node has committed and run the same."""
        found = self.positions()
        return len(found) == len(self.nodes) and len(set(found.values())) == 1 and all(a == b for a, b in found[1])

    def recovered_lists(self, name: str) -> Lists:
        """What `cmdlog recover` makes of all directories; the nodes have ended."""
        self.run("recover", *(f"n{node}" for node in self.nodes), "--to", name)
        found: Lists = {list_name: [] for list_name in LISTS}
        for partition in range(PARTITIONS):
            for list_name, value in rows(self.folder / name, partition, "SELECT name, value FROM items ORDER BY name, place"):
                found[list_name].append(value)
        return found


class ListClients:
    """Threads that append and read, and the history of what they were told."""

    def __init__(self, cluster: ServedCluster, *, count: int = 3) -> None:
        self.cluster, self.count = cluster, count
        self.history = ListHistory()
        self.answered = 0
        self.given_up: list[str] = []  # operations that had no outcome in all their attempts
        self.failures: list[BaseException] = []
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._values = iter(range(1, 1 << 30))

    @contextmanager
    def under_way(self, seed: int) -> Iterator[None]:
        """They work until the end of the block; then their last operations come to an end."""
        threads = [threading.Thread(target=self._work, args=(number, seed)) for number in range(1, self.count + 1)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self.failures:
            raise self.failures[0]

    def await_answers(self, count: int) -> None:
        """So many more operations are done."""
        before = self.answered
        wait_for(lambda: self.answered >= before + count or self.failures, PATIENCE_S, self.cluster.logs)

    def open_lists(self) -> None:
        """Every list exists."""
        for name in LISTS:
            answer = self.cluster.call("open_list", {"name": name}, f"open-{name}")
            assert answer["status"] == 200, answer

    def read_all(self, name: str) -> Lists:
        """A final read of every list by itself and of all at once."""
        rng, seen = random.Random(0), Lists()
        for list_name in LISTS:
            seen |= self._operate(f"{name} {list_name}", "values", {"name": list_name}, rng, keys=(list_name,)) or {}
        together = self._operate(f"{name} all", "values_of_all", {}, rng, keys=LISTS)
        assert together == seen
        return seen

    def _work(self, client: int, seed: int) -> None:
        rng, number = random.Random(seed * 100 + client), 0
        try:
            while not self._over.wait(0.02):
                number += 1
                self._operate_any(f"c{client}.{number}", rng)
        except BaseException as error:  # noqa: BLE001 -- it is raised where the block ends
            self.failures.append(error)

    def _operate_any(self, name: str, rng: random.Random) -> None:
        choice, one = rng.random(), rng.choice(LISTS)
        with self._guard:
            value = next(self._values)
        if choice < 0.5:
            self._operate(name, "append", {"name": one, "value": value}, rng, keys=(one,))
        elif choice < 0.7:
            self._operate(name, "append_all", {"value": value}, rng, keys=LISTS)
        elif choice < 0.9:
            self._operate(name, "values", {"name": one}, rng, keys=(one,))
        else:
            self._operate(name, "values_of_all", {}, rng, keys=LISTS)

    def _operate(
        self, name: str, procedure: str, params: dict[str, Any], rng: random.Random, *, keys: tuple[str, ...]
    ) -> Lists | None:
        """One operation with all its attempts; what a read saw."""
        value = params.get("value")
        with self._guard:
            operation = self.history.read(name, *keys) if value is None else self.history.append(name, value, *keys)
        harmless, found = True, None

        def attempt() -> bool:
            nonlocal harmless, found
            found, refused = self._attempt(procedure, params, name, rng)
            harmless = harmless and refused
            return found is not None

        if eventually(attempt, PATIENCE_S):  # not so many attempts: where nobody listens they are over while nodes still start
            return self._note(operation, found)
        with self._guard:
            self.given_up.append(name)
            if harmless or value is None:
                self.history.refused(operation)
        return None

    def _note(self, operation: Operation, result: Any) -> Lists:
        parts = result if len(operation.keys) > 1 else [result]
        found: dict[str, Any] = {}
        for part in parts:
            found |= part if isinstance(part, dict) else {operation.keys[0]: part}
        with self._guard:
            self.answered += 1
            if operation.value is None:
                self.history.done(operation, found)
            else:
                self.history.done(operation, lengths=found)
        return found if operation.value is None else {}

    def _attempt(self, procedure: str, params: dict[str, Any], key: str, rng: random.Random) -> tuple[Any, bool]:
        """The result, or None; and whether it is sure that nothing was logged."""
        node = rng.choice(list(self.cluster.nodes))
        try:
            answer = httpx.post(
                f"{self.cluster.urls[node]}/v1/procedures/{procedure}", json=params, timeout=ANSWER_S,
                headers={"Idempotency-Key": key} if procedure.startswith("append") else {},
            )  # fmt: skip
        except httpx.ConnectError:
            self._over.wait(0.05)
            return None, True
        except httpx.HTTPError:
            return None, False
        if answer.status_code == 200:
            return answer.json()["result"], True
        assert answer.status_code in (503, 504), answer.text
        self._over.wait(0.05)
        return None, answer.status_code == 503


class Nemesis:
    """What goes wrong, one thing after the other, and is well again: at most one node is away at a time, or all."""

    def __init__(self, cluster: NemesisCluster, clients: ListClients, seed: int) -> None:
        self.cluster, self.clients, self.rng = cluster, clients, random.Random(seed)

    def do(self, name: str) -> None:
        """One deed, from its beginning to its end."""
        self.DEEDS[name](self)
        self.clients.await_answers(3)

    def _others(self, node: int) -> list[int]:
        return [other for other in self.cluster.nodes if other != node]

    def _kill_leader(self) -> None:
        node = self.cluster.leader()
        self.cluster.kill(node)
        self.clients.await_answers(5)
        self.cluster.start(node)

    def _stop_leader(self) -> None:
        node = self.cluster.leader()
        self.cluster.kill(node, signal.SIGTERM)
        self.clients.await_answers(5)
        self.cluster.start(node)

    def _freeze_leader(self) -> None:
        node = self.cluster.leader()
        self.cluster.pause(node)
        try:
            self.cluster.leader(self._others(node))
            self.clients.await_answers(5)
        finally:
            self.cluster.pause(node, over=True)

    def _freeze_leader_briefly(self) -> None:
        """Several times for about as long as an election takes: it may lose some groups, and lead on the others."""
        for _ in range(BRIEF_FREEZES):
            node = self.cluster.leader()
            self.cluster.pause(node)
            threading.Event().wait(self.rng.uniform(*BRIEF_S))
            self.cluster.pause(node, over=True)
            self.clients.await_answers(4)

    def _freeze_follower(self) -> None:
        node = self.rng.choice(self._others(self.cluster.leader()))
        self.cluster.pause(node)
        self.clients.await_answers(5)
        self.cluster.pause(node, over=True)

    def _set(self, ways: list[tuple[int, int]], rule: Rule) -> None:
        for way in ways:
            self.cluster.ways[way].set_rules(there=rule, back=rule)

    def _during(self, ways: list[tuple[int, int]], rule: Rule, answers: int = 6) -> None:
        """The rule holds until so many calls were answered; connections are new then."""
        self._set(ways, rule)
        try:
            self.clients.await_answers(answers)
        finally:
            self._set(ways, PASS)
            for way in ways:
                self.cluster.ways[way].close_connections()

    def _cut_from_leader(self) -> None:
        node = self.cluster.leader()
        self._during([(node, other) for other in self._others(node)], self.rng.choice([HOLD, SWALLOW]))

    def _cut_to_leader(self) -> None:
        node = self.cluster.leader()
        self._during([(other, node) for other in self._others(node)], self.rng.choice([HOLD, SWALLOW]))

    def _isolate_leader(self) -> None:
        node = self.cluster.leader()
        self._during([way for way in self.cluster.ways if node in way], HOLD)

    def _hold_everything(self) -> None:
        """No byte passes, and every connection looks alive; longer than an election takes."""
        leader = self.cluster.leader()
        ways = list(self.cluster.ways)
        self._set(ways, HOLD)
        eventually(lambda: self.cluster.status(leader).get("cluster", {}).get("standing") == "following", 30)
        self._set(ways, PASS)

    def _lose_bytes(self) -> None:
        """In the middle of a stream: what follows is refused, and the connection made anew."""
        ways = list(self.cluster.ways)
        self._set(ways, SWALLOW)
        self._set(ways, PASS)

    def _repeat_bytes(self) -> None:
        self._during([self.rng.choice(list(self.cluster.ways))], TWICE)

    def _slow_down(self) -> None:
        self._during(list(self.cluster.ways), Rule(delay_s=self.rng.choice([0.01, 0.05])))

    def _fill_leader(self) -> None:
        """Its log can write no more: another node leads, and this one is started again when there is room."""
        node = self.cluster.leader()
        self.cluster.limit_files(node, 4096)
        self.cluster.leader(self._others(node))
        self.clients.await_answers(5)
        self.cluster.kill(node)
        self.cluster.start(node)

    def _kill_all(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.kill(node)
        self.cluster.start()

    DEEDS: Final[dict[str, Callable[[Nemesis], None]]] = {
        "kill the leader": _kill_leader,
        "stop the leader in order": _stop_leader,
        "freeze the leader": _freeze_leader,
        "freeze the leader briefly": _freeze_leader_briefly,
        "freeze a follower": _freeze_follower,
        "leader is not heard": _cut_from_leader,
        "leader hears nobody": _cut_to_leader,
        "leader is alone": _isolate_leader,
        "half-open connections": _hold_everything,
        "lost bytes": _lose_bytes,
        "bytes twice": _repeat_bytes,
        "slow network": _slow_down,
        "full disk of the leader": _fill_leader,
        "kill all": _kill_all,
    }
