"""How objects get what they need: by their constructor, or by a method of theirs; never by an assignment from outside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_repository import functions, sources, syntax_nodes

PARAMETERS_MAX = 8
WIRED = (Path("cmdlog/member"), Path("cmdlog/node"), Path("cmdlog/api"))

FOREIGN_ASSIGNMENTS = {
    "cmdlog/node/queries/query.py": {
        "guard.mode",  # what the statement about to run may do; as in procedures/execution
        "connection.authorizer",  # apsw's way
        "cursor.exec_trace",  # the same
    },
    "cmdlog/api/connections/tls.py": {"context.minimum_version", "context.verify_mode"},  # the ssl module's way
}
"""What may stay. A line goes when its assignment does; none is added without a reason beside it."""

LONG_CONSTRUCTORS = {
    "cmdlog/child_process.py ChildProcess": 9,  # what a process can be given
}
"""Constructors that need more parameters, and how many. A number may only fall."""


def foreign_assignments(text: str) -> Iterator[str]:
    """Each `x.y` that a function assigns, where `x` is neither `self` nor an object that this function has made."""
    for function in functions(text):
        own = {"self", "cls"} | set(_made(function))
        for node in ast.walk(function):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            if not isinstance(node.value, ast.Name) or node.value.id not in own:
                yield ast.unparse(node)


def _made(function: ast.AST) -> Iterator[str]:
    """Variables that are assigned a call of a class."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2].lstrip("_")
            if called[:1].isupper() or called == "cls":
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self.x = 1", []),
        ("node = Node(); node.x = 1", []),
        ("node.x = 1", ["node.x"]),
        ("self.log.kick = other", ["self.log.kick"]),
        ("node.count += 1", ["node.count"]),
        ("self.a, node.b = 1, 2", ["node.b"]),
        ("self._streams[0].up = True", ["self._streams[0].up"]),
    ],
)
def test_assignments_from_outside_are_recognised(line: str, found: list[str]) -> None:
    """The rule below finds what it is there to find."""
    assert list(foreign_assignments(f"def wire(self, node):\n    {line}")) == found


def test_no_object_is_wired_from_outside() -> None:
    """Node and API set no attribute of another object: it gets a part at construction, or has a method for the event."""
    found: dict[str, set[str]] = {}
    for path, text in sources("cmdlog"):
        if any(path.is_relative_to(folder) for folder in WIRED) and (names := set(foreign_assignments(text))):
            found[str(path)] = names
    assert found == FOREIGN_ASSIGNMENTS


def test_constructors_are_short() -> None:
    """No `__init__` has more than 8 parameters: beyond that, some of them belong together and get a name."""
    found = {}
    for path, text in sources("cmdlog"):
        for made in (node for node in syntax_nodes(text) if isinstance(node, ast.ClassDef)):
            for method in (node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"):
                takes = method.args
                count = len(takes.posonlyargs) + len(takes.args) + len(takes.kwonlyargs) - 1
                if count > PARAMETERS_MAX:
                    found[f"{path} {made.name}"] = count
    assert found == LONG_CONSTRUCTORS
