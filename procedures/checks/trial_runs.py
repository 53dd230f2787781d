"""The runs of `check`: an application by its name, an executor on a state of its own, and two worlds to run it in.

One rule: a run's environment decides what two runs differ in, which is what correct code cannot see. The code runs as a version
does that has no record yet.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cmdlog.child_process import PIPE, ChildProcess, describe_end
from procedures.declaration.database import Database
from procedures.errors import BundleError
from procedures.execution.executor import Executor
from procedures.idempotency.request_history import VersionFacts
from procedures.storage.state import PartitionState

REVERSE: Final = "CMDLOG_CHECK_REVERSE"  # set for a run: rows come the other way round when no ORDER BY asks for an order
MILLIS_BITS: Final = 21
WORLDS: Final[tuple[Mapping[str, str], Mapping[str, str]]] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", REVERSE: "1"},
)


def resolve_target(target: str | Database) -> tuple[str, Database]:
    """Its name, module:attribute, and the database. Raises: BundleError."""
    if isinstance(target, Database):
        for name, module in sorted(sys.modules.items()):
            for variable, value in list(vars(module).items()):
                if value is target:
                    return f"{name}:{variable}", target
        raise BundleError(f"database {target.name!r} is not an attribute of an imported module")
    name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(name), attribute or "db", None)
    except ImportError as error:
        raise BundleError(f"{name!r} cannot be imported: {error}") from None
    if not isinstance(found, Database):
        raise BundleError(f"{target!r} is no Database; give module:attribute")
    return f"{name}:{attribute or 'db'}", found


class TrialFailed(Exception):
    """A run did not end well; the text says why."""


def run_in_worlds(
    module: str, arguments: Sequence[Sequence[str]], *, second: Mapping[str, str], patience_s: float
) -> list[bytes]:
    """What the module prints in each world, where it runs as a program with its own arguments, both at once.

    `second`: more of the environment of the second world. Raises: TrialFailed.
    """
    worlds = ({**os.environ, **WORLDS[0]}, {**os.environ, **WORLDS[1], **second})
    with contextlib.ExitStack() as stack:
        started = []
        for given, environment in zip(arguments, worlds, strict=True):
            output = stack.enter_context(tempfile.TemporaryFile())  # a pipe that nobody empties would hold the second one up
            run = ChildProcess(module, *given, environment=environment, stdout=output, stderr=PIPE)
            started.append((stack.enter_context(run), output))
        printed = []
        for run, output in started:
            if (ended := run.finish(patience_s=patience_s)) is None:
                raise TrialFailed(f"no end after {patience_s:g} s")
            if ended.code != 0:
                raise TrialFailed((ended.errors.decode(errors="replace").strip().splitlines() or [describe_end(ended.code)])[-1])
            output.seek(0)
            printed.append(output.read())
    return printed


@contextlib.contextmanager
def trial_executor(database: Database, path: Path, *, partition: int) -> Iterator[tuple[Executor, PartitionState]]:
    """The executor and the state of that path, closed at the end. Raises: StateRefused."""
    with contextlib.closing(PartitionState.open(path, partition=partition)) as state:
        state.connection.pragma("reverse_unordered_selects", int(os.environ.get(REVERSE, "0")))
        executor = Executor(
            state,
            lambda _version: database,
            digest_rows=True,
            millis_of=lambda txn: txn >> MILLIS_BITS,
            progress=None,
            facts=lambda _version: VersionFacts(),
        )
        try:
            yield executor, state
        finally:
            executor.close()
