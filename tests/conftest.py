"""Rules for every test: which run when nobody names a marker, which share a process, and what nodes in that process print."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import re
import signal
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from cmdlog.node.embedded.embedded_logging import log_as_library
from tests import memory_disk, one_trust, patient_requests, warm_start
from tests.skips import forbid
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.commands import Command
    from tests.replay.ledgers import Versions

BY_NAME_ONLY = ("torture", "fuzz", "sim")
"""Markers of tests that run for minutes: left out unless `-m` names them, also under `-m 'not slow'`."""


EXAMPLES_MAX = 40
"""Drawn cases of a test that states no number of its own; the long suites draw more."""


def names_long_suites(config: pytest.Config) -> list[str]:
    """Which of the long suites `-m` names."""
    return [name for name in BY_NAME_ONLY if name in config.option.markexpr]


class FailureNames:
    """Names a failure when it happens: of a run that somebody cuts off nothing else is left."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reporter.write_line(f"\nfailed, {report.duration:.0f} s: {report.nodeid}\n  {crash or report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    """What a node logs is not printed, as in any program that embeds one; and no drawn case fails for being slow.

    The first is said here, since `capture_logs` of structlog counts as the program's own word: all nodes behind it would print,
    also into what a test captures.
    """
    os.environ.setdefault("CMDLOG_PREALLOCATE", "ahead")  # a gibibyte for each of some hundred servers would fill the volume
    os.environ.setdefault("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # for each pytest that a test starts: the imports take seconds
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a shell's run in the background ignores it, and so would programs
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureNames(config))
    if not names_long_suites(config):
        memory_disk.choose_root()
    log_as_library()
    one_trust.install()
    patient_requests.install()
    warm_start.install()
    examples_max = settings().max_examples if names_long_suites(config) else EXAMPLES_MAX
    settings.register_profile("unhurried", deadline=None, max_examples=examples_max)
    settings.load_profile("unhurried")
    gc.disable()  # until everything is collected, which no pass could free


def pytest_collection_finish() -> None:
    """No later pass of the collector looks at some million objects of modules and tests; each would take half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where skips are forbidden, each needs a reason that `tests/skips.py` knows."""
    report = yield
    forbid(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine has an event loop of its own, and a bound for the case that it fails by waiting."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await pyfuncitem.obj(**given)

    asyncio.run(run())
    return True


def pytest_unconfigure() -> None:
    """Nothing stays behind."""
    warm_start.end()


@pytest.fixture(autouse=True)
def log_streams_closed() -> Iterator[None]:
    """A server that a test runs in this process writes to the standard error of that test, which is closed afterwards."""
    before = list(logging.root.handlers)
    yield
    for handler in list(logging.root.handlers):
        if type(handler) is logging.StreamHandler and handler not in before:
            logging.root.removeHandler(handler)


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """A test that runs the program in its process leaves the modes of other tests' files as they were."""
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def same_priority() -> Iterator[None]:
    """A test leaves its process the share of the processor that it had: whatever runs behind it would lose its races."""
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


@pytest.fixture(autouse=True)
def logs_closed() -> Iterator[None]:
    """No log of a `Rig` outlives the test that opened it."""
    rigs = sys.modules.get("tests.replay.rig")
    before = len(rigs.OPENED) if rigs else 0
    yield
    if rigs := sys.modules.get("tests.replay.rig"):
        rigs.close_logs(before)


@pytest.fixture
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the test start as they do for everybody; see `tests/warm_start.py`."""
    monkeypatch.setenv(warm_start.SWITCH, "cold")


@pytest.fixture
def copies_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy represents the original at an earlier moment, so it starts without `adopt` (`cmdlog.wal.opening.home`)."""
    from cmdlog.wal.files import RealFiles

    monkeypatch.setattr(RealFiles, "identify", lambda _self, _path: (0, 0))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `cmdlog` in this process."""
    from tests.commands import Command  # the command line is imported for who asks

    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    """Where a module's tests make versions of an application, and import them from."""
    from tests.replay.ledgers import importable  # an application is imported for who has one

    with importable(tmp_path_factory.mktemp("versions")) as versions:
        yield versions


SESSION = "tests/spark with the session"
CLUSTERS = "clusters of real processes"
REAL_CLUSTERS = re.compile(r"\b(?:Served|Nemesis)Cluster\b|\bDemoCluster\(|\bClusterDemo\(")
FIRST = (
    CLUSTERS, SESSION, "tests/project/", "tests/cli/test_demo.py", "tests/api/test_schemathesis.py",
    "tests/cluster/sim/members/test_member_stories.py", "tests/node/test_deployer.py", "tests/cli/test_output_modes.py",
    "tests/member/rejoin/test_copied_members.py", "tests/cli/test_owner.py", "tests/procedures/test_check.py",
    "tests/client/test_client.py", "tests/raft/test_sim.py", "tests/node/test_scrubber.py", "tests/node/test_opening.py",
    "tests/replay/test_pitr.py", "tests/api/test_dashboard.py", "tests/api/test_flood.py",
)  # fmt: skip
"""Files that take longest, which are handed out first: the processes then end together."""


@cache
def handed_out_as(file: str) -> str:
    """The file, or one name for files that one process gets.

    Those of tests/spark that ask for the session get one JVM; the rules of the project parse every module once. Clusters of real
    processes run one after the other: they wait for elections most of the time, and two at once would hold some that no test
    expects. It is read from the text, since the process that hands out the files imports none.
    """
    if file.startswith("tests/project/"):
        return "tests/project/"
    text = (warm_start.ROOT / file).read_text()
    if file.startswith("tests/spark/") and "spark: SparkSession" in text:
        return SESSION
    return CLUSTERS if REAL_CLUSTERS.search(text) else file


def begin_order(item: pytest.Item) -> int:
    """When its file is handed out."""
    name = handed_out_as(item.nodeid.split("::", 1)[0])
    return FIRST.index(name) if name in FIRST else len(FIRST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that run by name only, and put long files first."""
    items.sort(key=begin_order)
    named = names_long_suites(config)
    left_out = [name for name in BY_NAME_ONLY if name not in named]
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (deselected if any(map(item.get_closest_marker, left_out)) else chosen).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile` one process gets all files of one name (`handed_out_as`)."""
    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False  # files in the order of the collection, not those of many tests first
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class OneProcessForEach(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return handed_out_as(nodeid.split("::", 1)[0])

    return OneProcessForEach(config, log)


@pytest.fixture
def executor_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's process stands for an executor of Spark; its hash seed may be any, as no call iterates a set of strings."""
    monkeypatch.setattr("replay.spark.jobs.backfill_task.check_hash_seed", lambda _who: None)
