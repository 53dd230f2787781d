"""The restore drill: proves that the files at hand suffice for a recovery. `python -m replay.drill.drill DIR`, or `cmdlog drill
DIR`.

One rule: it only reads what a recovery would read, and writes in a temporary folder that is removed whatever happens. It works
while the node runs, at idle priority, on a fixed view of its files (`replay.drill.view`). A drill that
could not be run says so, and nothing about the snapshots.

What is proved, and how, says `replay.drill.proofs`.

A report of each drill stays in `drills/<UTC time>.json`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.signal_handlers import sigterm_raises
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.reader import Recycled
from cmdlog.whole_line_stdout import answer
from procedures.errors import ProceduresError
from replay.drill.proofs import DrillDamaged, DrillDiverged, DrillProofs, check_space
from replay.drill.report import FOLDER, DrillReport, alone, sweep, write_report
from replay.drill.view import DrillNotRun, ViewChanged, log_bytes, name_own_paths, take_view
from replay.errors import Divergence, RemoteError
from replay.recover.execute import RecoveryProgress
from replay.state.trust import STATE_FOLDER
from snapshot.background_io import remove_tree

ATTEMPTS_MAX: Final = 5  # a node that recycles faster than its log can be read takes snapshots as fast
NICENESS: Final = 15  # where SCHED_IDLE is not to be had
VIEW_FOLDER: Final = "node"  # in the throw-away folder


def drill(
    files: Files,
    directory: str,
    *,
    seed: int,
    work: str | None = None,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
    make_way: Callable[[], None] = lambda: None,
) -> DrillReport:
    """Runs the proofs and writes the report. `work` is where the temporary folder is made, else the node directory's `drills`.

    `make_way` is called once the view is taken: before that, a process at idle priority would lose every race.

    Everything that was found is in the report, errors of the node's files too. Raises: Locked when another drill is running,
    WrongDirectory; OSError when there can be no report.
    """
    folder = os.path.join(directory, FOLDER)
    if not files.exists(folder):
        files.mkdir(folder)
    with alone(folder):
        sweep(folder)
        report = DrillReport(directory, seed, now := datetime.now(UTC), now)
        try:
            _prove(files, report, work or folder, progress, make_way)
        except Exception as error:
            report.error = _meaning(error)
            if not isinstance(report.error, OSError | OperatorError):
                raise  # our own bug, not the node's
        report.finished = datetime.now(UTC)
        report.path = write_report(files, folder, report)
    return report


def _prove(
    files: Files, report: DrillReport, work: str, progress: Callable[[RecoveryProgress], None], make_way: Callable[[], None]
) -> None:
    """Fills the report. Tries again when the archive drops files meanwhile."""
    while True:
        temporary = os.path.join(work, f"tmp-{os.urandom(8).hex()}")
        os.makedirs(os.path.join(temporary, STATE_FOLDER), mode=0o750)
        view = os.path.join(temporary, VIEW_FOLDER)
        try:
            check_space(temporary, log_bytes(files, report.directory))
            report.attempts += take_view(files, report.directory, view) - 1
            make_way()
            DrillProofs(files, report, view, temporary, progress).run()
        # Files that moved meanwhile prove nothing: another attempt takes another view.
        except Exception as error:
            if not _is_moved(error):
                name_own_paths(error, view, report.directory)
                raise
            if report.attempts >= ATTEMPTS_MAX:
                raise DrillNotRun(
                    f"{report.directory} removed files while they were being read, {report.attempts} times"
                ) from error
            report.attempts += 1
        else:
            return
        finally:
            remove_tree(temporary)


def _is_moved(error: Exception) -> bool:
    return isinstance(error, ViewChanged | Recycled) or (isinstance(error, RemoteError) and error.kind == Recycled.kind)


def _meaning(error: Exception) -> Exception:
    """What an error of a replay says about the node's files."""
    if isinstance(error, Divergence):
        diverged = DrillDiverged(str(error))
        diverged.place = error.place
        return diverged
    if isinstance(error, ProceduresError):
        return DrillDamaged(f"the log cannot be replayed: {error}")
    if isinstance(error, RemoteError) and error.exit_code == 1:
        return DrillDamaged(f"the log cannot be replayed: {error}")
    return error


# -- as a process --------------------------------------------------------------------------------------------------------


def lower_priority() -> None:
    """From here on this process and those that it starts run at idle priority."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> int:
    """Entry point of the process that a node starts; prints the report as one line of JSON.

    SIGTERM, which is also the end of its node, ends it as Ctrl-C does: with everything that it made.
    """
    began = time.time_ns()
    with sigterm_raises(lambda: SystemExit(128 + signal.SIGTERM)):
        report = drill(RealFiles(), sys.argv[1], seed=began % (1 << 32), make_way=lower_priority)
    answer(orjson.dumps({**report.to_json(), "file": report.path}, option=orjson.OPT_APPEND_NEWLINE))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
