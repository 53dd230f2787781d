"""What an operator is told: message, hint, exit code and the name for machines."""

from __future__ import annotations

import copy
import traceback

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.node.settings import BadSetting
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.errors import Corrupt, DiskFull, Locked, RecordsTooLarge
from procedures.errors import BundleForged, EnvironmentFault
from replay.engine import CatalogMissing
from replay.errors import DivergencePlace, Incomplete, Poison, RemoteError
from snapshot.errors import SnapshotDamaged

PLACE = DivergencePlace(0, 7, 9, 0, "pay", "committed", "failed", kind="code")
ERRORS = [
    Locked("owned by process 7"),
    Corrupt("bad checksum", path="/n/log/1.seg", offset=4096, block=3),
    SnapshotDamaged("snapshot 7 is damaged"),
    BundleForged("another hash"),
    EnvironmentFault("memory", txn_id=9, procedure="pay", position=0, cause="MemoryError()"),
    BadSetting("CMDLOG_PORT", "is not a number"),
    Poison(PLACE),
    Incomplete.of(["entries 5 to 9 are gone", "entry 12 is gone"]),
    CommandFailed("no", hint="say yes", exit_code=2, details=["once", "twice"], kind="Refusal"),
]


def test_text_is_the_message_alone() -> None:
    """`str()` says what happened; the hint is beside it."""
    error = DiskFull("/n/log cannot be written")
    assert (str(error), error.message) == ("/n/log cannot be written",) * 2
    assert full_text(error) == f"/n/log cannot be written ({DiskFull.hint})"
    assert full_text(ValueError("no (such) number")) == "no (such) number"


def test_traceback_shows_the_hint_as_a_note() -> None:
    """Where Python itself prints the error, what to do is below it, as it is when it is printed."""
    error = Locked("owned by process 7")
    error.add_note("while opening")
    error.hint = "wait"
    shown = traceback.format_exception_only(error)
    assert shown == ["cmdlog.wal.errors.Locked: owned by process 7\n", "while opening\n", "hint: wait\n"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_the_same_in_another_process(error: OperatorError) -> None:
    """Copied as pickle does it, all that was said of it is there, whatever its class is made from."""
    error.hint = f"{error.hint}; look again"
    error.add_note("on the way")
    back = copy.deepcopy(error)
    assert type(back) is type(error)
    assert (back.to_json(), vars(back), traceback.format_exception_only(back)) == (
        error.to_json(), vars(error), traceback.format_exception_only(error),
    )  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_told_by_a_process_keeps_what_matters(error: OperatorError) -> None:
    """Message, hint, exit code and name cross the border as JSON."""
    assert RemoteError(error.to_json()).to_json() == error.to_json()


def test_name_for_machines_outlives_the_name_of_the_class() -> None:
    """Scripts that look for an error find it under the name that it always had."""
    assert (RecordsTooLarge("").kind, CatalogMissing("").kind) == ("TooLarge", "CodeMissing")
    assert (Locked("").kind, EnvironmentFault("io", txn_id=0, procedure="", position=-1, cause="").kind) == ("Locked", "io")
