"""The modules that one call over HTTP passes, taken from a real server: `python -m tests.project.call_walk [FOLDER] [--all]`.

`cmdlog serve` of the bank sample runs from FOLDER, a checkout, by default this one, with one partition. The node and its site
note each function of the product that they enter; a module counts when every one of some calls enters it, so that
timers and other work of the background drop out. Steps in C are not seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from tests.waiting import PATIENCE_S, wait_for

WARM_UP: Final = 30  # calls
WATCHED: Final = 12  # calls, one after the other
DEPOSIT: Final = {"branch": 1, "customer": 1, "amount": 1}
HOOK: Final = """
import os, sys, threading, time
from pathlib import Path
ROOT, OUT = os.environ["WALK_ROOT"], Path(os.environ["WALK_OUT"])
entered = None
def watch(frame, event, _):
    if entered is not None and event == "call" and frame.f_code.co_filename.startswith(ROOT):
        entered.add(f"{frame.f_code.co_filename[len(ROOT):]} {frame.f_code.co_qualname}")
def switch():
    global entered
    while True:
        if entered is None and (OUT / "watch").exists():
            entered = set()
            (OUT / f"{os.getpid()}.on").touch()
        elif entered is not None and not (OUT / "watch").exists():
            lines, entered = sorted(entered), None
            (OUT / f"{os.getpid()}.new").write_text("\\n".join(lines))
            (OUT / f"{os.getpid()}.new").rename(OUT / f"{os.getpid()}.txt")
        time.sleep(0.02)
threading.Thread(target=switch, daemon=True).start()
threading.setprofile(watch)
sys.setprofile(watch)
"""


def walk(root: Path) -> dict[str, set[str]]:
    """Module -> its functions that every watched call enters."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "sitecustomize.py").write_text(HOOK)
        (scratch / "out").mkdir()
        environment = os.environ | {
            "PYTHONPATH": f"{scratch}:{root}",
            "WALK_ROOT": f"{root}/",
            "WALK_OUT": str(scratch / "out"),
            "PYTHONHASHSEED": "0",
        }
        command = [
            sys.executable,
            "-m",
            "cmdlog",
            "serve",
            "procedures.samples.bank:db",
            "--data",
            f"{scratch}/data",
            "--port",
            "0",
        ]
        command += ["--partitions", "1", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=scratch) as server:
            try:
                return _watched(server, scratch / "out")
            finally:
                server.terminate()


def _watched(server: subprocess.Popen[str], out: Path) -> dict[str, set[str]]:
    assert server.stdout is not None
    address = next(found for line in server.stdout if (found := _address(line)))
    next(line for line in server.stdout if '"ready"' in line)
    _call(address, "open_account", {"branch": 1, "customer": 1})
    for _ in range(WARM_UP):
        _call(address, "deposit_checking", DEPOSIT)
    processes = [server.pid, *_children(server.pid)]
    rounds = []
    for _ in range(WATCHED):
        (out / "watch").touch()
        _wait_for(processes, out, "on")
        _call(address, "deposit_checking", DEPOSIT)
        (out / "watch").unlink()
        _wait_for(processes, out, "txt")
        lines = {line for path in out.glob("*.txt") for line in path.read_text().splitlines()}
        for path in out.iterdir():
            path.unlink()
        rounds.append(lines)
    met: dict[str, set[str]] = {}
    for line in set.intersection(*rounds):
        module, _, function = line.partition(" ")
        if module.startswith(("cmdlog/", "procedures/", "replay/", "snapshot/")):
            met.setdefault(module, set()).add(function)
    return met


def _address(line: str) -> str:
    try:
        return str(json.loads(line).get("url", ""))
    except ValueError:
        return ""


def _call(address: str, name: str, parameters: dict[str, int]) -> None:
    httpx.post(f"{address}/v1/procedures/{name}", json=parameters, timeout=PATIENCE_S).raise_for_status()


def _children(pid: int) -> Iterator[int]:
    for line in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in line.read_text().split():
            if b"site_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                yield int(child)


def _wait_for(processes: list[int], out: Path, ending: str) -> None:
    """Waits until each process has begun (`on`) or ended (`txt`) to watch."""
    wait_for(lambda: all((out / f"{pid}.{ending}").exists() for pid in processes), why="a process does not watch")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    met = walk(Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2])
    for path, functions in sorted(met.items()):
        print(path, len(functions), *(sorted(functions) if "--all" in sys.argv else ()))
    folders = {path.rpartition("/")[0] for path in met}
    print(f"{len(met)} modules in {len(folders)} folders, {sum(map(len, met.values()))} functions")
