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


Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_of(function: Function) -> list[ast.stmt]:
    """What a function does, without its docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def outline_of(function: Function) -> tuple[type[ast.AST], ...]:
    """The kinds of its nodes, which are the same in all copies; nothing where it is too short to count."""
    kinds = tuple(type(node) for statement in body_of(function) for node in ast.walk(statement))
    statements = sum(issubclass(kind, ast.stmt) for kind in kinds)
    if statements < STATEMENTS_MIN and sum(issubclass(kind, ast.expr) for kind in kinds) < EXPRESSIONS_MIN:
        return ()
    return kinds


def renamed_body_of(function: Function) -> str:
    """What a function does, without the names of its variables."""
    names = [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
    names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    rename = _Renamed(names)
    return "\n".join(ast.dump(rename.visit(copy.deepcopy(statement))) for statement in body_of(function))


def repeated(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of functions with the same body -> where they are."""
    alike: dict[tuple[type[ast.AST], ...], list[tuple[Function, str]]] = defaultdict(list)
    for path, text in modules:
        for function in functions(text):
            if outline := outline_of(function):
                alike[outline].append((function, path))
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for function, path in (one for some in alike.values() if len(some) > 1 for one in some):
        found[renamed_body_of(function)].append((function.name, path))
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
