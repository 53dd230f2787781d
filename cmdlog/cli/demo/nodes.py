"""The nodes of a demo, one alone or several: real processes, which are killed, stopped and continued, and what they report.

One rule: whatever happens, `close` ends every process, also one that is stopped. A node and its sites are one machine: what
happens to it happens to all of them. Its disk is its directory.

State files are a cache of the log, and may be lost. Members are changed by the commands that an operator has.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.server import BANK, LaunchedServer, run_command
from cmdlog.wal.ids import CLUSTER_GROUP

LOOPBACK: Final = "127.0.0.1"
STATE_FOLDER: Final = "state"  # of a node's directory; see `replay.state.trust`, which takes a second to import
PATIENCE_S: Final = 120.0
POLL_S: Final = 0.05
STATUS_TIMEOUT_S: Final = 2.0
PORTS: Final = range(15_000, 32_000)  # below those that Linux gives to connections, which might take a dead node's

Found = TypeVar("Found")


class LeadingNode(NamedTuple):
    """The one of the newest term is the last."""

    term: int
    node: int


Positions = Mapping[str, tuple[int, int]]  # partition -> entries committed and run


class DemoNodes:
    """Node 1 alone, or nodes 1 to `count` of a cluster and one that may join, below `folder`, which is to be empty."""

    def __init__(self, folder: Path, *, partitions: int, count: int) -> None:
        """Of several nodes, makes cluster file and secret with `cmdlog cluster init`. Raises: CommandFailed."""
        self._folder, self._partitions = folder, partitions
        self._alone = count == 1
        self.nodes: Sequence[int] = range(1, count + 1)  # members
        self.joining = count + 1
        numbers = range(1, count + 2)
        ports = free_ports(2 * len(numbers))
        self._ports = dict(zip(numbers, ports[: len(numbers)], strict=True))
        self._peer_ports = dict(zip(numbers, ports[len(numbers) :], strict=True))
        self.urls = {node: f"http://{LOOPBACK}:{self._ports[node]}" for node in (self.nodes if self._alone else numbers)}
        self._cluster_files = dict.fromkeys(self.nodes, "cluster.json")
        self._servers: dict[int, LaunchedServer] = {}
        self._sites: dict[int, list[int]] = {}  # node -> process ids, of nodes that are stopped
        if not self._alone:
            members = [f"--member={node}={self._peer(node)},{self.urls[node]}" for node in self.nodes]
            files = ("--to", "cluster.json", "--cluster-secret-file", "cluster.secret")
            run_command("cluster", "init", BANK, *members, "--partitions", str(partitions), *files, log=folder / "init.log")

    def data(self, node: int) -> Path:
        """The node's directory."""
        return self._folder / f"n{node}"

    def _peer(self, node: int) -> str:
        """Where the others reach it."""
        return f"{LOOPBACK}:{self._peer_ports[node]}"

    # -- processes -------------------------------------------------------------------------------------------------------

    def start(self, *nodes: int) -> None:
        """Starts these nodes at once, and returns when they answer. Raises: CommandFailed."""
        for node in nodes:
            self._servers[node] = LaunchedServer(
                self.data(node),
                *("--port", str(self._ports[node])),
                *(("--partitions", str(self._partitions)) if self._alone else self._member_options(node)),
                log=self._folder / f"n{node}.log",
            )
        for node in nodes:
            self._servers[node].wait_ready()

    def wipe(self, *nodes: int) -> None:
        """SIGKILL to these nodes, and their disks are gone."""
        self.kill(*nodes)
        for node in nodes:
            shutil.rmtree(self.data(node))

    def _member_options(self, node: int) -> Sequence[str]:
        return (
            *("--join", str(self._folder / self._cluster_files[node]), "--node", str(node)),
            *("--cluster-secret-file", str(self._folder / "cluster.secret")),
            *("--peer-host", LOOPBACK, "--peer-port", str(self._peer_ports[node])),
        )

    def restart_all(self) -> str:
        """SIGKILL to all nodes at once, then a start of all. What happened."""
        ended = self.kill(*self.nodes)
        self.start(*self.nodes)
        return f"{ended} processes ended"

    def recover_alone(self) -> str:
        """SIGKILL to the only node, whose state files are lost as well; `cmdlog recover`, and a start. What happened."""
        ended, directory = self.kill(1), self.data(1)
        shutil.rmtree(directory / STATE_FOLDER)
        result, seconds = run_command("recover", str(directory), log=self._folder / "recover.log")
        self.start(1)
        return f"{ended} processes ended; cmdlog recover replayed {result['replayed']:,} calls in {seconds:.2f} s"

    def kill(self, *nodes: int) -> int:
        """SIGKILL to these nodes and their sites at once; how many processes ended."""
        sites = {node: self._site_pids(node) for node in nodes}
        servers = {node: self._servers.pop(node) for node in nodes}
        for server in servers.values():
            server.signal(signal.SIGKILL)
        return sum(server.kill(sites[node]) for node, server in servers.items())

    def pause(self, node: int) -> int:
        """SIGSTOP to the node and its sites: to the others it is a machine that hangs. How many processes that are."""
        self._sites[node] = self._site_pids(node)
        return self._signal_all(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """SIGCONT to all that `pause` has stopped."""
        self._signal_all(node, signal.SIGCONT)
        del self._sites[node]

    def stop(self) -> None:
        """An orderly end of all nodes. Raises: CommandFailed."""
        for node in list(self._servers):
            self._servers.pop(node).stop()

    def close(self) -> None:
        """Ends every process; idempotent."""
        with ExitStack() as stack:
            for server in self._servers.values():
                stack.callback(server.kill, [])
            self._servers = {}

    def check_alive(self) -> None:
        """Raises: CommandFailed when a node has exited by itself."""
        for node, server in self._servers.items():
            if not server.alive:
                raise CommandFailed(f"node {node} exited by itself", hint=server.last_words())

    def _site_pids(self, node: int) -> list[int]:
        """Of a node that was asked before it stops to answer."""
        return list(self._sites.get(node) or self.status(node).get("sites", ()))

    def _signal_all(self, node: int, number: signal.Signals) -> int:
        self._servers[node].signal(number)
        for pid in self._sites[node]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return 1 + len(self._sites[node])

    # -- members, as an operator changes them ------------------------------------------------------------------------------

    def replace(self, *nodes: int) -> None:
        """Each of these, one after the other, gets an empty disk, and votes again. Raises: CommandFailed."""
        for node in nodes:
            self._command("replace", str(node))
            self.start_voting(node)

    def add(self, node: int) -> None:
        """The node is expected from now on, and has its cluster file. Raises: CommandFailed."""
        address = ("--peer", self._peer(node), "--client", self.urls[node])
        self._command("join", str(node), "--cluster", "cluster.json", *address, "--to", f"cluster-{node}.json")
        self._cluster_files[node] = f"cluster-{node}.json"
        self.nodes = sorted({*self.nodes, node})

    def start_voting(self, node: int) -> None:
        """Starts it, and returns when it votes. Raises: CommandFailed."""
        self.start(node)
        self._wait(lambda: self._votes(node) or None, f"node {node} does not vote")

    def _votes(self, node: int) -> bool:
        """Whether the leader reports that, and that no node has failed."""
        for asked in self.nodes:
            shown = self._read(asked, "/v1/cluster/members")
            if shown.get("leader") == asked:
                states = {member["node"]: member["state"] for member in shown["members"]}
                return states.get(node) == "member" and not shown["failure_set"]["nodes"]
        return False

    def retire(self, node: int) -> None:
        """It leaves every group, and its process ends. Raises: CommandFailed."""
        self._command("retire", str(node), "--wait")
        self.nodes = [other for other in self.nodes if other != node]
        self.kill(node)

    def _command(self, name: str, *arguments: str) -> None:
        urls = ",".join(self.urls[node] for node in self._servers)
        run_command("cluster", name, *arguments, "--url", urls, log=self._folder / "cluster.log")

    # -- what nodes report -----------------------------------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any]:
        """`/v1/status` of a node; {} when it does not answer, or is stopped."""
        return self._read(node, "/v1/status")

    def _read(self, node: int, path: str) -> dict[str, Any]:
        if node not in self._servers or node in self._sites:
            return {}
        connection = HTTPConnection(LOOPBACK, self._ports[node], timeout=STATUS_TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", path)
            answer = connection.getresponse()
            found: dict[str, Any] = orjson.loads(answer.read()) if answer.status == 200 else {}
            return found
        return {}

    def wait_leader(self) -> LeadingNode:
        """The node that takes calls. Raises: CommandFailed when there is none for long."""

        def leading() -> LeadingNode | None:
            found = [shown["cluster"] for node in self.nodes if "cluster" in (shown := self.status(node))]
            leaders = [LeadingNode(_term(shown), shown["node"]) for shown in found if shown["standing"] == "leading"]
            return max(leaders, default=None)  # one that cannot hear the others may still take itself for their leader

        return LeadingNode(0, 1) if self._alone else self._wait(leading, "no node leads the cluster")

    def wait_level(self) -> Positions:
        """Until all nodes have committed and run the same. Raises: CommandFailed when they do not for long."""

        def level() -> Positions | None:
            found = [_positions(self.status(node)) for node in self.nodes]
            first = found[0]
            same = all(positions == first for positions in found) and all(done == run for done, run in first.values())
            return first if first and same else None

        return {} if self._alone else self._wait(level, "the nodes do not agree on what is committed and run")

    def _wait(self, look: Callable[[], Found | None], failure: str) -> Found:
        deadline = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            self.check_alive()
            if time.monotonic() > deadline:
                raise CommandFailed(f"{failure} after {PATIENCE_S:g} s", hint="--data DIR keeps what the nodes have written")
            time.sleep(POLL_S)
        return found


def _positions(status: Mapping[str, Any]) -> Positions:
    return {partition: (of["committed"], of["applied"]) for partition, of in status.get("partitions", {}).items()}


def _term(cluster: Mapping[str, Any]) -> int:
    """That of the group whose leader takes calls."""
    return int(cluster["groups"][str(int(CLUSTER_GROUP))]["term"])


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nothing listens on at this moment. Raises: CommandFailed."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)):
            found.append(port)
        if len(found) == count:
            return found
    raise CommandFailed(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
