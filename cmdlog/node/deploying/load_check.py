"""Whether new code can be run again from the log, found out before it is in there.

One rule: a program that executes its calls itself runs the modules that it imported, and a replay those that the log holds, in
another process. What only the program has (a file beside a module, something that its main part made before) is missed there, so
it must be missed before the first call is logged. Site processes do so themselves (`cmdlog.node.deploying.code_trial`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

import cmdlog
from cmdlog.child_process import DEVNULL, PIPE, ChildProcess, describe_end, describe_late_start
from cmdlog.node.boot import Boot, live_code
from cmdlog.node.sites.site_main import load_alone
from cmdlog.whole_line_stdout import answer, find_answer
from procedures import Database
from procedures.code.bundle import Bundle
from procedures.errors import BundleError, ProceduresError
from procedures.execution.hash_seed import PINNED
from procedures.source.distributions import holds_distributions
from procedures.source.own_modules import folders_of

OPENER: Final = 5  # frames from `checked_code` up to the program: `Node.open`, `open_embedded_on`, `cmdlog.open`
log = structlog.get_logger("cmdlog.node")
_loaded: set[str] = set()  # hashes of what this process has seen loaded: tests open databases of the same code all the time


class NotReplayable(BundleError):
    """The program runs its code, and no replay could; nothing was logged."""

    hint = (
        "a replay imports the modules that the log holds, in another process: at import they may need what is installed and each "
        "other; put what starts the program under `if __name__ == '__main__':`, data into a module, and a folder of installed "
        "packages on PYTHONPATH, for recoveries too; see `cmdlog check`"
    )


def checked_code(db: Database, boot: Boot) -> Callable[[Mapping[str, Any]], Database | None]:
    """`live_code` of a program that executes calls itself."""
    if not _has_source(boot.bundle):
        warnings.warn(
            f"database {db.name!r} was declared at a prompt or in a notebook, so the log cannot hold its code: only the very "
            "same code can replay its calls; import tables and procedures from a module",
            stacklevel=OPENER,
        )
    return live_code(db, boot)


def _has_source(bundle: Bundle) -> bool:
    return bool(bundle.modules.get(bundle.target.partition(":")[0]))


def check_loads(bundle: Bundle, timeout_s: float) -> None:
    """Blocking; half a second for code that this process has not seen yet. Raises: NotReplayable.

    A prompt's or a notebook's code has no source that could be loaded: only the very same program can run it again.
    """
    if bundle.hash in _loaded or not _has_source(bundle):
        return
    problem = _find_problem(bundle, timeout_s)
    if problem:
        raise NotReplayable(problem)
    _loaded.add(bundle.hash)


def _find_problem(bundle: Bundle, timeout_s: float) -> str:
    """Why another process cannot load it; "" when it can, or when there is no other process to be had."""
    order = bundle.to_bytes()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="cmdlog-load-") as empty,
            ChildProcess(
                "cmdlog.node.deploying.load_check",
                *own_folders(bundle),
                hash_seed=PINNED,
                stdin=order,
                stdout=PIPE,
                stderr=DEVNULL,
                cwd=Path(empty),
            ) as child,
        ):
            if (ended := child.finish(patience_s=timeout_s)) is None:
                return f"bundle {bundle.hash[:12]} of {bundle.target} is imported: {describe_late_start(timeout_s)}"
            output, raised, end = ended.output, child.last_error(), describe_end(ended.code)
    except OSError as error:
        output, raised, end = b"", "", str(error)
    if raised:
        return f"bundle {bundle.hash[:12]} of {bundle.target} ended its import: {raised}"
    found = find_answer(output, "problem")
    if found is None:  # where the interpreter cannot be started again, as inside another program
        log.warning("code_not_checked", bundle=bundle.hash[:12], target=bundle.target, reason=end)
        return ""
    return str(found["problem"])


def own_folders(bundle: Bundle) -> list[str]:
    """Where this program's imports found the modules of the bundle: another process finds them in the log alone.

    The folder of this framework, where it is not installed, stays, and one of PYTHONPATH in which packages are installed: a
    recovery has the same.
    """
    modules = {name: sys.modules[name] for name in bundle.modules if name in sys.modules}
    folders = {*map(str, folders_of(modules)), os.path.realpath(os.getcwd())}
    framework = os.path.realpath(Path(cmdlog.__file__).parents[1])
    stated = {os.path.realpath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    return sorted(folders - {framework, *filter(holds_distributions, stated)})


def main() -> None:
    """Entry point: a bundle on standard input, an object on standard output, after whatever the application prints."""
    problem = ""
    try:
        load_alone(Bundle.from_bytes(sys.stdin.buffer.read()), frozenset(sys.argv[1:]), os.curdir)
    except ProceduresError as error:
        problem = str(error)
    sys.stdout.flush()
    answer(b"\n" + orjson.dumps({"problem": problem}) + b"\n")
    os._exit(0)  # threads of the application, and what it does at its exit, are the program's
