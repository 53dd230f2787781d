"""A replay process: `python -m replay.recover.worker`.

`replay.recover.worker_pool` starts it, with its order as a line of JSON on standard input.

One rule: it does what the plan says for its partitions and reports in JSON lines on standard output; its parent writes the trust
record. SIGTERM, or the end of its parent, ends it at any moment: an unfinished SQLite transaction was never there.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import orjson

from cmdlog.wal.errors import message_of
from cmdlog.wal.files import RealFiles
from procedures.errors import BundleError, ProceduresError
from procedures.execution.process_guard import end_children
from replay.plan.opened_plan import source_of_plan
from replay.plan.planner import Plan
from replay.recover.applier import Applier
from replay.recover.execute import LockedState, prepare
from replay.recover.partition_replay import ReplaySetup
from replay.recover.quarantine import QuarantineFile
from replay.recover.target import Target
from replay.recover.worker_pool import CELL, DEFECT_CODE

_lines: list[BinaryIO] = []


def claim_stdout() -> None:
    """From here on standard output is ours alone; what code of the application prints goes to standard error."""
    _lines[:] = [os.fdopen(os.dup(sys.stdout.fileno()), "wb")]
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def write_message(message: dict[str, Any]) -> None:
    """One line to the parent."""
    _lines[0].write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    _lines[0].flush()


def run(order: dict[str, Any]) -> None:
    """Restores and applies the order's partitions."""
    plan, target = Plan.from_json(orjson.dumps(order["plan"])), Target(RealFiles(), order["target"])
    parts = [part for part in plan.partitions if part.partition in order["partitions"]]
    held: dict[int, LockedState] = {}
    for part in parts:
        held[part.partition] = prepare(plan, part, target.files, target.directory)
        write_message({"opened": part.partition})
    applier = Applier(
        parts,
        {partition: of.state for partition, of in held.items()},
        ReplaySetup(
            plan.row_digests,
            target.live_rows(plan),
            QuarantineFile(target.directory) if order["quarantine"] else None,
            cell_writer(order["cell"]),
            order["careful"],
        ),
        progress=lambda partition, calls: write_message({"progress": [partition, calls]}),
        fatal_calls={int(p): {int(index): tuple(found) for index, found in of.items()} for p, of in order["fatal_calls"].items()},
    )
    applier.begin_with(plan)
    source = source_of_plan(RealFiles(), plan)  # up to the plan's last block, wherever that is
    gc.freeze()  # modules live as long as the process: collections need not look at them
    records = source.read(from_block=plan.from_block, upto_block=plan.last_block)
    results = applier.run(records)
    for of in held.values():
        of.close()
    for stop in applier.stopped:
        write_message({"stopped": stop.place.to_json(), "kind": type(stop).__name__})
    for aside in applier.aside:
        write_message({"aside": aside.to_json()})
    write_message({"done": [result.to_json() for result in results]})


def main() -> int:
    """Entry point of the process."""
    return serve_order(run)


def serve_order(carry_out: Callable[[dict[str, Any]], None]) -> int:
    """The life of a process for one order, a line on standard input; its exit code. An error is reported, a defect is printed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_children()
    claim_stdout()
    try:
        line = sys.stdin.buffer.readline()
        if not line:  # the parent ended before it gave the order
            return 0
        order = orjson.loads(line)
        threading.Thread(target=end_with_parent, daemon=True).start()
        carry_out(order)
    except Exception as error:  # noqa: BLE001 - reported to the parent, or printed as the defect that it is
        code = getattr(error, "exit_code", None) or exit_code_of(error)
        if code is None:
            traceback.print_exc()
            return DEFECT_CODE
        write_message({"error": told_of(error, code)})
    return 0


def told_of(error: Exception, exit_code: int) -> dict[str, Any]:
    """An error, for `replay.errors.RemoteError`."""
    return {
        "kind": type(error).__name__,
        "message": message_of(error),
        "hint": str(getattr(error, "hint", "")),
        "exit_code": exit_code,
    }


def cell_writer(descriptor: int) -> Callable[[int, int, int], None]:
    """Says in shared memory what is about to run."""
    cell, pack = mmap.mmap(descriptor, mmap.PAGESIZE), CELL.pack_into
    return lambda partition, index, position: pack(cell, 0, partition, index, position)


def end_with_parent() -> None:
    """The parent keeps our standard input open as long as it lives."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def exit_code_of(error: Exception) -> int | None:
    """Exit code of the errors of `procedures`, which know none; None for a defect of ours."""
    if isinstance(error, BundleError):
        return 13
    return 1 if isinstance(error, ProceduresError) else None


if __name__ == "__main__":
    sys.exit(main())
