"""What the modules of an application do to the process while they are imported, and what of it a bundle cannot repeat.

A module that sets something of the process (a decimal context, the locale, the environment) sets it for whatever else runs there:
other versions of the code, which replays and rollbacks load beside it. And a module of a bundle has no file.

It looks at the statements that an import runs, and at the functions that they call by name. A function that only others call is
not looked at, nor is what `if __name__ == "__main__":` holds, which no import and no bundle runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from procedures.checks.module_names import ModuleNames, definition_of

_DECIMALS = "write `with decimal.localcontext(prec=50):` in the procedure"
_WARNINGS = "raise an exception where a call must end: no warning of a call is shown or raised, whatever the filters"
_ENVIRONMENT = "set it where the program is started, and pass procedures such values as parameters"
_CALLS: Final = {
    "decimal.setcontext": _DECIMALS,
    "sys.set_int_max_str_digits": "convert long numbers by hex() and int(text, 16): calls have the standard limit",
    "sys.setrecursionlimit": "write a loop: calls have the standard limit",
    "locale.setlocale": "format values in the caller",
    "time.tzset": "convert times in the caller, or with a zone that you name",
    **dict.fromkeys(("warnings.simplefilter", "warnings.filterwarnings", "warnings.resetwarnings"), _WARNINGS),
    **dict.fromkeys(("os.putenv", "os.unsetenv"), _ENVIRONMENT),
    "random.seed": "use tx.random in the procedure",
}
_CURRENT: Final = "decimal.getcontext"
_HOLDERS: Final = {
    **dict.fromkeys((_CURRENT, "decimal.DefaultContext", "decimal.BasicContext", "decimal.ExtendedContext"), _DECIMALS),
    "os.environ": _ENVIRONMENT,
}
_CHANGES: Final = frozenset(("update", "setdefault", "pop", "popitem", "clear", "clear_traps"))  # methods of those
_RESTORES: Final = {  # blocks that put back what is changed in them
    "decimal.localcontext": frozenset((_CURRENT, "decimal.setcontext")),
    "warnings.catch_warnings": frozenset(("warnings.simplefilter", "warnings.filterwarnings", "warnings.resetwarnings")),
}
_NO_FILE = (
    "__file__: code in the log has no file, so a replay cannot load this module; put the data into the module, or pass it as a "
    "parameter"
)


@dataclass(frozen=True, slots=True)
class ImportEffect:
    """One thing that an import does."""

    module: str
    line: int
    code: str
    function: str  # that the import calls; "" for the module's own statements
    message: str


def import_effects(modules: Mapping[str, ModuleNames]) -> Iterator[ImportEffect]:
    """What the imports of these modules do, each effect once."""
    done: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in sorted(modules, reverse=True)]
    while waiting:
        name, function = waiting.pop()
        if (name, function) in done:
            continue
        done.add((name, function))
        module = modules[name]
        node: ast.AST = module.definitions[function] if function else module.tree
        if function and not isinstance(node, ast.FunctionDef):
            continue
        visitor = _ImportVisitor(module, function)
        yield from visitor.of_body(node)
        waiting += [target for call in visitor.called if (target := definition_of(modules, module, call)) is not None]


class _ImportVisitor(ast.NodeVisitor):
    """Looks at the statements of a module, or of a function that an import calls; not into the functions that they define."""

    def __init__(self, module: ModuleNames, function: str) -> None:
        self.called: list[ast.Name | ast.Attribute] = []
        self._module, self._function = module, function
        self._effects: list[ImportEffect] = []
        self._contexts: set[str] = set()  # names of the current decimal context
        self._own = module.definitions.keys() | _bound_by(module.tree.body)  # names that stand for nothing of Python's
        self._restored: frozenset[str] = frozenset()

    def of_body(self, node: ast.AST) -> list[ImportEffect]:
        """The effects of a module, or of a function when it is called."""
        for child in ast.walk(node) if self._function else ():
            if isinstance(child, ast.arg):
                self._own = self._own | {child.arg}
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._own = self._own | {child.id}
        for statement in getattr(node, "body", ()):
            self.visit(statement)
        return self._effects

    def _report(self, node: ast.expr, code: str, message: str) -> None:
        self._effects.append(ImportEffect(self._module.name, node.lineno, code, self._function, message))

    def _report_change(self, node: ast.expr, advice: str) -> None:
        self._report(node, "process_state", f"{ast.unparse(node)}: an import changes it for the whole process; {advice}")

    def _name(self, node: ast.expr) -> str:
        """Dotted name of something that is not the application's own; "" for all else."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        own = isinstance(root, ast.Name) and root.id in self._own
        return "" if own else self._module.dotted(node) or ""

    def _held_by(self, node: ast.expr) -> str:
        """What of the process the node is a part of, as `_HOLDERS` has it; "" if of nothing."""
        while True:
            if isinstance(node, ast.Name) and node.id in self._contexts:
                return _CURRENT
            if isinstance(node, ast.Call) and self._name(node.func) == _CURRENT:
                return _CURRENT
            if (name := self._name(node)) in _HOLDERS and name != _CURRENT:
                return name
            if not isinstance(node, ast.Attribute | ast.Subscript):
                return ""
            node = node.value

    def _check_change(self, node: ast.expr, held: ast.expr) -> None:
        holder = self._held_by(held)
        if holder and holder not in self._restored:
            self._report_change(node, _HOLDERS[holder])

    def visit_Call(self, node: ast.Call) -> None:
        name, function = self._name(node.func), node.func
        if name in _CALLS and name not in self._restored:
            self._report_change(function, _CALLS[name])
        if isinstance(function, ast.Attribute) and function.attr in _CHANGES:
            self._check_change(function, function.value)
        if name in ("setattr", "delattr") and node.args:
            self._check_change(node.args[0], node.args[0])
        if isinstance(function, ast.Name | ast.Attribute):
            self.called.append(function)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "__file__" and isinstance(node.ctx, ast.Load) and node.id not in self._own:
            self._report(node, "bundle", _NO_FILE)

    def _visit_assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete) -> None:
        for target in node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(part, ast.Attribute | ast.Subscript):
                    self._check_change(part, part)
                elif isinstance(part, ast.Name) and not isinstance(node, ast.Delete):
                    self._bind(part.id, node.value)
        self.generic_visit(node)

    visit_Assign = visit_AnnAssign = visit_AugAssign = visit_Delete = _visit_assignment

    def _bind(self, name: str, value: ast.expr | None) -> None:
        self._contexts.discard(name)
        if isinstance(value, ast.Call) and self._name(value.func) == _CURRENT:
            self._contexts.add(name)

    def visit_With(self, node: ast.With) -> None:
        before = self._restored
        for item in node.items:
            self.visit(item)
            if isinstance(item.context_expr, ast.Call):
                self._restored = self._restored | _RESTORES.get(self._name(item.context_expr.func), frozenset())
        for statement in node.body:
            self.visit(statement)
        self._restored = before

    def visit_If(self, node: ast.If) -> None:
        if not _asks_for_main(node.test):
            self.generic_visit(node)
            return
        for statement in node.orelse:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
        for part in (*node.decorator_list, *defaults):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """It runs when it is called."""


def _bound_by(statements: list[ast.stmt]) -> set[str]:
    """Names that are assigned to, not those of what has a part that is."""
    assignments = (statement for statement in statements if isinstance(statement, ast.Assign | ast.AnnAssign))
    names = (node for statement in assignments for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _asks_for_main(test: ast.expr) -> bool:
    """`__name__ == "__main__"`."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    return names == {"__name__"} and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
