"""`check` of keys: does a procedure look for rows by another value than the one that routes it?

Such a statement is refused in a call where that value belongs to another partition (`statements.pinned_keys`), which tests with
one partition never show. What the source says is looked at: the parameters of the function, given to a statement at module level
that pins a key, or compared with a partition column. A parameter that the function binds again may be anything.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Table

from procedures.checks.lint import Finding
from procedures.declaration.database import Database
from procedures.declaration.procedure import Access, Procedure
from procedures.errors import StatementRefused
from procedures.statements.compiled import compile_statement, is_statement
from procedures.statements.key_pins import find_key_pins
from procedures.statements.pinned_keys import keyed_tables

_RUNS: Final = frozenset(("execute", "scalar", "scalars"))


def find_misrouted(database: Database, sources: Mapping[str, str]) -> Iterator[Finding]:
    """A warning for each place where a procedure looks for a key that may live elsewhere."""
    for procedure in database.procedure_list:
        function = procedure.function
        if procedure.access in (Access.SINGLE, Access.READ) and function.__module__ in sources:
            node = _node_of(sources[function.__module__], function)
            if node is not None:
                yield from _Misrouted(database, procedure, node).find()


def _node_of(source: str, function: Any) -> ast.FunctionDef | None:
    """The definition, which begins at its first decorator."""
    line = function.__code__.co_firstlineno
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__ and _first_line(node) == line:
            return node
    return None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


class _Misrouted:
    """Looks at one procedure."""

    def __init__(self, database: Database, procedure: Procedure, node: ast.FunctionDef) -> None:
        self._database, self._procedure, self._node = database, procedure, node
        self._globals = vars(sys.modules[procedure.function.__module__])
        bound = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        self._others = set(procedure.parameter_names) - {procedure.partition_by} - bound
        self._tx = next((argument.arg for argument in (*node.args.posonlyargs, *node.args.args)), "")

    def find(self) -> Iterator[Finding]:
        for node in ast.walk(self._node):
            if isinstance(node, ast.Compare):
                yield from self._compared(node)
            elif self._runs_statement(node):
                yield from self._run(node)  # type: ignore[arg-type] # a Call, as just checked

    def _runs_statement(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute), args=[ast.Name(), *_]):
                return name == self._tx and attribute in _RUNS
            case _:
                return False

    def _run(self, call: ast.Call) -> Iterator[Finding]:
        name: str = call.args[0].id  # type: ignore[attr-defined] # a Name, as just checked
        statement = self._globals.get(name)
        if not is_statement(statement):
            return
        try:
            compiled = compile_statement(statement)
        except StatementRefused:
            return  # which is a finding of its own
        given = _given(call)
        for pin in find_key_pins(compiled.sql, keyed_tables(self._database.tables)):
            said = [[given.get(compiled.keys.get(str(value.name), "")) for value in claim] for claim in pin.claims]
            if all(any(value in self._others for value in values) for values in said):
                value = next(value for value in said[0] if value in self._others)
                yield self._finding(call, pin.table, value, f"{name} looks for")

    def _compared(self, node: ast.Compare) -> Iterator[Finding]:
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            if not isinstance(node.ops[0], ast.Eq) or not isinstance(other, ast.Name) or other.id not in self._others:
                continue
            match one:
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id=table), attr="c" | "columns"), attr=column):
                    found = self._globals.get(table)
                    if isinstance(found, Table) and self._key_of(found.name) == column:
                        yield self._finding(node, found.name, other.id, "it looks for")
                case _:
                    pass

    def _key_of(self, table: str) -> str | None:
        return self._database.tables[table].partition_by if table in self._database.tables else None

    def _finding(self, node: ast.expr, table: str, parameter: Any, what: str) -> Finding:
        routing = self._procedure.partition_by
        return Finding(
            self._procedure.function.__module__, node.lineno, "other-partition", "warning", self._node.name,
            f"{what} {table}.{self._key_of(table)} = {parameter}, and {routing} says where the call runs: it fails where the two "
            f"belong to different partitions; route it by {parameter}, or make two calls",
        )  # fmt: skip


def _given(call: ast.Call) -> dict[str, str]:
    """Keyword -> name of the variable that is given, also in a dict."""
    found = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    for argument in call.args[1:]:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = value
    return {name: value.id for name, value in found.items() if isinstance(value, ast.Name)}
