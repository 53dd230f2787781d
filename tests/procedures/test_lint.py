"""Lint: each rule has code that breaks it and code that does not."""

from __future__ import annotations

import textwrap

import pytest

from procedures.checks.lint import lint

HEAD = """
import datetime as dt, random, time, uuid, os, threading, functools, decimal
from datetime import datetime
from random import choice
from uuid import uuid4
from sqlalchemy import select
from itertools import count
from elsewhere import CACHE
DICE = random.Random(1)
NUMBERS = count()
class Memory:
    calls = 0
COUNTS = {}
SEEN = []
LIMIT = 5
"""


def codes(body: str, *, outside: str = "", helpers: str = "") -> list[str]:
    """Codes of the findings in a procedure with this body."""
    source = (
        HEAD
        + textwrap.dedent(outside)
        + "def run(tx, n: int, names: list[str]):\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
    )
    return sorted({finding.code for finding in lint({"app": source, "helpers": helpers}, {"run": ("app", "run")})})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return time.time()", "clock"),
        ("return datetime.now()", "clock"),
        ("return dt.datetime.utcnow()", "clock"),
        ("return dt.date.today()", "clock"),
        ("return random.random()", "chance"),
        ("return choice(names)", "chance"),
        ("return random.Random().random()", "chance"),
        ("return uuid4()", "chance"),
        ("return uuid.uuid1()", "chance"),
        ("return os.urandom(4)", "chance"),
        ("return open('x').read()", "io"),
        ("print(n)", "io"),
        ("return os.environ['X']", "environment"),
        ("return os.getpid()", "environment"),
        ("return os.fork()", "processes"),
        ("os.execvp('ls', names)", "processes"),
        ("os.posix_spawnp('ls', names, {})", "processes"),
        ("return os.system('ls')", "processes"),
        ("import subprocess\nreturn subprocess.run(['ls'])", "processes"),
        ("return datetime.fromtimestamp(n)", "environment"),
        ("return tx.now.astimezone()", "environment"),
        ("decimal.getcontext().prec = 5", "environment"),
        ("decimal.setcontext(decimal.Context(prec=5))", "environment"),
        ("return open_data(__file__)", "bundle"),
        ("threading.Thread(target=run).start()", "threads"),
        ("return hash(n)", "identity"),
        ("return id(n)", "identity"),
        ("return eval('1')", "dynamic"),
        ("for name in set(names): tx.abort(name)", "set_order"),
        ("for name in {1, 2}: pass", "set_order"),
        ("return list(set(names))", "set_order"),
        ("unique = set(names)\nreturn ','.join(unique)", "set_order"),
        ("unique = set(names)\nreturn [name for name in unique]", "set_order"),
        ("unique = set(names) | {'x'}\nreturn unique.pop()", "set_order"),
        ("unique = {name for name in names}\nreturn [*unique]", "set_order"),
        ("COUNTS[n] = 1", "global_state"),
        ("COUNTS['x'] += 1", "global_state"),
        ("del COUNTS[n]", "global_state"),
        ("SEEN.append(n)", "global_state"),
        ("return DICE.random()", "global_state"),
        ("return choice_of(DICE, n)", "global_state"),
        ("return next(NUMBERS)", "global_state"),
        ("Memory.calls += 1", "global_state"),
        ("run.calls = n", "global_state"),
        ("CACHE[n] = 1", "global_state"),
        ("COUNTS.setdefault(n, 1)", "global_state"),
        ("global LIMIT\nLIMIT = 3", "global_state"),
        ("try:\n    tx.abort('x')\nexcept:\n    pass", "swallow"),
        ("try:\n    n / 0\nexcept BaseException:\n    pass", "swallow"),
        ("try:\n    n / 0\nexcept (ValueError, MemoryError):\n    pass", "swallow"),
        ("try:\n    n / 0\nexcept Exception:\n    pass", "swallow"),
        ("return tx.execute(select(n)).scalar()", "slow_statement"),
        ("import json\nreturn json.dumps(n)", "late_import"),
    ],
)
def test_rule_finds(body: str, code: str) -> None:
    """Code whose result may differ at a replay is found."""
    assert code in codes(body)


TABLES = """
from sqlalchemy import Column, Integer, Table
from procedures import Database
db = Database("shop")
cfg = db.table("cfg", Column("id", Integer, primary_key=True), replicated=True)
typed: Table = db.table("typed", Column("id", Integer, primary_key=True))
rebound = db.table("rebound", Column("id", Integer, primary_key=True))
rebound = {}
"""


@pytest.mark.parametrize("body", ["tx.execute(cfg.insert().values(id=n))", "tx.execute(typed.update().values(id=n))"])
def test_statement_on_a_table_changes_no_global(body: str) -> None:
    """`cfg.insert()` is a statement, and what it changes is a table; that it is built at every call is told."""
    assert codes(body, outside=TABLES) == ["slow_statement"]


@pytest.mark.parametrize(
    "body",
    [
        "cfg.insert(0, n)",
        "cfg.update(n=n)",
        "cfg.info['x'] = n",
        "cfg.info.update(n=n)",
        "rebound.update()",
        "COUNTS.update()",
        "typed.comment = 'x'",
    ],
)
def test_table_itself_is_as_global_as_anything(body: str) -> None:
    """Only statements are let through: what hangs on the table, or is bound to its name later, outlives the call."""
    assert codes(body, outside=TABLES) == ["global_state"]


def test_local_of_a_table_name_is_no_table() -> None:
    """A parameter hides it, and may be changed."""
    assert codes("typed = {}\ntyped.update()", outside=TABLES) == []


MADE_AT_IMPORT = """
import helpers
from functools import partial
from helpers import SHARED_CLOCK
from typing import Any
CLOCK = time.time
AGAIN = CLOCK
TYPED: Any = time.time
PARTIAL = partial(time.time)
CLOCKS = {"now": time.time}
CHEAP = lambda: time.time()
SAVED = lambda text: open(text)
STARTED = time.time()
ALIAS = time
KINDS = frozenset(("a", "b"))
LISTED = list({"a", "b"})
ONCE = (number for number in range(3))
MODE = os.environ.get("MODE")
SENTINEL = object()
class Plain:
    pass
class Settings:
    def __init__(self):
        self.started = time.time()
SETTINGS = Settings()
def make(clock):
    def now():
        return clock()
    return now
MADE = make(time.time)
def counted():
    number = 0
    def bump():
        nonlocal number
        number += 1
        return number
    return bump
COUNTED = counted()
def given(clock=time.time, *, more=time.time):
    return clock()
def popped(kinds: set[str]):
    return kinds.pop()
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return CLOCK()", "clock"),
        ("return AGAIN()", "clock"),
        ("return TYPED()", "clock"),
        ("return PARTIAL()", "clock"),
        ("return CLOCKS['now']()", "clock"),
        ("return CHEAP()", "clock"),
        ("return SAVED('x')", "io"),
        ("return STARTED", "clock"),
        ("return ALIAS.time()", "clock"),
        ("return SHARED_CLOCK()", "clock"),
        ("return helpers.SHARED_CLOCK()", "clock"),
        ("return SETTINGS.started", "clock"),
        ("return MADE()", "clock"),
        ("return COUNTED()", "global_state"),
        ("return next(ONCE)", "global_state"),
        ("return given()", "clock"),
        ("return MODE", "environment"),
        ("return LISTED[0]", "set_order"),
        ("return [kind for kind in KINDS]", "set_order"),
        ("for kind in KINDS: tx.abort(kind)", "set_order"),
        ("return ','.join(KINDS)", "set_order"),
        ("return set(names).pop()", "set_order"),
        ("return popped(names)", "set_order"),
        ("return list(set(names).union('x'))", "set_order"),
        ("return list({'x': 1}.keys() & names)", "set_order"),
        ("return f'{set(names)}'", "set_order"),
        ("return repr(object())", "identity"),
        ("return f'{SENTINEL}'", "identity"),
        ("item = Plain()\nreturn str(item)", "identity"),
        ("return f'{make!r}'", "identity"),
    ],
)
def test_what_was_made_at_import_is_looked_at(body: str, code: str) -> None:
    """A variable of a module that a procedure uses may be a clock, a kept closure or a set, and so may a default."""
    assert codes(body, outside=MADE_AT_IMPORT, helpers="import time\nSHARED_CLOCK = time.time\n") == [code]


@pytest.mark.parametrize(
    "body",
    [
        "return n in KINDS",
        "return sorted(KINDS)",
        "return sorted(kind.upper() for kind in KINDS)",
        "return any(kind in names for kind in KINDS)",
        "return popped_not(KINDS)",
        "STARTED = n\nreturn STARTED",
        "return TEXT + str(LOADED)",
        "return Shown(), str(Shown()), f'{Shown()!s}', repr(Known(n)), str(Kind.A)",
        "raise ValueError(f'{object()!r}')",
        "item = Plain()\nitem = n\nreturn str(item)",
        "make = n\nreturn str(make)",
        "return BUILT",
        "return STEPS",
    ],
)
def test_what_was_made_at_import_may_be_anything_that_is_the_same_everywhere(body: str) -> None:
    """Files read once, statements built once, sets that are asked, names that are hidden, texts that a class makes."""
    outside = """
    import enum, dataclasses
    from sqlalchemy import select
    TEXT = open(os.path.join("a", "b")).read()
    def load():
        lines = []
        step = 0
        def add(line):
            nonlocal step
            step += 1
            lines.append(line)
        add(select(1))
        return lines
    LOADED = load()
    BUILT = select(1)
    STEPS = [number for number in range(3)]
    def popped_not(kinds: frozenset[str]):
        return "a" in kinds
    class Shown:
        def __str__(self):
            return "shown"
        def __hash__(self):
            return hash("shown")
    @dataclasses.dataclass
    class Known:
        n: int
    class Kind(enum.Enum):
        A = 1
    """
    assert codes(body, outside=MADE_AT_IMPORT + textwrap.dedent(outside)) == []


def test_procedure_that_a_function_declares_is_looked_at() -> None:
    """With all rules; of the function around it what it was given, and what it makes once."""
    source = """
import time
from sqlalchemy import select
def declare(clock, open):
    everything = select(1)
    def run(tx, n: int):
        print(n)
        return clock(), open(everything)
    return run
declare(time.time, len)
"""
    findings = lint({"app": source}, {"run": ("app", "declare.<locals>.run")})
    assert [(finding.line, finding.code) for finding in findings] == [(7, "io"), (10, "clock")]


@pytest.mark.parametrize(
    "body",
    [
        "return tx.now.isoformat()",
        "return tx.random.random()",
        "return random.Random(n).random()",
        "for name in sorted(set(names)): pass",
        "return len(set(names))",
        "unique = set(names)\nreturn n in unique",
        "COUNTS = {}\nCOUNTS[n] = 1\nreturn COUNTS",
        "mine = []\nmine.append(n)\nreturn mine",
        "try:\n    n / 0\nexcept ZeroDivisionError:\n    return LIMIT",
        "time = n\nreturn time",
        "open = n\nreturn open",
        "return datetime.fromisoformat('2026-01-01')",
        "return dt.timedelta(days=1)",
        "return datetime.fromtimestamp(n, dt.UTC)",
        "return tx.now.astimezone(tz=dt.UTC)",
        "with decimal.localcontext(prec=50):\n    return str(decimal.Decimal(n) / 3)",
        "with decimal.localcontext() as context:\n    context.prec = 50\n    return str(decimal.Decimal(n) / 3)",
    ],
)
def test_rule_lets_pass(body: str) -> None:
    """What depends on parameters, tx and rows alone is not found."""
    assert codes(body) == []


def test_helpers_are_followed_and_others_are_not() -> None:
    """A helper that a procedure calls is linted, through modules and classes; what nobody calls is not."""
    app = (
        "from helper import stamp, Box\ndef run(tx, n: int):\n    return stamp(), Box().get()\ndef loader():\n    import random\n"
    )
    helper = """
import time, random
def stamp():
    return _inner()
def _inner():
    return time.time()
class Box:
    def get(self):
        return random.random()
def unused():
    return time.time()
"""
    findings = lint({"app": app, "helper": helper}, {"run": ("app", "run")})
    assert {(finding.module, finding.function, finding.code) for finding in findings} == {
        ("helper", "_inner", "clock"),
        ("helper", "Box", "chance"),
    }


def test_mutable_defaults_and_caches_are_found() -> None:
    """A default that can be changed, and results kept between calls, outlive the call."""
    outside = """
    @functools.lru_cache
    def cached(n):
        return n
    def grows(n, seen=[]):
        return n
    """
    assert codes("return cached(n), grows(n)", outside=outside) == ["global_state"]


def test_findings_name_module_line_and_function() -> None:
    """A finding says where it is."""
    (finding,) = lint({"app": "import time\n\ndef run(tx, n: int):\n    return time.time()\n"}, {"run": ("app", "run")})
    assert (finding.module, finding.line, finding.function, finding.severity) == ("app", 4, "run", "error")
    assert "tx.now" in finding.message


@pytest.mark.parametrize(
    "declaration",
    [
        'db.table("t", Column("at", String, default=lambda tx: datetime.now().isoformat()))',
        'db.table("t", sa.Column("at", String, onupdate=stamp))',
        "class T(db.Model):\n    at: Mapped[str] = mapped_column(insert_default=stamp)",
        'db.table("t", Column("at", String, default=helpers.stamp))',
    ],
)
def test_defaults_of_columns_are_looked_at(declaration: str) -> None:
    """They run in calls, as procedures do; also those that no procedure names."""
    stamp = "from datetime import datetime\ndef stamp(tx):\n    return datetime.now().isoformat()\n"
    imports = "import helpers\nimport sqlalchemy as sa\nfrom sqlalchemy import Column\nfrom sqlalchemy.orm import mapped_column\n"
    findings = lint({"app": imports + stamp + declaration, "helpers": stamp}, {})
    assert [finding.code for finding in findings] == ["clock"]


def test_defaults_of_anything_else_are_not_looked_at() -> None:
    """`default=` of a command line is no column's."""
    assert lint({"app": "import time\nparser.add_argument('--at', default=lambda: time.time())"}, {}) == []
    assert lint({"app": "from sqlalchemy import Column\nColumn('at', default=lambda tx: tx.now)"}, {}) == []
