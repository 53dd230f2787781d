"""What the product has one mechanism for is not written a second time: calls of the system that one module makes for all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_repository import syntax_nodes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cmdlog", "procedures", "replay", "snapshot")
CHILD = "a child has to end with its parent: start it as `cmdlog.child_process.ChildProcess`"
FORK = "a fork copies locks and threads' memory: start a module as `cmdlog.child_process.ChildProcess`"
LOCK = "waiting and the error are the same everywhere: use `lock` or `open_locked` of `cmdlog.file_lock`"
SIGNAL = "a handler has to be taken back: use `sigterm_raises`, `handled` or `ignore` of `cmdlog.signal_handlers`"
ANSWER = "an order has any size and a wait an end: use `finish` or `ask` of `cmdlog.child_process.ChildProcess`"


OWN_FILES = {
    "procedures/storage/state_file.py": "it is the mechanism: a file may come from anywhere, with a schema that calls functions",
    "procedures/storage/state.py": "the state that a site executes on, which trusts no schema either",
    "procedures/checks/migrations.py": "the empty file that a backup fills; it is opened as a state",
    "cmdlog/node/migrating/offline_plan.py": "the same",
    "replay/fork/side_by_side.py": "a new file of its own",
    "replay/repartition/rows.py": "a new file, filled from states that `connect` opens",
    "snapshot/capture/capture.py": "the empty file that a capture fills",
}
"""Who may open a SQLite file by itself, with the reason."""

OWNERS: dict[str, tuple[str, dict[str, str]]] = {
    "subprocess": (
        CHILD,
        {
            "cmdlog/child_process.py": "it is the mechanism",
            "replay/spark/base/java.py": "asks a `java` for its version; no module of ours",
        },
    ),
    ".communicate": (ANSWER, {}),
    "os.fork": (FORK, {}),
    "os.forkpty": (FORK, {}),
    "os.posix_spawn": (CHILD, {}),
    "os.system": (CHILD, {}),
    "fcntl.flock": (LOCK, {"cmdlog/file_lock.py": "it is the mechanism"}),
    "fcntl.lockf": (LOCK, {}),
    "signal.signal": (
        SIGNAL,
        {
            "cmdlog/signal_handlers.py": "it is the mechanism",
            "cmdlog/node/embedded/call_thread.py": "it keeps SIGINT of an open database, others during a call; and asks",
        },
    ),
}
"""Call -> what to use instead, and who may make it, with the reason."""


def uses(text: str) -> Iterator[tuple[int, str]]:
    """Line and full name of each of these names in a module, whatever it is imported as; modules, and attributes of anything."""
    names: dict[str, str] = {}
    for node in syntax_nodes(text):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, str(node.module)
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    for node in syntax_nodes(text):
        if isinstance(node, ast.Attribute):
            yield node.lineno, f".{node.attr}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{names.get(node.value.id)}.{node.attr}"


def breaches(path: str, text: str) -> list[str]:
    """A sentence for each use by a module that is no owner."""
    found = [(line, name) for line, name in uses(text) if name in OWNERS and path not in OWNERS[name][1]]
    return [f"{path}:{line} uses {name}: {OWNERS[name][0]}" for line, name in found]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import subprocess as s\nclass Mine(s.Popen): ...", "subprocess"),
        ("from subprocess import DEVNULL", "subprocess"),
        ("child.popen.communicate(b'')", ".communicate"),
        ("from fcntl import LOCK_EX, flock", "fcntl.flock"),
        ("import signal\nset_handler = signal.signal", "signal.signal"),
        ("import os\nos.fork()", "os.fork"),
    ],
)
def test_a_second_mechanism_is_recognised(line: str, name: str) -> None:
    """Called, inherited from, imported under another name: each is named, with what to use instead."""
    (breach,) = breaches("replay/planted.py", line)
    assert f"uses {name}: " in breach


def test_processes_locks_and_signals_have_one_owner_each() -> None:
    """No module of the product starts a process, locks a file or sets a handler by itself."""
    found = []
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += breaches(str(path.relative_to(ROOT)), path.read_text())
    assert found == []


def test_every_exception_is_still_needed() -> None:
    """A module that does not make the call any more loses its permission."""
    unused = [
        f"{name} in {path}"
        for name, (_, owners) in OWNERS.items()
        for path in owners
        if name not in {used for _, used in uses((ROOT / path).read_text())}
    ]
    assert unused == []


def test_files_of_sqlite_are_opened_by_one_function() -> None:
    """What reads a file that may be another machine's trusts nothing in its schema."""
    found = set()
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in syntax_nodes(path.read_text()):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "apsw.Connection":
                    continue
                if ast.unparse(node.args[0]) not in ("':memory:'", "''"):
                    found.add(str(path.relative_to(ROOT)))
    assert found == OWN_FILES.keys()
