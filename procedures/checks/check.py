"""`check`: is an application fit to be replayed? Lint, declarations, and the same seeded workload twice.

The double run starts two processes that differ in what a correct procedure cannot see: hash seed, time zone, locale, the order
of rows that no ORDER BY asks for, and a restart: one of them ends half-way and continues as another process, which finds the
tables and nothing else. Digests of rows and results are compared batch by batch; the first difference is named with its
procedure. It needs `workload(seed, *, calls)` beside the `Database`, and takes `loader()` if there is one.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
from sqlalchemy.sql import operators, visitors

from cmdlog.hidden_packages import library_hint
from cmdlog.whole_line_stdout import answer
from procedures.checks.lint import Finding, lint
from procedures.checks.migrations import check_migrations
from procedures.checks.routed_keys import find_misrouted
from procedures.checks.trial_runs import MILLIS_BITS, TrialFailed, resolve_target, run_in_worlds, trial_executor
from procedures.code.bundle import capture_bundle
from procedures.declaration.database import Database
from procedures.errors import DefinitionError, EnvironmentFault, InvalidParameters, ProceduresError, StatementRefused
from procedures.execution.executor import Executor, Invocations, Status
from procedures.migration.stated_change import StatedChange
from procedures.statements.compiled import is_statement, sql_of

CALLS = 2000
BATCH = 16  # small, so that a difference is narrowed down to few calls
RESTART = "CMDLOG_CHECK_RESTART"  # set for a run: half-way, another process continues
RUN_SECONDS_MAX = 120
_WITH_OPTIONS: Final = frozenset(("select", "insert", "update", "delete"))


def check(target: str | Database, *, seed: int = 1, calls: int = CALLS, given: str | Path | None = None) -> list[Finding]:
    """Findings about an application, "module:attribute" or its `Database`; errors first.

    Args:
        given: a state file, or a node's directory: migrations are tried on copies of its states.

    Raises:
        BundleError: the target does not name a database with sources.
    """
    name, database = resolve_target(target)
    module = sys.modules[name.partition(":")[0]]
    sources = capture_bundle(database, name).modules
    run = [(procedure.name, procedure.function) for procedure in database.procedure_list]
    run += [(migration.name, migration.function) for migration in database.migrations]
    findings = lint(sources, {known: (str(function.__module__), function.__qualname__) for known, function in run})
    findings += _check_declarations(database, module.__name__)
    findings += _check_statements(database, sources)
    findings += find_misrouted(database, sources)
    findings += check_migrations(name, database, given)
    if hasattr(module, "workload") and module.__name__ != "__main__":
        findings += _double_run(name, seed=seed, calls=calls)
    return sorted(findings, key=lambda finding: (finding.severity, finding))


def _check_declarations(db: Database, module: str) -> Iterator[Finding]:
    """What was added to a table after it was declared, and what tables are to each other."""
    try:
        db.check_tables()
    except DefinitionError as error:
        yield Finding(module, 0, "declaration", "error", "", str(error))


def _check_statements(db: Database, modules: Iterable[str]) -> Iterator[Finding]:
    """Statements at module level that no procedure could run."""
    for name in sorted(modules):
        for variable, value in sorted(vars(sys.modules[name]).items()):
            if is_statement(value):
                try:
                    sql_of(value)
                    problems = find_silent_parts(value)
                except StatementRefused as error:
                    problems = [str(error)]
                yield from (Finding(name, 0, "statement", "error", variable, problem) for problem in problems)


def find_silent_parts(statement: Any) -> list[str]:
    """A sentence for each part that SQLAlchemy leaves out for SQLite, or writes wrongly, without an error; in order."""
    found = []
    for element in visitors.iterate(statement):
        part: Any = element
        if getattr(part, "_distinct_on", ()):
            found.append("DISTINCT ON is left out: SQLite has none, and all rows come; use row_number() over a window, or min()")
        if getattr(part, "operator", None) is operators.bitwise_xor_op:
            found.append("bitwise_xor is grouped wrongly by SQLAlchemy; write a.bitwise_or(b) - a.bitwise_and(b)")
        if part.__visit_name__ in _WITH_OPTIONS:
            others = [option for option in part.dialect_kwargs if not option.startswith("sqlite_")]
            found += [f"{option} is of another database and is left out; use a subquery, or leave it out" for option in others]
    return found


def _double_run(target: str, *, seed: int, calls: int) -> list[Finding]:
    module, arguments = target.partition(":")[0], (target, str(seed), str(calls))
    try:
        printed = run_in_worlds(
            "procedures.checks.check", (arguments, arguments), second={RESTART: "1"}, patience_s=RUN_SECONDS_MAX
        )
        if len({output.count(b"\n") for output in printed}) > 1:
            raise TrialFailed("a run ended early")
    except TrialFailed as error:
        problem = "; ".join(filter(None, (str(error), library_hint())))
        return [Finding(module, 0, "double_run", "error", "", f"the double run could not end: {problem}")]
    first, second = ([orjson.loads(line) for line in output.splitlines()] for output in printed)
    for one, other in zip(first, second, strict=True):
        if one != other:
            return [Finding(module, 0, "divergence", "error", ", ".join(_differing(one, other)), _difference(one, other))]
    return list(_find_failing(module, first))


def _find_failing(module: str, batches: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    """Procedures that failed in every call of the workload: nothing that they do was compared."""
    answers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for batch in batches:
        for name, (status, body) in zip(batch["procedures"], batch["answers"], strict=True):
            answers[name].append((status, body))
    for name, several in answers.items():
        if all(status == Status.FAILED for status, _ in several):
            failure = orjson.loads(several[0][1])
            yield Finding(
                module, 0, "workload", "warning", name,
                f"every call of it failed ({len(several)}), so the two runs compared nothing of it; the first: "
                f"{failure['type']}: {failure['message']}",
            )  # fmt: skip


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Procedures whose answers differ; if only rows do, all of the batch."""
    differing = [
        name for name, left, right in zip(one["procedures"], one["answers"], other["answers"], strict=True) if left != right
    ]
    return sorted(set(differing or one["procedures"]))


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    rows = [row for row in one["rows"] if row not in other["rows"]] or [row for row in other["rows"] if row not in one["rows"]]
    where = f"; rows that differ: {', '.join(f'{table} {key}' for table, key, _ in rows[:3])}" if rows else ""
    worlds = "other hash seed, time zone, unordered rows; a restart half-way"
    return f"two runs of the same calls differ in batch {one['batch']} ({worlds}){where}"


def _batches(target: str, *, seed: int, calls: int) -> tuple[Database, list[list[tuple[str, dict[str, Any]]]]]:
    """What loader and workload call, in batches."""
    name, database = resolve_target(target)
    module: Any = sys.modules[name.partition(":")[0]]
    work: list[tuple[str, dict[str, Any]]] = list(module.loader()) if hasattr(module, "loader") else []
    work += itertools.islice(module.workload(seed, calls=calls), calls)
    return database, [work[number : number + BATCH] for number in range(0, len(work), BATCH)]


def _run(database: Database, batches: list[list[tuple[str, dict[str, Any]]]], path: Path) -> Iterator[dict[str, Any]]:
    """Runs them on the state of that path; one record per batch, with everything that must repeat."""
    with trial_executor(database, path, partition=0) as (executor, _):
        if not executor.position.index:
            executor.apply_schema(index=1, term=1, checksum=0, txn_id=1, change=StatedChange(tuple(database.schema_statements())))
        for calls in batches:
            yield _run_batch(executor, database, calls)


def _run_batch(executor: Executor, database: Database, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    numbers = {procedure.name: number for number, procedure in enumerate(database.procedure_list)}
    logged = [(name, params) for name, params in calls if not database.procedures[name].read_only]
    reads = [(name, params) for name, params in calls if database.procedures[name].read_only]
    position = executor.position
    first = ((1_700_000_000_000 + position.index) << MILLIS_BITS) + 1
    answers: list[Any] = []
    digest, rows = 0, []
    if logged:
        applied = executor.apply(
            Invocations(
                index=position.index + 1,
                term=1,
                checksum=0,
                catalog=1,
                txn_ids=range(first, first + len(logged)),
                procedures=[numbers[name] for name, _ in logged],
                params=[database.procedures[name].bind(params) for name, params in logged],
                keys=None,
            )
        )
        answers = [[status, body.decode()] for status, body in zip(applied.statuses, applied.bodies, strict=True)]
        digest = applied.rows_digest
        rows = [[row.table, repr(row.key), repr(row.new)] for row in executor.changed_rows()]
    _, read = executor.read([(numbers[name], database.procedures[name].bind(params)) for name, params in reads], catalog=1)
    answers += [[int(status), body.decode()] for status, body in read]
    names = [name for name, _ in (*logged, *reads)]
    return {"batch": position.index, "procedures": names, "answers": answers, "digest": f"{digest:016x}", "rows": rows}


def main() -> int:
    """Entry point of a run. TARGET SEED CALLS [FOLDER]: with FOLDER it is the second half of one that stopped there."""
    target, seed, calls, *resumed = sys.argv[1:]
    folder = resumed[0] if resumed else tempfile.mkdtemp()
    try:
        database, batches = _batches(target, seed=int(seed), calls=int(calls))
        half = len(batches) // 2 if RESTART in os.environ else 0
        part = batches[half:] if resumed or not half else batches[:half]
        for record in _run(database, part, Path(folder) / "check.db"):
            answer(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        if half and not resumed:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], folder])  # noqa: S606 - this very program
    except (ProceduresError, InvalidParameters, EnvironmentFault, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not reached by a process that another one follows
    return 0


if __name__ == "__main__":
    sys.exit(main())
