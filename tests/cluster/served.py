"""Real nodes of a cluster: `cmdlog serve --join` as processes on loopback, which may be killed, stopped and started again."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from cmdlog.cli.demo.nodes import free_ports
from tests.waiting import PATIENCE_S, ask_for, wait_for

APP = "procedures.samples.bank:db"
SMALL = ("--segment-bytes", "1MiB", "--segments", "16", "--log-reserve-bytes", "64KiB", "--call-bytes-max", "256KiB")


class ServedCluster:
    """Nodes 1 to `count`. Ends what it started."""

    def __init__(
        self, folder: Path, *, count: int = 3, partitions: int = 2, app: str = APP, tls: ssl.SSLContext | None = None
    ) -> None:
        """`app`: a module of the program, or one in the folder. `tls`: of clients, where the nodes serve https."""
        self.folder, self.app = folder, app
        self.nodes: Sequence[int] = range(1, count + 1)
        ports = free_ports(2 * count)
        self.tls: ssl.SSLContext | bool = tls or True
        self.urls = {node: f"{'https' if tls else 'http'}://127.0.0.1:{ports[node - 1]}" for node in self.nodes}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._customers = itertools.count(1)
        members = [f"--member={node}=127.0.0.1:{ports[count + node - 1]},{self.urls[node]}" for node in self.nodes]
        self.run(
            "cluster", "init", app, *members, "--partitions", str(partitions), "--to", "cluster.json",
            "--cluster-secret-file", "secret",
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        """A command of the program, which must succeed; what it printed."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, *arguments: str) -> list[str]:
        """The command line of the program; it runs in the folder."""
        return [sys.executable, "-m", "cmdlog.cli", *arguments]

    def environment(self) -> dict[str, str]:
        """Of every process."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}

    def start(self, *nodes: int) -> None:
        """Starts these nodes, or all."""
        for node in nodes or self.nodes:
            with open(self.folder / f"log{node}", "ab") as log:
                self._processes[node] = subprocess.Popen(
                    self.command(
                        "serve", self.app, "--data", f"n{node}",
                        "--node", str(node), "--cluster-secret-file", "secret", *self.join_options(node),
                        "--port", self.urls[node].rsplit(":", 1)[1], *SMALL,
                    ),
                    cwd=self.folder, env=self.environment(), stdout=log, stderr=log,
                    process_group=0,  # the kernel continues what is stopped in the group of a session's first process
                )  # fmt: skip

    def join_options(self, node: int) -> list[str]:
        """The cluster file that a node gets, and where it listens for the others."""
        return ["--join", "cluster.json"]

    def kill(self, node: int, number: int = signal.SIGKILL) -> None:
        """Ends a node; with SIGTERM in order."""
        process = self._processes.pop(node)
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def signal(self, node: int, number: int) -> None:
        """Without waiting for what comes of it."""
        self._processes[node].send_signal(number)

    def pause(self, node: int, *, over: bool = False) -> None:
        """Stops a node's process, or lets it go on."""
        self._processes[node].send_signal(signal.SIGCONT if over else signal.SIGSTOP)

    def is_running(self, node: int) -> bool:
        """Whether it was started, not ended by `kill`, and lives."""
        return node in self._processes and self._processes[node].poll() is None

    def limit_files(self, node: int, size_bytes: int) -> None:
        """No file of the node's process grows or is written beyond that any more, as on a full disk."""
        resource.prlimit(self._processes[node].pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    # -- clients ---------------------------------------------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any]:
        """What the node says of itself; {} while it does not answer."""
        try:
            answer = httpx.get(f"{self.urls[node]}/v1/status", timeout=20, verify=self.tls)
        except httpx.HTTPError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def leader(self, among: Sequence[int] = ()) -> int:
        """The node that takes calls, once there is one."""

        def look() -> int:
            for node in among or self.nodes:
                if self.status(node).get("cluster", {}).get("standing") == "leading":
                    return node
            return 0

        return ask_for(look, PATIENCE_S, self.logs)

    def a_follower(self) -> int:
        """A node that does not lead."""
        leader = self.leader()
        return next(node for node in self.nodes if node != leader)

    def wait_follows(self, node: int) -> None:
        """Until the node hears from a leader, or leads."""
        wait_for(lambda: self.status(node).get("cluster", {}).get("leader"), why=self.logs)

    def wait_level(self) -> None:
        """Until all nodes have committed and run the same."""

        def level() -> bool:
            found = list(self.positions().values())
            return len(found) == len(self.nodes) and len(set(found)) == 1 and all(done == run for done, run in found[0])

        ask_for(level, why=self.logs)

    def new_account(self, branch: int = 1) -> dict[str, int]:
        """An open account of the test alone, without money."""
        made = {"branch": branch, "customer": next(self._customers)}
        opened = self.call("open_account", {**made, "savings": 0, "checking": 0}, f"open{made['customer']}")
        assert opened["status"] == 200, opened
        return made

    def logs(self) -> str:
        return "\n".join((self.folder / f"log{node}").read_text(errors="replace")[-3000:] for node in self.nodes)

    def call(self, procedure: str, params: dict[str, Any], key: str, *, only: Sequence[int] = ()) -> dict[str, Any]:
        """A call under its key, at whichever node takes it, until it has an outcome."""
        nodes = list(only or self.nodes)

        def attempt() -> dict[str, Any]:
            for node in nodes:
                try:
                    answer = httpx.post(
                        f"{self.urls[node]}/v1/procedures/{procedure}",
                        json=params,
                        headers={"Idempotency-Key": key} if key else {},
                        timeout=10,
                        verify=self.tls,
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code not in (503, 504):
                    return {"status": answer.status_code, **answer.json()}
            return {}

        return ask_for(attempt, why=self.logs)

    def positions(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Of every node that answers: what each partition has committed, and run."""
        found = {}
        for node in self.nodes:
            if parts := self.status(node).get("partitions"):
                found[node] = tuple((part["committed"], part["applied"]) for _, part in sorted(parts.items()))
        return found
