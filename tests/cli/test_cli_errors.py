"""Every kind of error has its exit code, message and hint."""

import errno
import json
import os

import pytest

from cmdlog.cli.cli_errors import CommandFailed, explain
from cmdlog.cli.output import out
from cmdlog.node.outcome import NotReady
from cmdlog.node.settings import BadSetting
from cmdlog.wal import errors
from procedures.errors import BundleForged, DefinitionError
from replay.errors import Incomplete


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.Corrupt("bad checksum", path="log/1", offset=4096), 10),
        (errors.Foreign("of node 7"), 11),
        (errors.NewerFormat("version 2"), 11),
        (errors.WrongDirectory("/data"), 1),
        (errors.Locked("pid 7"), 12),
        (errors.DiskFull("log/1"), 14),
        (errors.WriteFailed("log/1"), 15),
        (errors.Wedged("log/1"), 15),
        (errors.LogFull("64 segments"), 1),
        (BundleForged("hash differs"), 13),
        (BadSetting("CMDLOG_PORT", "is not a number"), 2),
        (DefinitionError("no primary key"), 1),
        (NotReady("starting"), 1),
        (CommandFailed("no"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 14),
        (OSError(errno.EIO, "Input/output error"), 15),
        (PermissionError(errno.EACCES, "Permission denied"), 1),
    ],
)
def test_kind_of_error_decides_the_exit_code(error: Exception, exit_code: int) -> None:
    """Scripts can tell corrupt from locked from full without reading the text."""
    failure = explain(error)
    assert failure is not None
    assert failure.exit_code == exit_code


def test_hint_is_shown_beside_the_message() -> None:
    """An error is shown as message and hint, and neither repeats the other."""
    failure = explain(errors.Locked("node directory is owned by process 7"))
    assert failure is not None
    assert failure.message == "node directory is owned by process 7"
    assert failure.hint == errors.Locked.hint


def test_many_losses_are_one_line_and_details_below(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the first and counts the others; all are listed below it, with --json as `details`."""
    losses = [f"partition {number}: entries 5 to 9 are in no log at hand" for number in range(40)]
    failure = explain(Incomplete.of(losses))
    assert failure is not None
    assert failure.message == f"{losses[0]} (and 39 more)"
    out.failure(failure)
    error, hint, *below = capsys.readouterr().err.splitlines()
    assert (error, hint[:5], below) == (f"error: {failure.message}", "hint:", [f"  - {loss}" for loss in losses])
    out.json = True
    try:
        out.failure(failure)
    finally:
        out.json = False
    assert json.loads(capsys.readouterr().out)["error"]["details"] == losses


def test_error_of_the_system_says_where_and_what_to_do() -> None:
    """Not its number: the path, the reason, and the next step."""
    for number, says in (
        (errno.ENOSPC, "free space"),
        (errno.EACCES, "permissions"),
        (errno.EMFILE, "ulimit"),
        (errno.EROFS, "read-only"),
    ):
        failure = explain(OSError(number, os.strerror(number), "/data/x"))
        assert failure is not None
        assert failure.message == f"/data/x: {os.strerror(number)}"
        assert says in failure.hint


def test_defect_is_no_failure() -> None:
    """What nobody raises on purpose keeps its traceback."""
    assert explain(ZeroDivisionError("division by zero")) is None
