"""What procedures reach: what they run, and what was made for them when modules were imported."""

from __future__ import annotations

import ast

from procedures.checks.module_names import ModuleNames
from procedures.checks.reached_code import names_bound_in, reached_code

APP = """
import helper
LIMIT = helper.limit()
UNUSED = helper.other()
QUICK = lambda: helper.quick()
def run(tx, UNUSED):
    return LIMIT, QUICK(), UNUSED
def outer(given):
    def inner(tx):
        return given, LIMIT
    return inner
outer(helper.other)
"""
HELPER = "def limit(): pass\ndef other(): pass\ndef quick(): pass\n"


def reached(*functions: str) -> set[tuple[str, bool]]:
    """Name, and whether it ran at import, of all that these functions of `app` reach."""
    modules = {"app": ModuleNames("app", APP), "helper": ModuleNames("helper", HELPER)}
    return {(code.name, code.at_import) for code in reached_code(modules, [("app", function) for function in functions])}


def test_what_made_a_variable_ran_at_import() -> None:
    """A lambda runs when it is called; a parameter hides a variable; what no module has is passed over."""
    expected = {("run", False), ("LIMIT", True), ("limit", True), ("QUICK", False), ("quick", False)}
    assert reached("run") == expected
    assert reached("run", "nothing", "run.method") == expected


def test_function_that_another_one_made_has_what_that_was_given() -> None:
    """It runs in calls, the one around it ran at import."""
    assert reached("outer.<locals>.inner") == {
        ("inner", False), ("outer", True), ("other", True), ("LIMIT", True), ("limit", True),
    }  # fmt: skip


def test_names_of_a_function_are_what_it_binds() -> None:
    """Not its own name, what it imports, or a method of a class in it."""
    source = """
def run(tx, n=1):
    import time
    a = [b for b in n]
    def inner(c): pass
    class Box:
        def open(self): pass
    try:
        pass
    except ValueError as error:
        pass
"""
    assert names_bound_in(ast.parse(source).body[0]) == {"tx", "n", "a", "b", "inner", "c", "self", "error"}
