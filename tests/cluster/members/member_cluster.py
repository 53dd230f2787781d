"""A cluster of real processes whose members change: nodes join, leave, lose their disks, and come back.

One rule: it is changed as an operator changes it, by the routes of any node and by what happens to processes and directories;
what it says is read from its status.

Every node listens behind a door, a proxy that all others pass: members that are stated in the log have one address for everybody.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx

from cmdlog.cli.demo.cluster.cluster_nodes import free_ports
from cmdlog.cli.demo.cluster.log_damage import flip_byte
from cmdlog.wal.directory.local_token import find_local_token
from tests.cluster.lists_app import list_names
from tests.cluster.proxy import HOLD, PASS, Proxy
from tests.cluster.served import ServedCluster
from tests.node.rig import rows
from tests.waiting import PATIENCE_S, ask_for

APP: Final = "tests.cluster.lists_app:db"
PARTITIONS: Final = 2
LISTS: Final = tuple(list_names(PARTITIONS))
NODES_MAX: Final = 16  # that ever were
NOT_PROVED: Final = 17

Lists = dict[str, list[int]]


class MemberCluster(ServedCluster):
    """Nodes 1 to `count` at first; up to NODES_MAX can join."""

    def __init__(self, folder: Path, *, count: int = 3, copy_rate: int = 0) -> None:
        """`copy_rate`: bytes per second of a copy's source, so that there is something to interrupt; 0: as fast as it is."""
        super().__init__(folder, count=count, partitions=PARTITIONS, app=APP)
        self._copy_rate = copy_rate
        self._file: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
        peers = {member["node"]: int(member["peer"].rsplit(":", 1)[1]) for member in self._file["members"]}
        spare = range(count + 1, NODES_MAX + 1)
        ports = free_ports(2 * len(spare))
        self.urls |= {node: f"http://127.0.0.1:{port}" for node, port in zip(spare, ports[: len(spare)], strict=True)}
        self._peers = peers | dict(zip(spare, ports[len(spare) :], strict=True))
        self.doors = {node: Proxy(("127.0.0.1", port)) for node, port in self._peers.items()}
        for node in self._peers:
            self._write_file(node, sorted({*self.nodes, node}))

    def _write_file(self, node: int, members: Sequence[int]) -> None:
        stated = [{"node": n, "peer": self.peer_address(n), "client": self.urls[n]} for n in members]
        (self.folder / f"cluster{node}.json").write_text(json.dumps({**self._file, "members": stated}))

    def peer_address(self, node: int) -> str:
        """Where the others reach it."""
        host, port = self.doors[node].address
        return f"{host}:{port}"

    def join_options(self, node: int) -> list[str]:
        rate = ["--copy-rate-bytes-per-s", str(self._copy_rate)] if self._copy_rate else []
        return ["--join", f"cluster{node}.json", "--peer-host", "127.0.0.1", "--peer-port", str(self._peers[node]), *rate]

    def logs(self) -> str:
        found = sorted(self.folder.glob("log*"))
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in found)

    def close(self) -> None:
        super().close()
        for door in self.doors.values():
            door.stop()

    # -- disks -----------------------------------------------------------------------------------------------------------

    def data(self, node: int) -> Path:
        """Its directory."""
        return self.folder / f"n{node}"

    def wipe(self, node: int) -> None:
        """Its disk is gone; the node has ended."""
        shutil.rmtree(self.data(node))

    def keep_copy(self, node: int) -> Path:
        """A copy of its directory as it is now; the node has ended."""
        kept = self.folder / f"kept{node}"
        shutil.copytree(self.data(node), kept)
        return kept

    def bring_back(self, node: int, kept: Path) -> None:
        """Its directory is the kept one again."""
        self.wipe(node)
        shutil.copytree(kept, self.data(node))

    def damage(self, node: int) -> Path:
        """A bit of its log is another one; the node has ended."""
        return flip_byte(self.data(node))

    @contextmanager
    def deaf(self, node: int) -> Iterator[None]:
        """Nothing of the others reaches the node."""
        self.doors[node].set_rules(there=HOLD)
        try:
            yield
        finally:
            self.doors[node].set_rules(there=PASS)
            self.doors[node].close_connections()

    # -- members ---------------------------------------------------------------------------------------------------------

    def members(self, *, of: Sequence[int] = ()) -> dict[str, Any]:
        """What the first node that answers says of the members; {} when none does."""
        for node in of or self.nodes:
            try:
                answer = httpx.get(f"{self.urls[node]}/v1/cluster/members", timeout=5)
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        return {}

    def member(self, node: int) -> dict[str, Any]:
        """What the leading node says of it; {} when it is none of the cluster's, or nobody leads."""
        for at in self.nodes:
            told = self.members(of=[at])
            if told and told["leader"] == at:
                return next((one for one in told["members"] if one["node"] == node), {})
        return {}

    def state_of(self, node: int) -> str:
        """Its state; "" when the cluster has none such, or nobody leads."""
        return str(self.member(node).get("state", ""))

    def life_of(self, node: int) -> str:
        """The incarnation of its disk that the cluster knows; "" when it waits for one."""
        return str(ask_for(lambda: self.member(node), PATIENCE_S, self.logs)["incarnation"])

    def ask(self, kind: str, node: int, *, at: int, **body: Any) -> tuple[int, dict[str, Any]]:
        """One request at one node; (0, {}) when it does not answer."""
        try:
            headers = {"Authorization": f"Bearer {find_local_token(self.urls[at])}"}
            answer = httpx.post(f"{self.urls[at]}/v1/cluster/members/{node}/{kind}", json=body, headers=headers, timeout=30)
        except httpx.HTTPError:
            return 0, {}
        return answer.status_code, answer.json()

    def change(self, kind: str, node: int, **body: Any) -> dict[str, Any]:
        """A request, made again at the next node while it is not taken for want of a leader or of an answer."""

        def attempt() -> dict[str, Any]:
            for at in self.nodes:
                status, told = self.ask(kind, node, at=at, **body)
                if status == 200:
                    return told
                assert status in (0, 409, 503, 504), told
                assert status != 409 or told["code"] in TRANSIENT, told
            return {}

        return ask_for(attempt, PATIENCE_S, self.logs)

    def add(self, node: int) -> None:
        """The node is expected from now on."""
        self.change("add", node, peer=self.peer_address(node), client=self.urls[node])
        if node not in self.nodes:
            self.nodes = sorted({*self.nodes, node})

    def wait_state(self, node: int, *states: str) -> str:
        """Until the leading node says one of these states of it."""
        return ask_for(lambda: (found := self.state_of(node)) in states and found, PATIENCE_S, self.logs) or ""

    def join(self, node: int) -> None:
        """Added, started, and a voter of every group."""
        self.add(node)
        self.start(node)
        self.wait_state(node, "member")

    def leave(self, node: int, kind: str = "retire") -> None:
        """Out of every group, and ended."""
        self.change(kind, node)
        self.wait_state(node, "removed")
        self.forget(node)

    def forget(self, node: int) -> None:
        """It is no member any more: its process ends, and nobody asks it."""
        self.nodes = [other for other in self.nodes if other != node]
        if self.is_running(node):
            self.kill(node)

    def replace_disk(self, node: int) -> None:
        """It gets an empty disk, and is a voter again."""
        if self.is_running(node):
            self.kill(node)
        self.wipe(node)
        self.change("replace", node)
        self.start(node)
        self.wait_state(node, "member")

    # -- judgement -------------------------------------------------------------------------------------------------------

    def is_level(self) -> bool:
        """Every member has committed and run the same, and knows that each of them is well: one that does not may not count."""
        found = self.positions()
        first = next(iter(found.values()), ())
        same = len(found) == len(self.nodes) and set(found.values()) == {first} and all(done == run for done, run in first)
        return same and all(self.knows_all_well(node) for node in self.nodes)

    def knows_all_well(self, node: int) -> bool:
        """By the node's own fault log, which is the last to have a new failure set."""
        known = self.status(node).get("failure_set")
        return known is not None and set(known["nodes"]).isdisjoint(self.nodes)

    def is_level_by_itself(self) -> bool:
        """Every member has run what the one that is farthest had committed when it was asked."""
        before = max(self.positions().values(), default=())
        found = self.positions()
        return len(found) == len(self.nodes) and all(
            run >= done for parts in found.values() for (_, run), (done, _) in zip(parts, before, strict=True)
        )

    def recovered_lists(self, name: str, nodes: Sequence[int]) -> Lists | None:
        """What `cmdlog recover` makes of the directories; None when it says that they prove nothing."""
        done = subprocess.run(
            self.command("recover", *(f"n{node}" for node in nodes), "--to", name),
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode in (0, NOT_PROVED), (nodes, done.returncode, done.stderr, done.stdout)
        if done.returncode:
            return None
        found: Lists = {list_name: [] for list_name in LISTS}
        for partition in range(PARTITIONS):
            for list_name, value in rows(self.folder / name, partition, "SELECT name, value FROM items ORDER BY name, place"):
                found[list_name].append(value)
        return found

    def judge_directories(self, state: Lists, choose: Callable[[list[tuple[int, ...]]], list[tuple[int, ...]]]) -> None:
        """Recovers from sets of the ended members' directories. A majority proves the state, and no set another one."""
        members = sorted(self.nodes)
        sets = [chosen for size in range(1, len(members) + 1) for chosen in combinations(members, size)]
        for chosen in choose(sets):
            found = self.recovered_lists("OUT-" + "".join(map(str, chosen)), chosen)
            if found is None:
                assert 2 * len(chosen) <= len(members), f"{chosen} of {members} prove nothing"
            else:
                assert found == state, (chosen, found, state)


TRANSIENT: Final = ("operation_under_way", "not_heard", "quorum_at_risk", "last_copy", "no_successor")
"""Refusals that pass by themselves: a node is being started, or another change comes to its end."""
