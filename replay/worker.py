"""A replay process: `python -m replay.worker`, started by `replay.recover` with its order as JSON on standard input.

One rule: it does what the plan says for its partitions and tells it in JSON lines on standard output; whoever started it writes
the trust record. SIGTERM ends it at any moment: an unfinished SQLite transaction was never there.
"""

from __future__ import annotations

import sys
from typing import Any

import orjson

from cmdlog.wal.files import RealFiles
from procedures.errors import BundleError, ProceduresError
from replay.apply import Applier
from replay.plan import Plan
from replay.reach import source_from
from replay.recover import Held, apply_all, live_rows, prepare


def tell(message: dict[str, Any]) -> None:
    """One line to whoever started us."""
    sys.stdout.buffer.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def run(order: dict[str, Any]) -> None:
    """Restores and applies the order's partitions."""
    plan = Plan.from_json(orjson.dumps(order["plan"]))
    parts = [part for part in plan.partitions if part.partition in order["partitions"]]
    held: dict[int, Held] = {}
    for part in parts:
        held[part.partition] = prepare(plan, part, RealFiles(), order["target"])
        tell({"opened": part.partition})
    applier = Applier(
        parts,
        {partition: of.state for partition, of in held.items()},
        row_digests=plan.row_digests,
        progress=lambda partition, calls: tell({"progress": [partition, calls]}),
        live_rows=live_rows(plan, RealFiles(), order["target"]),
    )
    source = source_from(RealFiles(), plan.directory, plan.from_block, plan.gaps)  # up to the plan's last block, wherever that is
    results = apply_all(applier, source.read(from_block=plan.from_block, upto_block=plan.last_block))
    for of in held.values():
        of.close()
    for stop in applier.stopped:
        tell({"stopped": stop.place.to_json(), "kind": type(stop).__name__})
    tell({"done": [result.to_json() for result in results]})


def main() -> int:
    """Entry point of the process."""
    try:
        run(orjson.loads(sys.stdin.buffer.read()))
    except Exception as error:
        code = getattr(error, "exit_code", None) or _exit_code(error)
        if code is None:
            raise
        tell({"error": {"kind": type(error).__name__, "message": str(error), "exit_code": code}})
    return 0


def _exit_code(error: Exception) -> int | None:
    """Exit code of the errors of `procedures`, which know none; None for a defect of ours."""
    if isinstance(error, BundleError):
        return 13
    return 1 if isinstance(error, ProceduresError) else None


if __name__ == "__main__":
    sys.exit(main())
