"""A cluster of `cmdlog serve` processes on loopback, for benchmarks: started, ended in order or by SIGKILL, started again.

Each node leads a session of its own, as every server that is compared must (see `bench._server.bank_server`), and has a log file
of its own beside its directory.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from bench._common import ROOT
from bench._nodes import TARGET
from bench._server import fetch, load_accounts

NODES: Final = (1, 2, 3)
PATIENCE_S: Final = 90.0
LOOK_S: Final = 0.02
END_S: Final = 60.0

T = TypeVar("T")


@contextmanager
def bank_cluster(folder: Path, *, partitions: int = 1, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """Three nodes with the bank sample, once all of them follow one leader. What still runs at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, partitions=partitions, options=options)
    try:
        for node in NODES:
            cluster.start(node)
        cluster.wait_until_level()
        yield cluster
    finally:
        cluster.close()


class Clusters:
    """Clusters of the bank with loaded accounts: one for each part, or one for all, where starts would be most of the run."""

    def __init__(self, stack: ExitStack, shared: Path | None) -> None:
        """`shared`: the folder of the one."""
        self._stack, self._shared = stack, shared
        self._made: Cluster | None = None

    @contextmanager
    def loaded(self, folder: Path) -> Iterator[Cluster]:
        """In the folder, if it is the part's own. What a part ends it starts again, so the next one finds all nodes there."""
        with ExitStack() as own:
            cluster = self._made or self._start(folder, own)
            if self._shared is not None:
                self._made = cluster
            cluster.wait_until_level()
            yield cluster

    def _start(self, folder: Path, own: ExitStack) -> Cluster:
        if self._shared is None:
            cluster = own.enter_context(bank_cluster(folder))
        else:
            cluster = self._stack.enter_context(bank_cluster(self._shared))
        load_accounts(cluster.ports[cluster.wait_for_leader()])
        return cluster


class Cluster:
    """Three nodes. Ends what it started."""

    def __init__(self, folder: Path, *, partitions: int, options: Sequence[str] = ()) -> None:
        self._folder, self._options = folder, options
        ports = free_ports(2 * len(NODES))
        self.ports = dict(zip(NODES, ports, strict=False))  # where clients call
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._read_from: dict[int, int] = {}  # node -> place in its log
        peers = ports[len(NODES) :]
        members = [f"--member={n}=127.0.0.1:{peers[n - 1]},http://127.0.0.1:{self.ports[n]}" for n in NODES]
        made = ["--partitions", str(partitions), "--to", "cluster.json", "--cluster-secret-file", "secret"]
        subprocess.run(
            [sys.executable, "-m", "cmdlog.cli", "cluster", "init", TARGET, *members, *made],
            cwd=folder, env=_environment(), stdout=subprocess.DEVNULL, check=True, timeout=END_S,
        )  # fmt: skip

    def start(self, node: int) -> None:
        """Starts a node; returns at once."""
        command = ["serve", TARGET, "--data", f"n{node}", "--join", "cluster.json", "--node", str(node)]
        command += ["--cluster-secret-file", "secret", "--port", str(self.ports[node]), "--preallocate", "ahead"]
        with open(self._folder / f"log{node}", "ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "cmdlog.cli", *command, *self._options], cwd=self._folder, env=_environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def signal(self, node: int, number: int) -> None:
        """Sends a signal to a node's process; returns at once. `wait_for_end` follows one that ends it."""
        self._processes[node].send_signal(number)

    def wait_for_end(self, node: int) -> int:
        """The exit code of a node that was told to end."""
        return self._processes.pop(node).wait(END_S)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def wipe(self, node: int) -> None:
        """Its directory is gone; it has ended."""
        shutil.rmtree(self._folder / f"n{node}")

    def change(self, kind: str, node: int) -> None:
        """A change of a member, by `cmdlog cluster`."""
        urls = ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())
        subprocess.run(
            [sys.executable, "-m", "cmdlog.cli", "cluster", kind, str(node), "--url", urls],
            cwd=self._folder, env=_environment(), stdout=subprocess.DEVNULL, check=True, timeout=END_S,
        )  # fmt: skip

    # -- what the nodes say ----------------------------------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any]:
        """What a node says of itself; {} while it does not answer."""
        return self._ask(node, "/v1/status")

    def _ask(self, node: int, path: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = orjson.loads(fetch(self.ports[node], path))
        except (OSError, RuntimeError, http.client.HTTPException, orjson.JSONDecodeError):
            return {}
        return found

    def wait_for_leader(self) -> int:
        """The node that takes calls."""

        def look() -> int:
            return next((node for node in NODES if self.status(node).get("cluster", {}).get("standing") == "leading"), 0)

        return self.wait_for(look)

    def wait_until_level(self) -> int:
        """Until every node has committed and run the same; the node that leads."""
        leader = self.wait_for_leader()
        self.wait_for(self._level)
        return leader

    def terms(self) -> dict[str, int]:
        """By group, as the first node that answers has them: each election adds to one."""
        groups = self.wait_for(lambda: next((s["cluster"]["groups"] for n in NODES if (s := self.status(n))), None))
        return {group: int(seen["term"]) for group, seen in (groups or {}).items()}

    def frames(self) -> int:
        """What all nodes have sent to each other since they were started."""
        return sum(peer["out_frames"] for node in NODES for peer in self.status(node)["cluster"]["peers"])

    def pids(self, node: int) -> dict[str, int]:
        """A node's processes: `node`, and its sites by number."""
        sites = self.status(node)["sites"]
        return {"node": self._processes[node].pid, **{f"site {number}": pid for number, pid in enumerate(sites)}}

    def last_words(self) -> str:
        return "\n".join((self._folder / f"log{node}").read_text(errors="replace")[-2000:] for node in NODES)

    def committed(self, node: int) -> int:
        """Entries of all partitions that it knows to be committed; 0: it does not answer."""
        return sum(part["committed"] for part in self.status(node).get("partitions", {}).values())

    def applied(self, node: int) -> int:
        """Entries of all partitions that it has run."""
        return sum(part["applied"] for part in self.status(node).get("partitions", {}).values())

    def forget_events(self, node: int) -> None:
        """What it has logged so far is not looked at any more."""
        self._read_from[node] = (self._folder / f"log{node}").stat().st_size

    def last_event(self, node: int, name: str) -> dict[str, Any]:
        """The newest event of that name in its log; {} when there is none."""
        with open(self._folder / f"log{node}", "rb") as file:
            file.seek(self._read_from.get(node, 0))
            lines = [line for line in file.read().splitlines() if f'"event": "{name}"'.encode() in line]
        return dict(orjson.loads(lines[-1])) if lines else {}

    def state_of(self, node: int) -> str:
        """As the leading node has it."""
        return next((str(one["state"]) for one in self._members().get("members", ()) if one["node"] == node), "")

    def copies(self, to: int) -> dict[str, Any]:
        """The copy to a node, as its source has it; {} when there is none."""
        for node in NODES:
            if node != to:
                for copy in self._ask(node, "/v1/cluster/copies").get("copies", ()):
                    if copy["node"] == to:
                        return dict(copy)
        return {}

    def _members(self) -> dict[str, Any]:
        """What the leading node says of the members."""
        return next((told for node in NODES if (told := self._ask(node, "/v1/cluster/members")) and told["leader"] == node), {})

    def _level(self) -> bool:
        found = []
        for node in NODES:
            parts = self.status(node).get("partitions", {})
            found.append(sorted((name, part["committed"], part["applied"]) for name, part in parts.items()))
        return bool(found[0]) and found[0] == found[1] == found[2] and all(done == run for _, done, run in found[0])

    def wait_for(self, condition: Callable[[], T]) -> T:
        """What the condition found. Raises: RuntimeError when it never does."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not get there in {PATIENCE_S:g} s: {self.last_words()}")
            time.sleep(LOOK_S)
        return found


def end_in_order(cluster: Cluster, node: int) -> None:
    """SIGTERM. Raises: RuntimeError when the node says that something was wrong."""
    cluster.signal(node, signal.SIGTERM)
    if code := cluster.wait_for_end(node):
        raise RuntimeError(f"node {node} ended with exit code {code}: {cluster.last_words()}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
