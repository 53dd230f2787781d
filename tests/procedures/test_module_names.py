"""Names of a module, by its source alone."""

from __future__ import annotations

import ast

from procedures.checks.module_names import ModuleNames, definition_of, value_of


def expression(text: str) -> ast.Name | ast.Attribute:
    """The text as a tree."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Name | ast.Attribute)
    return node


def test_names_stand_for_what_was_imported() -> None:
    """Under another name, from a module, from a neighbour of the package."""
    module = ModuleNames(
        "shop.app", "import datetime as dt\nimport os.path\nfrom random import choice as pick\nfrom . import rates\n"
    )
    names = {text: module.dotted(expression(text)) for text in ("dt.date", "os.path.join", "pick", "rates.VAT", "print")}
    assert names == {
        "dt.date": "datetime.date",
        "os.path.join": "os.path.join",
        "pick": "random.choice",
        "rates.VAT": "shop.rates.VAT",
        "print": "print",
    }


def test_definitions_are_found_through_modules() -> None:
    """A name that is imported is that of the module that defines it; what no module defines is none."""
    modules = {
        "app": ModuleNames("app", "import helper\nfrom helper import stamp\ndef run(): pass\n"),
        "helper": ModuleNames("helper", "def stamp(): pass\nLIMIT = 5\n"),
    }
    found = {
        text: definition_of(modules, modules["app"], expression(text))
        for text in ("run", "stamp", "helper.stamp", "helper.LIMIT")
    }
    assert found == {
        "run": ("app", "run"),
        "stamp": ("helper", "stamp"),
        "helper.stamp": ("helper", "stamp"),
        "helper.LIMIT": None,
    }


def test_tables_are_those_names_that_are_bound_to_nothing_else() -> None:
    """A generator or a counter is remembered as one that each use changes."""
    module = ModuleNames("app", "a = db.table('a')\nb = db.table('b')\nb = {}\nfrom itertools import count\nn = count()\n")
    assert (module.tables, module.going_on, module.variables) == ({"a"}, {"n"}, {"a", "b", "n"})


def test_values_are_of_names_that_are_bound_once() -> None:
    """On their own, by an assignment; not of tables, of what is imported, or of what is bound in a loop or again."""
    source = """
import time
a = 1
b: int = 2
c = 3
c = 4
d, e = 5, 6
f = time
g = db.table("g")
h = 7
for h in range(3): pass
i = 8
def i(): pass
j = (n for n in a)
"""
    module = ModuleNames("app", source)
    assert sorted(module.values) == ["a", "b", "j"]
    assert (module.dotted(expression("f.time")), module.going_on) == ("time.time", {"j"})
    modules = {"app": module, "other": ModuleNames("other", "import app\nfrom app import b\n")}
    found = [value_of(modules, modules["other"], expression(text)) for text in ("b", "app.a", "app.c", "app.f")]
    assert found == [("app", "b"), ("app", "a"), None, None]
