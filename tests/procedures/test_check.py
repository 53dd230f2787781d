"""`check`: samples pass, and applications that differ between two worlds are named."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from sqlalchemy import column, select, table, update

from procedures.checks.check import check, find_silent_parts
from procedures.errors import BundleError
from tests.waiting import PATIENCE_S

APP = """
from sqlalchemy import Column, Integer, String, bindparam, insert, select, text
from procedures import Database
db = Database("suspect")
rows = db.table("rows", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")
ADD = insert(rows).values(id=bindparam("number"), name=bindparam("label"))
ALL = select(rows.c.id)

@db.procedure(partition_by="number")
def add(tx, number: int, names: list[str]) -> {result}:
    {body}

def workload(seed, *, calls):
    for number in range(min(calls, 40)):
        yield "add", {{"number": number, "names": ["a", "bb", "ccc", "dddd"]}}
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes an application module and gives its target."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(body: str, *, result: str = "object", more: str = "") -> str:
        (tmp_path / "suspect_app.py").write_text(APP.format(body=body, result=result) + more)
        importlib.invalidate_caches()
        sys.modules.pop("suspect_app", None)
        return "suspect_app:db"

    yield make
    sys.modules.pop("suspect_app", None)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["bank", "ledger"])
def test_samples_have_no_findings(sample: str) -> None:
    """The samples are clean under lint and double run."""
    assert check(f"procedures.samples.{sample}:db", calls=300) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("tx.execute(ADD, number=number, label=','.join({*names}))", "divergence"),
        ("tx.execute(ADD, number=number, label='x'); return tx.execute(ALL).scalars()", "divergence"),
        ("import os; return os.environ['TZ']", "divergence"),
        ("tx.execute(ADD, number=number, label=tx.now.isoformat() + str(tx.uuid()))", None),
    ],
)
def test_double_run_names_what_differs(write: Write, body: str, code: str | None) -> None:
    """Set order, hash(), unordered rows and the environment show in two runs; a correct procedure does not."""
    findings = [finding for finding in check(write(body)) if finding.code == "divergence"]
    assert [finding.code for finding in findings] == ([code] if code else [])
    if findings:
        assert findings[0].function == "add"


@pytest.mark.slow
def test_procedure_that_a_function_declares_is_read(write: Write) -> None:
    """It is found by its qualified name, with what its function was given."""
    more = """
import time

def declare(clock):
    @db.procedure(partition_by="number")
    def late(tx, number: int) -> float:
        print(number)
        return clock()

declare(time.time)
"""
    findings = check(write("pass", more=more), calls=1)
    assert {(finding.code, finding.function) for finding in findings} == {("clock", "declare"), ("io", "late")}


@pytest.mark.slow
def test_double_run_finds_what_a_restart_forgets(write: Write) -> None:
    """What a module keeps from call to call is not in the tables: the run that is restarted half-way answers otherwise."""
    more = "\nDICE = [__import__('random').Random(1)]\n\ndef step():\n    return DICE[0].random()\n"
    findings = check(write("return step()", more=more), calls=40)
    assert [(finding.code, finding.function) for finding in findings] == [("divergence", "add")]
    assert "restart" in findings[0].message


@pytest.mark.slow
def test_run_that_cannot_end_is_a_finding(write: Write) -> None:
    """A workload with parameters that do not fit is reported with its reason."""
    findings = check(write("pass", more="\ndef workload(seed, *, calls):\n    yield 'add', {'number': 'x', 'names': []}\n"))
    assert [finding.code for finding in findings] == ["double_run"]
    assert "InvalidParameters" in findings[0].message


@pytest.mark.slow
def test_a_procedure_whose_every_call_fails_is_a_finding(write: Write) -> None:
    """Two runs that fail alike are equal and prove nothing, which is said with the first failure; one that runs is enough."""
    (finding,) = check(write("raise KeyError(number)"))
    assert (finding.code, finding.severity, finding.function) == ("workload", "warning", "add")
    assert "every call of it failed (40)" in finding.message
    assert finding.message.endswith("the first: KeyError: 0")
    assert check(write("return 7 // number")) == []


def test_statement_that_no_procedure_could_run_is_a_finding(write: Write) -> None:
    """Statements at module level are compiled and checked even if the workload does not reach them."""
    findings = check(write("pass", more="\nBAD = text('PRAGMA user_version')\ndel workload\n"))
    assert [(finding.code, finding.function) for finding in findings] == [("statement", "BAD")]


def test_target_without_database_is_refused() -> None:
    """A wrong target is named."""
    for target in ("no_such_module_anywhere:db", "procedures.samples.bank:workload", "procedures.samples.bank:nothing"):
        with pytest.raises(BundleError):
            check(target)


@pytest.mark.slow
def test_digests_do_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds give the same digests, results and rows for the bank."""
    outputs = []
    for seed in ("0", "2"):
        command = [sys.executable, "-m", "procedures.checks.check", "procedures.samples.bank:db", "3", "200"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        outputs.append(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=PATIENCE_S).stdout)
    assert outputs[0] == outputs[1]
    assert len({orjson.loads(line)["digest"] for line in outputs[0].splitlines()}) > 5


def test_declarations_and_statements_that_do_something_else_are_errors(write: Write) -> None:
    """What was added to a table after it was declared, and a part of a statement that would be left out."""
    late = "from sqlalchemy import func, Index\nIndex('late', func.random(), _table=rows)\n"
    target = write("pass", more=late + "ODD = select(rows.c.id.bitwise_xor(1))\ndel workload\n")
    found = {(finding.code, finding.severity) for finding in check(target)}
    assert found == {("declaration", "error"), ("statement", "error")}


NUMBERS = table("numbers", column("a"), column("b"))


def test_what_is_dropped_is_found_inside_as_well() -> None:
    """In a subquery; a statement of which nothing is dropped has no finding."""
    inner = select(NUMBERS.c.a.bitwise_xor(1).label("x")).subquery()
    (found,) = find_silent_parts(select(inner.c.x))
    assert "bitwise_or(b) - a.bitwise_and(b)" in found
    assert find_silent_parts(select(NUMBERS.c.a.bitwise_or(1) - NUMBERS.c.b).distinct()) == []


def test_options_of_sqlite_are_not_reported() -> None:
    """Only those of another database."""
    (found,) = find_silent_parts(update(NUMBERS).values(a=1).with_dialect_options(mysql_limit=3))
    assert found.startswith("mysql_limit")
