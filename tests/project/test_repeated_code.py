"""No function of the product is written twice, whatever its variables are called."""

import ast
import copy
from collections import defaultdict
from collections.abc import Iterable

from tests.project.test_repository import PACKAGES, functions, sources

STATEMENTS_MIN = 3
EXPRESSIONS_MIN = 25  # of a body with fewer statements

ALLOWED = frozenset({"_done done"})
"""Names of functions that may be the same: a call's way back to the event loop, which a shared function would cost a frame."""


class _Renamed(ast.NodeTransformer):
    """Variables by the order in which they come."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name: f"v{number}" for number, name in enumerate(dict.fromkeys(names))}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def body_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """What a function does, without its docstring and the names of its variables; None where it is too short to count."""
    names = [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
    names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    nodes = [node for statement in body for node in ast.walk(statement)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    if statements < STATEMENTS_MIN and sum(isinstance(node, ast.expr) for node in nodes) < EXPRESSIONS_MIN:
        return None
    rename = _Renamed(names)
    return "\n".join(ast.dump(rename.visit(copy.deepcopy(statement))) for statement in body)


def repeated(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of functions with the same body -> where they are."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, text in modules:
        for function in functions(text):
            if (body := body_of(function)) is not None:
                found[body].append((function.name, path))
    return {" ".join(sorted({name for name, _ in same})): [path for _, path in same] for same in found.values() if len(same) > 1}


def test_no_function_is_written_twice() -> None:
    """Two functions never do the same, statement by statement: move one to where both can import it."""
    found = repeated((str(path), text) for path, text in sources(*PACKAGES) if "samples" not in path.parts)
    assert {names: paths for names, paths in found.items() if names not in ALLOWED} == {}


def test_renamed_copies_are_recognised() -> None:
    """The rule above sees through other names of variables and another docstring."""
    first = 'def a(x):\n    """One."""\n    y = x + 1\n    print(y)\n    return y'
    second = "def b(z):\n    q = z + 1\n    print(q)\n    return q"
    assert repeated([("m.py", first), ("n.py", second)]) == {"a b": ["m.py", "n.py"]}
    assert repeated([("m.py", first), ("n.py", second.replace("+", "-"))]) == {}
