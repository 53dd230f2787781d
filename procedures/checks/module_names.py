"""The names of a module of the application, as its source has them: what it imports, defines and binds.

One rule: nothing is imported or run; a name that is bound in another way than by a statement of the module is not known.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

_GOING_ON = frozenset(("random.Random", "itertools.count", "itertools.cycle", "iter", "enumerate"))  # each use changes them
_COLUMNS = frozenset(("Column", "mapped_column"))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEFAULTS = frozenset(("default", "insert_default", "onupdate"))


class ModuleNames:
    """Names of one module, and its source as a tree."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.imports: dict[str, str] = {}  # local name -> dotted name
        self.definitions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda] = {}
        self.defaults: list[ast.Name | ast.Attribute] = []  # what columns are given as defaults, by name
        self.variables: set[str] = set()
        self.tables: set[str] = set()  # those variables that are bound to `db.table(…)` alone
        self.going_on: set[str] = set()  # those that are bound to a generator, a counter or the like
        self.values: dict[str, ast.expr] = {}  # of variables that one statement binds, on its own; not of tables
        self._others: set[str] = set()
        self.tree = ast.parse(source)
        for node in self.tree.body:
            self._enter(node)
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and (self.dotted(call.func) or "").rpartition(".")[2] in _COLUMNS:
                    self._enter_defaults(call)
        self.tables -= self._others
        bindings = _bindings(self.tree.body)
        self.values = {
            name: value
            for name, value in self.values.items()
            if bindings[name] == 1 and name not in self.tables | self.imports.keys()
        }

    def _enter(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self.imports[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            base = self._base(node)
            self.imports.update({alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            self.variables |= bound
            (self.tables if _makes_table(node) else self._others).update(bound)
            called = self.dotted(node.value.func) if isinstance(node.value, ast.Call) else None
            if isinstance(node.value, ast.GeneratorExp) or called in _GOING_ON:
                self.going_on |= bound
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.value is not None:
                self._enter_value(targets[0].id, node.value)

    def _enter_value(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Name) and value.id in self.imports:  # another name of what is imported
            self.imports[name] = self.imports[value.id]
        else:
            self.values[name] = value

    def _enter_defaults(self, column: ast.Call) -> None:
        for keyword in column.keywords:
            if keyword.arg in _DEFAULTS and isinstance(keyword.value, ast.Lambda):
                self.definitions[f"{keyword.arg}= at {keyword.value.lineno}:{keyword.value.col_offset}"] = keyword.value
            elif keyword.arg in _DEFAULTS and isinstance(keyword.value, ast.Name | ast.Attribute):
                self.defaults.append(keyword.value)

    def _base(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parents = self.name.split(".")[: -node.level]
        return ".".join([*parents, node.module] if node.module else parents)

    def dotted(self, node: ast.expr) -> str | None:
        """`alias.attribute` as the dotted name that it stands for; None if it is not one."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None


def _makes_table(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
    """`accounts = db.table(…)`."""
    return (
        isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "table"
    )


def _bindings(statements: list[ast.stmt]) -> Counter[str]:
    """How often a module binds each name, functions and classes aside."""
    plain = [statement for statement in statements if not isinstance(statement, _DEFINITIONS)]
    names = (node for statement in plain for node in ast.walk(statement) if isinstance(node, ast.Name))
    defined = [statement.name for statement in statements if isinstance(statement, _DEFINITIONS)]
    return Counter(node.id for node in names if isinstance(node.ctx, ast.Store)) + Counter(defined)


def definition_of(
    modules: Mapping[str, ModuleNames], module: ModuleNames, node: ast.Name | ast.Attribute
) -> tuple[str, str] | None:
    """(module, definition) of what the node names; None if no module of the application defines it."""
    if isinstance(node, ast.Name) and node.id in module.definitions:
        return module.name, node.id
    dotted = module.dotted(node) or ""
    base, _, name = dotted.rpartition(".")
    return (base, name) if base in modules and name in modules[base].definitions else None


def value_of(modules: Mapping[str, ModuleNames], module: ModuleNames, node: ast.Name | ast.Attribute) -> tuple[str, str] | None:
    """(module, variable) of what the node names; None if no module of the application binds it once and for all."""
    if isinstance(node, ast.Name) and node.id in module.values:
        return module.name, node.id
    base, _, name = (module.dotted(node) or "").rpartition(".")
    return (base, name) if base in modules and name in modules[base].values else None
