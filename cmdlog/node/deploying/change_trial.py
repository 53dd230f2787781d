"""What a change of tables would do to a node that serves meanwhile: tried out on copies of its states, by a process of its own.

One rule: the sites notice nothing. A copy is made of what a reader sees, and the process is a nice one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from cmdlog.child_process import PIPE, ChildProcess, describe_end
from cmdlog.node.deploying.bundle_check import NICENESS
from cmdlog.node.deploying.deploy_errors import MigrationRefused
from cmdlog.node.migrating.offline_plan import rehearse_on_copies, why_former_fails
from cmdlog.node.migrating.table_changes import NewTables
from cmdlog.whole_line_stdout import answer, find_answer
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import ProceduresError
from procedures.execution.hash_seed import PINNED
from procedures.idempotency.request_history import VersionFacts

Trial = dict[str, Any]  # "partitions": number -> "steps" [migration, SQL, rows, seconds] and "seconds"; "former_cannot_run"


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """What is tried."""

    bundle: str
    former: str  # the bundle that runs
    directory: str
    partitions: int
    catalog: int
    tick: int  # of the transaction id that migrations see


def try_change(order: TrialOrder) -> Trial:
    """Blocking. Raises: MigrationRefused."""
    told = orjson.dumps(asdict(order))
    with ChildProcess("cmdlog.node.deploying.change_trial", hash_seed=PINNED, stdin=told, stdout=PIPE) as child:
        ended = child.finish()
        found = ended and find_answer(ended.output, "partitions", "former_cannot_run", "problem")
        if not found:
            raise MigrationRefused(f"the trial of the migration ended: {child.last_error() or describe_end(child.returncode)}")
    if found["problem"]:
        raise MigrationRefused(found["problem"])
    return found


def run_trial(order: TrialOrder) -> Trial:
    """In the child."""
    bundle = Bundle.from_bytes(order.bundle.encode())
    facts = VersionFacts(order.partitions, bundle.requests)
    new = NewTables(load_bundle(bundle), order.catalog, order.partitions, order.tick, migrates=True, facts=facts, is_new=True)
    rehearsals = rehearse_on_copies(new, order.directory, lambda _done, _of: None)
    former = Bundle.from_bytes(order.former.encode())
    return {
        "partitions": {
            str(partition): {
                "steps": [[step.what, step.sql, step.rows, round(step.seconds, 6)] for step in rehearsal.steps],
                "seconds": rehearsal.seconds,
            }
            for partition, rehearsal in rehearsals.items()
        },
        "former_cannot_run": why_former_fails(former, next(iter(rehearsals.values()))) if rehearsals else "",
        "problem": "",
    }


def main() -> None:
    """Entry point: an order on standard input, an object on standard output."""
    os.nice(NICENESS)
    try:
        found = run_trial(TrialOrder(**orjson.loads(sys.stdin.buffer.read())))
    except ProceduresError as error:
        found = {"partitions": {}, "former_cannot_run": "", "problem": str(error)}
    sys.stdout.flush()
    answer(b"\n" + orjson.dumps(found) + b"\n")
