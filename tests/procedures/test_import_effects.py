"""What an import does to the process: each rule has code that breaks it and code that does not."""

from __future__ import annotations

import pytest

from procedures.checks.import_effects import ImportEffect, import_effects
from procedures.checks.lint import lint
from procedures.checks.module_names import ModuleNames

HEAD = """
import decimal, locale, os, random, sys, time, warnings
from decimal import DefaultContext, getcontext, setcontext
from os import environ
"""


def effects(body: str, **others: str) -> list[ImportEffect]:
    """Of a module with this body, and other modules of the application."""
    sources = {"app": HEAD + body, **others}
    return list(import_effects({name: ModuleNames(name, source) for name, source in sources.items()}))


@pytest.mark.parametrize(
    "body",
    [
        "decimal.getcontext().prec = 50",
        "getcontext().prec = 50",
        "decimal.getcontext().prec += 10",
        "decimal.getcontext().traps[decimal.Inexact] = True",
        "decimal.getcontext().clear_traps()",
        "setattr(getcontext(), 'prec', 50)",
        "context = decimal.getcontext()\ncontext.prec = 50",
        "context = other = getcontext()\nother.rounding = decimal.ROUND_UP",
        "decimal.setcontext(decimal.Context(prec=50))",
        "setcontext(decimal.ExtendedContext)",
        "decimal.DefaultContext.prec = 50",
        "DefaultContext.prec, x = 50, 1",
        "decimal.BasicContext.traps[decimal.Inexact] = True",
        "decimal.ExtendedContext.prec = 50",
        "with decimal.localcontext():\n    decimal.DefaultContext.prec = 50",
        "with decimal.localcontext():\n    pass\ngetcontext().prec = 50",
        "with warnings.catch_warnings():\n    getcontext().prec = 50",
        "sys.set_int_max_str_digits(0)",
        "sys.setrecursionlimit(10_000)",
        "locale.setlocale(locale.LC_ALL, '')",
        "time.tzset()",
        "warnings.simplefilter('error')",
        "warnings.filterwarnings('ignore')",
        "warnings.resetwarnings()",
        "os.environ['TZ'] = 'UTC'",
        "environ['TZ'] = 'UTC'",
        "del os.environ['TZ']",
        "os.environ.setdefault('TZ', 'UTC')",
        "environ.update(TZ='UTC')",
        "os.putenv('TZ', 'UTC')",
        "random.seed(1)",
        "if sys.platform == 'linux':\n    time.tzset()",
        "if __name__ == '__main__':\n    pass\nelse:\n    random.seed(1)",
        "try:\n    pass\nfinally:\n    random.seed(1)",
        "class Settings:\n    getcontext().prec = 50",
        "def f(n=random.seed(1)):\n    pass",
        "def configure():\n    getcontext().prec = 50\nconfigure()",
        "def configure():\n    inner()\ndef inner():\n    random.seed(1)\nconfigure()",
    ],
)
def test_change_of_the_process_is_found(body: str) -> None:
    """At module level, in its blocks and classes, and in functions that it calls."""
    assert [effect.code for effect in effects(body)] == ["process_state"]


@pytest.mark.parametrize(
    "body",
    [
        "if __name__ == '__main__':\n    random.seed(1)\n    os.environ['X'] = __file__",
        "if '__main__' == __name__:\n    getcontext().prec = 50",
        "def main():\n    random.seed(1)\n    return __file__\nif __name__ == '__main__':\n    main()",
        "async def main():\n    random.seed(1)",
        "set_up = lambda: random.seed(1)",
        "class Tool:\n    def run(self):\n        getcontext().prec = 50",
        "with decimal.localcontext(prec=50) as context:\n    context.prec += 2\n    getcontext().prec = 60\n    THIRD = x / 3",
        "with decimal.localcontext():\n    setcontext(decimal.Context(prec=50))",
        "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')",
        "MONEY = decimal.Context(prec=50)\nMONEY.prec = 60\nPREC = getcontext().prec",
        "context = getcontext()\ncontext = Settings()\ncontext.prec = 50",
        "DICE = random.Random(1)\nDICE.seed(2)",
        "random = random.Random(1)\nrandom.seed(2)",
        "HOME = os.environ['HOME']\nTZ = os.environ.get('TZ', '')",
        "LIMIT = sys.getrecursionlimit()",
        "NAMES = {}\nNAMES['x'] = 1\nNAMES.update(y=2)",
        "def fill(random):\n    random.seed(1)\nfill(None)",
    ],
)
def test_what_changes_nothing_of_the_process_passes(body: str) -> None:
    """What no import runs, what a block puts back, what belongs to the application, and what only reads."""
    assert effects(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "from pathlib import Path\nDATA = Path(__file__).with_name('rates.json')",
        "sys.path.insert(0, os.path.dirname(__file__))",
        "def read():\n    return open(__file__)\nRATES = read()",
    ],
)
def test_file_of_the_module_is_found(body: str) -> None:
    """A module of a bundle has none, so it could not be loaded."""
    (effect,) = effects(body)
    assert effect.code == "bundle"
    assert "put the data into the module" in effect.message


def test_functions_are_followed_into_other_modules_and_named_once() -> None:
    """Also if several imports call them."""
    found = effects(
        "from setup import configure\nconfigure()\nconfigure()", setup="import random\ndef configure():\n    random.seed(1)\n"
    )
    assert [(effect.module, effect.function, effect.line) for effect in found] == [("setup", "configure", 3)]


def test_finding_says_what_to_write_instead() -> None:
    """It is an error of `lint`, at its line."""
    (finding,) = lint({"app": "from decimal import getcontext\n\ngetcontext().prec = 50\n"}, {})
    assert (finding.module, finding.line, finding.severity, finding.function) == ("app", 3, "error", "")
    assert "getcontext().prec" in finding.message
    assert "with decimal.localcontext(prec=50):" in finding.message
