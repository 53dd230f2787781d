"""What holds for the tests themselves: how they wait, and where the tests of a module are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from tests.project.test_repository import PACKAGES, sources, syntax_nodes

CLOCKS: Final = {
    *(("time", name) for name in ("sleep", "monotonic", "perf_counter", "process_time", "thread_time")),
    ("threading", "Timer"),
    ("asyncio", "sleep"),
}
MAY_SLEEP: Final = {
    "tests/waiting.py",  # the one place that waits
    "tests/cluster/proxy.py",  # a network that is slow
    "tests/bench/test_load.py",  # a server that stalls, for load generators that have to see it
    "tests/node/apps/faulty.py",  # procedures that take their time, and a program that does not end
    "tests/client/test_client.py",  # a source and a reader of a batch that pause
    "tests/spark/failing_work.py",  # tasks that never end
}
MAY_READ_CLOCKS: Final = {
    "tests/campaign/test_random_histories.py",  # as many histories as there is time for
}
HINT: Final = (
    "a test does not sleep and measures no time: wait for what is to happen (tests/waiting.py), set an event, move a fake clock, "
    "or plant the fault at the seam"
)


def clocks(path: Path, text: str) -> list[str]:
    """Uses of clocks in a file, by line."""
    found = []
    for node in syntax_nodes(text):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "threading"):
            names = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep":
            names = [] if ast.unparse(node.args[0]) == "0" else [("asyncio", "sleep")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id != "asyncio":
            names = [(node.value.id, node.attr)]
        else:
            continue
        found += [f"{path}:{node.lineno} {module}.{name}" for module, name in names if (module, name) in CLOCKS]
    return found


def is_forbidden(path: Path, use: str) -> bool:
    """Programs beside the tests may say how long they took; tests may not know."""
    if use.endswith((".sleep", ".Timer")):
        return str(path) not in MAY_SLEEP
    return path.name.startswith("test_") and str(path) not in MAY_READ_CLOCKS


def test_tests_wait_for_conditions() -> None:
    """No test sleeps for a moment that may be too short, or fails because the machine was busy."""
    found = [use for path, text in sources("tests") for use in clocks(path, text) if is_forbidden(path, use)]
    assert found == [], HINT


def test_exceptions_are_in_use() -> None:
    """A file that may sleep does."""
    used = {str(path) for path, text in sources("tests") if clocks(path, text)}
    assert (MAY_SLEEP | MAY_READ_CLOCKS) - used == set()


def folders_of(module: Path) -> tuple[str, ...]:
    """Where the test of a module may be, at any depth: `tests/wal` for `cmdlog.wal`, `tests` for `cmdlog` itself."""
    package, *inner = module.parts[:-1]
    if package == "cmdlog":
        return ("/".join(("tests", *inner[:1])),)
    return (f"tests/{package}", "tests/spark") if inner[:1] == ["spark"] else (f"tests/{package}",)


def modules_without_test() -> set[str]:
    """Modules of the product whose name no test file has."""
    tests = {path for path, _ in sources("tests") if path.name.startswith("test_")}
    without = set()
    for path, _ in sources(*PACKAGES):
        if path.stem.startswith("__"):
            continue
        named = [test for test in tests if test.name == f"test_{path.name}"]
        if not any(str(test).startswith(f"{folder}/") for test in named for folder in folders_of(path)):
            without.add(str(path))
    return without


def test_modules_have_a_test_of_their_name() -> None:
    """`cmdlog/wal/format/record.py` is tested by `test_record.py` below `tests/wal`; what is tested elsewhere only gets less."""
    listed = set((Path(__file__).parent / "untested_names.txt").read_text().split())
    without = modules_without_test()
    assert sorted(without - listed) == [], "write test_<module>.py; tests/project/untested_names.txt only ever shrinks"
    assert sorted(listed - without) == [], "these have their test, or are gone: remove them from tests/project/untested_names.txt"
