"""Texts of objects that show where in memory the object is, such as `<app.Item object at 0x7f…>`.

One rule: only what surely has no text of its own is found: `object()`, functions, and objects of plain classes, which have no
base, no decorator and none of the methods that make a text.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Final

from procedures.checks.module_names import ModuleNames

_BY_REPR: Final = frozenset(("__repr__",))
_BY_STR: Final = frozenset(("__repr__", "__str__"))
_BY_FORMAT: Final = frozenset(("__repr__", "__str__", "__format__"))
_CALLS: Final = {"repr": _BY_REPR, "ascii": _BY_REPR, "str": _BY_STR, "format": _BY_FORMAT}
_UNSURE: Final = frozenset(("__new__", "__getattribute__"))  # a call of such a class may give anything


def text_of(
    module: ModuleNames, node: ast.Call | ast.FormattedValue, values: Mapping[str, ast.expr], hidden: Collection[str]
) -> ast.expr | None:
    """The object of which this makes a text with its place in memory; None if it makes none.

    `values`: what each variable holds, of those that are bound once. `hidden`: names that stand for nothing of the module.
    """
    if isinstance(node, ast.FormattedValue):
        made_by = _BY_FORMAT if node.conversion == -1 else _BY_STR if node.conversion == ord("s") else _BY_REPR
        shown = node.value
    else:
        made_by = _CALLS.get(module.dotted(node.func) or "", frozenset())
        if not made_by or len(node.args) != 1 or node.keywords:
            return None
        shown = node.args[0]
    return shown if _shows_place(module, _held_by(shown, values), made_by, hidden) else None


def _held_by(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    return values.get(node.id, node) if isinstance(node, ast.Name) else node


def _shows_place(module: ModuleNames, node: ast.expr, made_by: frozenset[str], hidden: Collection[str]) -> bool:
    if isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.Name):
        function = module.definitions.get(node.id)
        return isinstance(function, ast.FunctionDef) and not function.decorator_list and node.id not in hidden
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id in hidden:
        return False
    if module.dotted(node.func) == "object" and "object" not in module.definitions:
        return True
    made = module.definitions.get(node.func.id)
    return isinstance(made, ast.ClassDef) and _is_plain(made) and not (made_by | _UNSURE) & _names_of(made)


def _is_plain(made: ast.ClassDef) -> bool:
    return not (made.bases or made.keywords or made.decorator_list)


def _names_of(made: ast.ClassDef) -> set[str]:
    """Methods and attributes of the class."""
    methods = {part.name for part in ast.walk(made) if isinstance(part, ast.FunctionDef)}
    return methods | {part.id for part in ast.walk(made) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
