"""A replay process: `replay.recover.worker_pool` starts it, with its order as a line of JSON on standard input.

One rule: it does what the plan states for its partitions and reports in JSON lines on standard output; its parent writes the
trust record. SIGTERM, or the end of its parent, ends it at any moment: SQLite rolls an unfinished transaction back.
"""

from __future__ import annotations

import mmap
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import orjson

from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.operator_error import OperatorError
from cmdlog.wal.files import RealFiles
from procedures.execution.process_guard import end_children
from replay.plan.node_plan import Plan, source_of_plan
from replay.recover.applier import replay_partitions
from replay.recover.partition_replay import ReplaySetup
from replay.recover.quarantine import QuarantineFile
from replay.recover.target import Target
from replay.recover.worker_pool import CELL, DEFECT_CODE
from replay.state.live_rows import LiveRows

_lines: list[BinaryIO] = []


def claim_stdout() -> None:
    """From here on standard output is ours alone; what code of the application prints goes to standard error."""
    _lines[:] = [os.fdopen(os.dup(sys.stdout.fileno()), "wb")]
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def write_message(message: dict[str, Any]) -> None:
    """Writes one line to the parent process."""
    _lines[0].write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    _lines[0].flush()


def run(order: dict[str, Any]) -> None:
    """Restores and applies the order's partitions."""
    plan, target = Plan.from_value(order["plan"]), Target(RealFiles(), order["target"])
    parts = [part for part in plan.partitions if part.partition in order["partitions"]]
    source = source_of_plan(RealFiles(), plan)  # up to the plan's last block, wherever that is
    setup = ReplaySetup(
        plan.row_digests,
        LiveRows(target.files, plan.directory, target.state_folder),
        QuarantineFile(target.directory) if order["quarantine"] else None,
        cell_writer(order["cell"]),
        order["careful"],
    )
    settle_garbage_collection()
    done = replay_partitions(
        plan,
        parts,
        target,
        source.read(from_block=plan.from_block, upto_block=plan.last_block),
        setup,
        opened=lambda partition: write_message({"opened": partition}),
        progress=lambda partition, calls: write_message({"progress": [partition, calls]}),
        fatal_calls={int(p): {int(index): tuple(found) for index, found in of.items()} for p, of in order["fatal_calls"].items()},
    )
    for stop in done.stops:
        write_message({"stopped": stop.place.to_json(), "kind": type(stop).__name__})
    for aside in done.aside:
        write_message({"aside": aside.to_json()})
    write_message({"done": [result.to_json() for result in done.results]})


def main() -> int:
    """Entry point of the process."""
    return serve_order(run)


def serve_order(carry_out: Callable[[dict[str, Any]], None]) -> int:
    """The life of a process for one order, a line on standard input; its exit code. An error is reported, a defect is printed."""
    end_children()
    claim_stdout()
    try:
        carry_out(orjson.loads(sys.stdin.buffer.read()))
    except OperatorError as error:
        write_message({"error": error.to_json()})
    except Exception:  # noqa: BLE001 - printed as the defect that it is
        traceback.print_exc()
        return DEFECT_CODE
    return 0


def cell_writer(descriptor: int) -> Callable[[int, int, int], None]:
    """Writes what is about to run to shared memory."""
    cell, pack = mmap.mmap(descriptor, mmap.PAGESIZE), CELL.pack_into
    return lambda partition, index, position: pack(cell, 0, partition, index, position)


if __name__ == "__main__":
    sys.exit(main())
