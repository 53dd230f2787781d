"""Which code of an application its procedures reach.

What a procedure runs is found by the names that it uses, through the application's modules. A variable of a module that it uses
was made when the module was imported. What made it is reached too, but it ran once, in each process for itself: a clock or the
order of a set in there gives the procedure another value on another replica.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from procedures.checks.module_names import ModuleNames, definition_of, value_of

_NESTED = ".<locals>."


@dataclass(frozen=True, slots=True)
class ReachedCode:
    """One definition, or what is assigned to one variable."""

    module: str
    name: str
    node: ast.AST
    at_import: bool = False  # it ran when the module was imported, and the procedure uses the result
    enclosing: frozenset[str] = frozenset()  # names of the function around it


def reached_code(modules: Mapping[str, ModuleNames], functions: Iterable[tuple[str, str]]) -> Iterator[ReachedCode]:
    """All that functions, by (module, qualified name), and defaults of columns reach, however deep, each once."""
    run = [code for name, function in functions if name in modules for code in _roots(modules[name], function)]
    run += [code for module in modules.values() for code in _default_functions(modules, module)]
    made: list[ReachedCode] = [code for code in run if code.at_import]
    run = [code for code in run if not code.at_import]
    found: set[ast.AST] = set()
    while run or made:  # what runs in calls goes first: it is looked at with all rules
        code = run.pop() if run else made.pop()
        if code.node in found:
            continue
        found.add(code.node)
        yield code
        for target in _used_by(modules, code):
            (made if target.at_import else run).append(target)


def names_bound_in(node: ast.AST) -> frozenset[str]:
    """Parameters, variables and functions of a function, and of those in it; not what it imports, nor methods of classes."""
    nodes = list(ast.walk(node))
    methods = {part for child in nodes if isinstance(child, ast.ClassDef) for part in child.body}
    others = (child for child in nodes if child is not node and not (isinstance(child, ast.FunctionDef) and child in methods))
    return frozenset(name for child in others if (name := bound_by(child)) is not None)


def bound_by(node: ast.AST) -> str | None:
    """The name that this node gives to something."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ExceptHandler(name=name):
            return name
        case _:
            return None


def _roots(module: ModuleNames, qualified: str) -> Iterator[ReachedCode]:
    """A function; one that another function made, with what that did and was given when the module called it."""
    outer, _, rest = qualified.partition(".")
    around = module.definitions.get(outer)
    if around is None:
        return
    if _NESTED not in qualified:
        yield ReachedCode(module.name, outer, around)
        return
    inner = rest.rpartition(".")[2]
    for node in ast.walk(around):
        if isinstance(node, ast.FunctionDef) and node.name == inner and node is not around:
            yield ReachedCode(module.name, inner, node, enclosing=names_bound_in(around))
    yield ReachedCode(module.name, outer, around, at_import=True)
    for statement in module.tree.body:
        call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == outer:
            yield ReachedCode(module.name, outer, call, at_import=True)


def _default_functions(modules: Mapping[str, ModuleNames], module: ModuleNames) -> Iterator[ReachedCode]:
    """What is called for columns that a statement leaves out."""
    lambdas = {name: node for name, node in module.definitions.items() if isinstance(node, ast.Lambda)}
    yield from (ReachedCode(module.name, name, node) for name, node in lambdas.items())
    for default in module.defaults:
        if (found := definition_of(modules, module, default)) is not None:
            yield ReachedCode(*found, modules[found[0]].definitions[found[1]])


def _used_by(modules: Mapping[str, ModuleNames], code: ReachedCode) -> Iterator[ReachedCode]:
    """Definitions and values that the code names."""
    module, bound = modules[code.module], names_bound_in(code.node) | code.enclosing
    decorators = {part for decorator in getattr(code.node, "decorator_list", ()) for part in ast.walk(decorator)}
    for node in ast.walk(code.node):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        if (found := definition_of(modules, module, node)) is not None:
            yield ReachedCode(*found, modules[found[0]].definitions[found[1]], code.at_import)
        elif node not in decorators and (found := value_of(modules, module, node)) is not None and not _is_of(node, bound):
            value = modules[found[0]].values[found[1]]
            yield ReachedCode(*found, value, code.at_import or not isinstance(value, ast.Lambda))


def _is_of(node: ast.expr, names: frozenset[str]) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names
