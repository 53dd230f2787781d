"""Texts with a place in memory: only those that surely have one are found."""

from __future__ import annotations

import ast

import pytest

from procedures.checks.default_reprs import text_of
from procedures.checks.module_names import ModuleNames

MODULE = """
import functools
class Plain: pass
class Derived(Plain): pass
class Named:
    def __str__(self): return "named"
class Formatted:
    def __format__(self, spec): return "formatted"
class Aliased:
    __repr__ = other
class Chosen:
    def __new__(cls): return 1
@functools.total_ordering
class Decorated: pass
def function(): pass
@functools.cache
def cached(): pass
"""


def shown(text: str, hidden: frozenset[str] = frozenset()) -> str | None:
    """What the expression shows of memory."""
    module = ModuleNames("app", MODULE)
    values: dict[str, ast.expr] = {"item": ast.parse("Plain()", mode="eval").body}
    (node,) = (
        node for node in ast.walk(ast.parse(text, mode="eval").body)
        if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Call) and (node.args or node.keywords))
    )  # fmt: skip
    found = text_of(module, node, values, hidden)
    return None if found is None else ast.unparse(found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("repr(object())", "object()"),
        ("str(Plain())", "Plain()"),
        ("format(Plain())", "Plain()"),
        ("str(item)", "item"),
        ("repr(Named())", "Named()"),
        ("f'{Named()!r}'", "Named()"),
        ("f'{Formatted()!s}'", "Formatted()"),
        ("f'{item}'", "item"),
        ("f'{function}'", "function"),
        ("str(lambda: 1)", "lambda: 1"),
    ],
)
def test_object_without_a_text_of_its_own(text: str, wanted: str) -> None:
    """Each way to make a text asks for its own methods."""
    assert shown(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "str(Named())", "f'{Named()}'", "f'{Formatted()}'", "str(Derived())", "repr(Aliased())", "str(Chosen())",
        "str(Decorated())", "str(cached)", "str(unknown)", "len(item)", "str(item, 'utf-8')", "f'{function()}'",
    ],
)  # fmt: skip
def test_object_that_may_have_one(text: str) -> None:
    """A base, a decorator or a method may make it; what is not known is passed over."""
    assert shown(text) is None


def test_hidden_name_is_not_the_modules() -> None:
    """A parameter of the same name holds anything."""
    assert shown("str(function)", frozenset(("function",))) is None
    assert shown("str(Plain())", frozenset(("Plain",))) is None
