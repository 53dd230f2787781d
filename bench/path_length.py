"""How long the path of a call is: Python functions entered, locks taken, system calls and bytes, in each process that it passes.

One rule: what is counted does not depend on how fast or how busy the machine is. What the processes do anyway, with no call
under way, is counted for as long and taken off. Steps in C count as nothing, so read the system calls and `node_profile` too.

Run: `python bench/path_length.py [CASE ...] [--functions | --modules]`. Cases: embedded, http, cluster, replay. System calls need
strace. `tests/bench/test_path_length.py` holds the counts.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package

from bench._cluster import NODES, Cluster, bank_cluster
from bench._common import ROOT, Bench, make_parser, work_directory
from bench._load import Target, run_load
from bench._nodes import open_node, transfers
from bench._path_watch import Watch
from bench._server import answered, bank_server, batch_request, call_requests, load_accounts, server_pids
from cmdlog.node.embedded.embedded import Embedded
from cmdlog.node.node import Node
from cmdlog.node.outcome import Reply
from procedures.samples import bank

BLOCK: Final = 22
LINES: Final = 4000
CALLS: Final = 200
CUSTOMERS: Final = 100  # of a branch, where calls are few
WARM: Final = 60
REPLAYED: Final = 2000
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.02
PRODUCT: Final = ("cmdlog/", "procedures/", "replay/", "snapshot/")
MAIN: Final = "MainThread"


@dataclass(frozen=True, slots=True)
class PathLength:
    """What one call, block or line costs a process."""

    functions: Mapping[tuple[str, str], float]  # by thread, and by file and name
    locks: float
    system_calls: float | None = None
    bytes: float = 0.0  # read and written by system calls that have a length, sockets left out

    def entered(self, thread: str | None = None) -> float:
        return sum(count for (name, _), count in self.functions.items() if thread in (None, name))


Paths = dict[str, dict[str, PathLength]]  # case -> process -> what it costs


@dataclass(slots=True)
class Watched:
    """Processes under watch. `begin` and `end` tell what each has counted between them, by the name of the process."""

    begin: Callable[[], None]
    end: Callable[[], dict[str, dict[str, Any]]]
    pids: Mapping[str, int]
    tracer: ClassVar[str] = ""  # of system calls
    _took: float = 0.0  # seconds of the last work
    _moved: dict[str, int] = field(default_factory=dict)  # bytes in the last work

    def cost(self, work: Callable[[], object], count: int) -> dict[str, PathLength]:
        """What each of `count` things costs that `work` does."""
        busy, idle = self._window(work), self._window(None)
        calls = self._system_calls(work)
        return {
            name: PathLength(
                {
                    (thread, function): (entered - idle.get(name, {}).get((thread, function), 0)) / count
                    for (thread, function), entered in functions.items()
                    if function and entered > idle.get(name, {}).get((thread, function), 0)
                },
                sum(n - idle.get(name, {}).get(key, 0) for key, n in functions.items() if not key[1]) / count,
                calls.get(name, 0.0) / count if calls else None,
                self._moved[name] / count,
            )
            for name, functions in busy.items()
        }

    def _window(self, work: Callable[[], object] | None) -> dict[str, dict[tuple[str, str], int]]:
        """Counts by thread and function; those of locks have no function. Without work: a while as long as the last one."""
        before = {name: _moved(pid) for name, pid in self.pids.items()}
        began = time.monotonic()
        self.begin()
        if work is None:
            time.sleep(self._took)
        else:
            work()
        counts = self.end()
        if work is not None:
            self._took = time.monotonic() - began
            self._moved = {name: _moved(pid) - before[name] for name, pid in self.pids.items()}
        counted: dict[str, dict[tuple[str, str], int]] = {}
        for name, threads in counts.items():
            mine = counted[name] = {}
            for thread, found in threads.items():
                kind = re.sub(r"-?\d+$", "", thread)
                for function, entered in found["functions"].items():
                    mine[kind, function] = mine.get((kind, function), 0) + entered
                mine[kind, ""] = mine.get((kind, ""), 0) + found["locks"]
        return counted

    def _system_calls(self, work: Callable[[], object]) -> dict[str, float]:
        """Of the work, beyond those of as long a while without it; {} where there is no strace."""
        if not self.tracer:
            return {}
        began = time.monotonic()
        busy = _traced(self.pids, work)
        took = time.monotonic() - began
        idle = _traced(self.pids, lambda: time.sleep(took))
        return {name: busy[name] - idle[name] for name in busy}


def _traced(pids: Mapping[str, int], work: Callable[[], object]) -> dict[str, float]:
    """System calls of each process while the work is done."""
    tracers = {
        name: subprocess.Popen(["strace", "-f", "-c", "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        for name, pid in pids.items()
    }
    found = {}
    try:
        for pid in pids.values():
            _wait_until(lambda pid=pid: _is_traced(pid))  # type: ignore[misc]
        work()
    finally:
        for name, tracer in tracers.items():
            tracer.send_signal(signal.SIGINT)
            errors = tracer.communicate(timeout=PATIENCE_S)[1]
            total = re.search(r"^100\.00\s+\S+\s+\S+\s+(\d+)(?:\s+\d+)? total$", errors, re.MULTILINE)
            found[name] = float(total[1]) if total else 0.0
    return found


def _is_traced(pid: int) -> bool:
    """Whether every thread of it is."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return all("TracerPid:\t0\n" not in state for state in states)


def _moved(pid: int) -> int:
    """Bytes that a process has read and written."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"a process did not follow in {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


@contextmanager
def _servers_watched(folder: Path) -> Iterator[Callable[[Mapping[str, int]], Watched]]:
    """Processes that are started meanwhile are under watch; what is given makes a `Watched` of them, by their ids."""
    out = folder / "out"
    out.mkdir()
    (folder / "sitecustomize.py").write_text((ROOT / "bench" / "_path_watch.py").read_text())
    before = os.environ.get("PYTHONPATH")
    os.environ |= {"PYTHONPATH": f"{folder}:{ROOT}", "PATH_OUT": str(out), "PYTHONHASHSEED": "0"}
    sys.path.insert(0, str(folder))  # children of the product find what this process finds
    try:
        yield lambda pids: _watched(out, pids)
    finally:
        sys.path.remove(str(folder))
        del os.environ["PATH_OUT"]
        os.environ["PYTHONPATH"] = before or str(ROOT)


def _watched(out: Path, pids: Mapping[str, int]) -> Watched:
    def begin() -> None:
        (out / "watch").touch()
        _wait_until(lambda: all((out / f"{pid}.on").exists() for pid in pids.values()))

    def end() -> dict[str, dict[str, Any]]:
        (out / "watch").unlink()
        _wait_until(lambda: all((out / f"{pid}.json").exists() for pid in pids.values()))
        found = {name: json.loads((out / f"{pid}.json").read_text()) for name, pid in pids.items()}
        for path in out.iterdir():
            path.unlink()
        return found

    return Watched(begin, end, pids)


# -- cases ---------------------------------------------------------------------------------------------------------------


def embedded(folder: Path) -> Paths:
    """A lone call, and blocks of calls that are placed together; the inline site is in the process."""
    watch = Watch()
    watch.install()
    watched = Watched(watch.begin, lambda: {"process": watch.end()}, {"process": os.getpid()})
    try:
        with open_node(folder / "node", customers=CUSTOMERS) as node:
            database = Embedded(node)
            work = itertools.cycle(transfers(1, 1000, CUSTOMERS))

            def lone(count: int) -> None:
                for name, params in itertools.islice(work, count):
                    database.call(name, **params)

            def blocks(count: int) -> None:
                for _ in range(count):
                    futures = [database.submit(name, **params) for name, params in itertools.islice(work, BLOCK)]
                    for future in futures:
                        future.result(PATIENCE_S)

            lone(WARM)
            found = {"embedded, lone call": watched.cost(lambda: lone(CALLS), CALLS)}
            blocks(WARM)
            return found | {f"embedded, block of {BLOCK}": watched.cost(lambda: blocks(CALLS), CALLS)}
    finally:
        watch.uninstall()


def http(folder: Path) -> Paths:
    """A lone call, a batch of a block, a line of a large batch."""
    with _servers_watched(folder) as watch, bank_server(folder) as (server, port):
        return _over_http("HTTP", port, watch(server_pids(server, port)))


def cluster(folder: Path) -> Paths:
    """The same at the leader of three nodes."""
    with _servers_watched(folder) as watch, bank_cluster(folder / "cluster") as nodes:
        leader = nodes.wait_for_leader()
        load_accounts(nodes.ports[leader])
        return _over_http("cluster", nodes.ports[leader], watch(_roles(nodes, leader)))


def _roles(nodes: Cluster, leader: int) -> dict[str, int]:
    follower = next(node for node in NODES if node != leader)
    return {
        f"{role}'s {name}": pid
        for role, node in (("leader", leader), ("follower", follower))
        for name, pid in nodes.pids(node).items()
    }


def _over_http(where: str, port: int, watched: Watched) -> Paths:
    calls = transfers(1, LINES)
    singles = Target(port, call_requests(calls[:CALLS]))
    block, large = Target(port, [batch_request(calls[:BLOCK])]), Target(port, [batch_request(calls)])

    def ask(target: Target, count: int) -> None:
        answered(run_load(target, connections=1, count=count))

    ask(singles, WARM)
    found = {f"{where}, lone call": watched.cost(lambda: ask(singles, CALLS), CALLS)}
    ask(block, WARM)
    found[f"{where}, block of {BLOCK}"] = watched.cost(lambda: ask(block, CALLS), CALLS)
    ask(large, 1)
    return found | {f"{where}, line of /v1/batch": watched.cost(lambda: ask(large, 1), LINES)}


def replay(folder: Path) -> Paths:
    """A small call that a start applies again in blocks, taken from two starts: one has more to apply."""
    watch = Watch()
    watch.install()
    entered: list[Counter[tuple[str, str]]] = []
    locks: list[int] = []
    try:
        for calls in (REPLAYED, 2 * REPLAYED):
            place = folder / str(calls)
            with open_node(place, customers=0) as node:
                _place_blocks(node, list(bank.loader(branches=1, customers=calls, checking=1)))
            shutil.rmtree(place / "state")
            watch.begin()
            with open_node(place, customers=0):
                counts = watch.end()
            entered.append(Counter())
            for thread, found in counts.items():
                entered[-1].update({(re.sub(r"-?\d+$", "", thread), name): n for name, n in found["functions"].items()})
            locks.append(sum(found["locks"] for found in counts.values()))
    finally:
        watch.uninstall()
    more = entered[1] - entered[0]
    path = PathLength({key: n / REPLAYED for key, n in more.items()}, (locks[1] - locks[0]) / REPLAYED)
    return {"replay, call": {"process": path}}


def _place_blocks(node: Node, calls: Sequence[bank.Call]) -> None:
    """Blocks of calls that are placed together, so that the log is the same in every run."""
    for lo in range(0, len(calls), BLOCK):
        answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        routes = [(node.routes[name], params) for name, params in calls[lo : lo + BLOCK]]
        node.call_many([(route, route.procedure.bind(params), b"", answers.put, None) for route, params in routes])
        for _ in routes:
            answers.get(timeout=PATIENCE_S)


CASES: Final[dict[str, Callable[[Path], Paths]]] = {"embedded": embedded, "http": http, "cluster": cluster, "replay": replay}


def measure(cases: Sequence[str], folder: Path, *, system_calls: bool) -> Paths:
    """What the cases cost; each in a folder of its own."""
    Watched.tracer = "strace" if system_calls and shutil.which("strace") else ""
    found: Paths = {}
    for case in cases:
        (folder / case).mkdir(parents=True)
        found |= CASES[case](folder / case)
    return found


def main() -> None:
    parser = make_parser("path_length", "Functions, locks and system calls of a call.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; without: all")
    parser.add_argument("--functions", action="store_true", help="each function of the lone call, with how often")
    parser.add_argument("--modules", action="store_true", help="the product's modules that a lone call enters, with functions")
    parser.add_argument("--json", action="store_true", help="functions and locks alone, as one line; no system calls")
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"there is no case {case!r}: {', '.join(CASES)}")
    with work_directory(options.dir) as folder:
        found = measure(options.cases or list(CASES), folder, system_calls=not options.json)
    if options.json:
        counts = {case: {name: (path.entered(), path.locks) for name, path in paths.items()} for case, paths in found.items()}
        print(json.dumps(counts))
        return
    bench = Bench("path_length", options.seed, options.quick)
    bench.head()
    for case, processes in found.items():
        bench.section(case)
        for name, path in processes.items():
            _tell(bench, name, path)
            if options.functions and case.endswith("lone call"):
                _list_functions(path)
        if options.modules and case.endswith("lone call"):
            _list_modules(processes.values())
    bench.write()


def _tell(bench: Bench, name: str, path: PathLength) -> None:
    bench.value(f"{name}: functions entered", path.entered(), "")
    for thread in sorted({thread for thread, _ in path.functions}, key=lambda thread: -path.entered(thread)):
        if path.entered(thread) >= 0.5:
            bench.value(f"  {thread}", path.entered(thread), "")
    bench.value(f"{name}: locks taken by Python", path.locks, "")
    if path.system_calls is not None:
        bench.value(f"{name}: system calls", path.system_calls, "")
        bench.value(f"{name}: read and written", path.bytes, "bytes")


def _list_functions(path: PathLength) -> None:
    for (thread, function), count in sorted(path.functions.items(), key=lambda item: (item[0][0], -item[1], item[0][1])):
        if count >= 0.05:
            print(f"    {count:6.2f}  {thread}  {function.removeprefix(str(ROOT) + '/')}")


def _list_modules(paths: Iterable[PathLength]) -> None:
    """A function counts when nearly every call enters it, so that timers and other work of the background drop out."""
    met: dict[str, set[str]] = {}
    for path in paths:
        for (_, function), count in path.functions.items():
            module, _, name = function.removeprefix(f"{ROOT}/").partition(" ")
            if count >= 0.9 and module.startswith(PRODUCT):
                met.setdefault(module, set()).add(name)
    for module, names in sorted(met.items()):
        print(f"    {module} {len(names)}")
    print(f"    {len(met)} modules, {sum(map(len, met.values()))} functions")


if __name__ == "__main__":
    main()
