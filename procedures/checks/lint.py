"""Lint: what in the code of procedures could give another result on another replica.

It reads sources, starting from the procedures and from the functions that columns have as defaults, and following the names
that they use through the application's modules; code that none of them reaches (loaders, workloads) may do as it likes, unless it
runs when its module is imported (`import_effects.py`). It cannot prove determinism; `check.py` adds a double run.

An *error* breaks replay for sure when it is reached; a *warning* may be right, and deserves a look.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from procedures.checks.import_effects import import_effects
from procedures.checks.module_names import ModuleNames, definition_of

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to look at."""

    module: str
    line: int
    code: str  # short and stable, for filters
    severity: Severity
    function: str
    message: str


# dotted name, or a prefix ending in a dot or a star -> (code, what to do instead)
_CLOCK = ("clock", "the clock differs at every replay; use tx.now")
_CHANCE = ("chance", "differs at every replay; use tx.random or tx.uuid()")
_IO = ("io", "procedures may only touch rows: every replay and every replica would repeat this")
_PLACE = ("environment", "differs between machines; pass it as a parameter")
_CONTEXT = ("environment", "the later calls of a batch have it too; write `with decimal.localcontext(prec=50):`")
_NO_FILE = ("bundle", "code in the log has no file; put the data into the module, or pass it as a parameter")
_THREADS = ("threads", "procedures run on one thread; order between threads is not repeatable")
_PROCESSES = ("processes", "a procedure starts no process, and the call fails; do it in the caller, and pass the result")
_IDENTITY = ("identity", "differs between processes; order and compare by value")
_DYNAMIC = ("dynamic", "hides the running code from lint and from the bundle")
_BANNED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("time.", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"), _CLOCK),
    **dict.fromkeys(("datetime.date.today", "calendar.timegm"), _CLOCK),
    **dict.fromkeys(("random.", "secrets.", "numpy.random.", "os.urandom", "uuid.uuid1", "uuid.uuid4", "uuid.getnode"), _CHANCE),
    **dict.fromkeys(("open", "input", "print", "io.", "pathlib.", "shutil.", "tempfile.", "glob.", "logging."), _IO),
    **dict.fromkeys(("socket.", "ssl.", "urllib.", "http.", "requests.", "httpx.", "aiohttp.", "smtplib."), _IO),
    **dict.fromkeys(("sqlite3.", "apsw.", "ctypes.", "mmap."), _IO),
    **dict.fromkeys(("subprocess.", "multiprocessing.", "pty.", "os.fork", "os.forkpty", "os.exec*", "os.spawn*"), _PROCESSES),
    **dict.fromkeys(("os.posix_spawn*", "os.system", "os.popen", "concurrent.futures.ProcessPoolExecutor"), _PROCESSES),
    **dict.fromkeys(("os.", "sys.", "platform.", "locale.", "getpass.", "socket.gethostname"), _PLACE),
    **dict.fromkeys(("decimal.getcontext", "decimal.setcontext"), _CONTEXT),
    "__file__": _NO_FILE,
    **dict.fromkeys(("threading.", "concurrent.", "asyncio.", "queue.", "signal.", "contextvars."), _THREADS),
    **dict.fromkeys(("id", "hash", "gc.", "weakref."), _IDENTITY),
    **dict.fromkeys(("eval", "exec", "compile", "globals", "locals", "__import__", "importlib."), _DYNAMIC),
}
_ALLOWED = frozenset(("random.Random", "sys.maxsize", "os.path.basename", "os.path.join", "time.struct_time"))
_ORDERED_USES = frozenset(("sorted", "len", "min", "max", "any", "all", "set", "frozenset", "bool", "sum", "isinstance"))
_GROWING = ("append", "extend", "insert", "update", "setdefault", "add")
_MUTATORS = frozenset((*_GROWING, "remove", "pop", "clear", "discard", "popitem", "sort", "reverse"))
_OUTLIVES = "which outlives the call; use a table"
_CACHES = "keeps results between calls; right only for pure functions"
_TABLE_BUILDERS = frozenset(("insert", "update"))  # of a table, without arguments; of a list or a dict they have some
_BUILDERS = frozenset(f"sqlalchemy.{name}" for name in ("select", "insert", "update", "delete", "text"))


def lint(sources: Mapping[str, str], procedures: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Findings in the code that procedures reach, and in what runs when a module is imported, by module and line.

    Args:
        sources: module → source of the application (`Bundle.modules`).
        procedures: procedure → (module, function).
    """
    modules = {name: ModuleNames(name, source) for name, source in sources.items()}
    findings: set[Finding] = set()
    defaults = {root for module in modules.values() for root in _default_functions(modules, module)}
    for module, function in sorted(_reachable(modules, {*procedures.values(), *defaults})):
        node = modules[module].definitions[function]
        findings.update(_Visitor(modules[module], function).run(node))
    for effect in import_effects(modules):
        findings.add(Finding(effect.module, effect.line, effect.code, "error", effect.function, effect.message))
    return sorted(findings)


def _default_functions(modules: Mapping[str, ModuleNames], module: ModuleNames) -> Iterator[tuple[str, str]]:
    """(module, definition) of what is called for columns that a statement leaves out."""
    yield from ((module.name, name) for name, node in module.definitions.items() if isinstance(node, ast.Lambda))
    yield from (found for node in module.defaults if (found := definition_of(modules, module, node)) is not None)


def _reachable(modules: Mapping[str, ModuleNames], roots: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """(module, definition) of everything that the roots use, however deep."""
    found: set[tuple[str, str]] = set()
    waiting = [root for root in roots if root[0] in modules and root[1] in modules[root[0]].definitions]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        module = modules[current[0]]
        for node in ast.walk(module.definitions[current[1]]):
            if isinstance(node, ast.Name | ast.Attribute):
                target = definition_of(modules, module, node)
                waiting += [target] if target else []
    return found


class _Visitor(ast.NodeVisitor):
    """Looks at one definition."""

    def __init__(self, module: ModuleNames, function: str) -> None:
        self._module = module
        self._function = function
        self._findings: list[Finding] = []
        self._locals: set[str] = set()
        self._sets: set[str] = set()

    def run(self, node: ast.AST) -> list[Finding]:
        for child in ast.walk(node):
            if isinstance(child, ast.arg):
                self._locals.add(child.arg)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._locals.add(child.id)
        for child in ast.walk(node):
            if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None and self._is_set(child.value):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                self._sets.update(target.id for target in targets if isinstance(target, ast.Name))
        self.visit(node)
        return self._findings

    def _report(self, node: ast.AST, code: str, severity: Severity, message: str) -> None:
        line = getattr(node, "lineno", 0)
        self._findings.append(Finding(self._module.name, line, code, severity, self._function, message))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id not in self._locals:
            self._check_banned(node)
            self._check_going_on(node)

    def _check_going_on(self, node: ast.Name) -> None:
        if node.id in self._module.going_on:
            self._report(node, "global_state", "error", f"{node.id} keeps its state between calls; use tx.random, or a table")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id not in self._locals:
            self._check_banned(node)
            self._check_going_on(root)
        elif not isinstance(root, ast.Name):
            self.visit(node.value)

    def _check_banned(self, node: ast.Name | ast.Attribute) -> None:
        name = self._module.dotted(node) or ""
        if name in _ALLOWED or any(name.startswith(f"{allowed}.") for allowed in _ALLOWED):
            return
        for banned, (code, advice) in _BANNED.items():
            if name == banned or (banned[-1] in ".*" and name.startswith(banned.removesuffix("*"))):
                severity: Severity = "warning" if name == "print" or name.startswith("logging.") else "error"
                self._report(node, code, severity, f"{name}: {advice}")
                return

    def visit_Call(self, node: ast.Call) -> None:
        name = self._module.dotted(node.func) or ""
        if name == "random.Random" and not node.args:
            self._report(node, "chance", "error", "random.Random() without a seed differs at every replay; use tx.random")
        zone_at = 1 if name == "datetime.datetime.fromtimestamp" else 0  # where a time zone is given, if it is
        to_local = zone_at or (isinstance(node.func, ast.Attribute) and node.func.attr == "astimezone")
        if to_local and len(node.args) <= zone_at and not node.keywords:
            self._report(node, "environment", "error", f"{ast.unparse(node.func)}: in the machine's time zone; give it one")
        if name in _BUILDERS:
            self._report(node, "slow_statement", "warning", f"{name}: built at every call; build it once at module level")
        if self._builds_on_table(node):
            self._report(node, "slow_statement", "warning", f"{name}(): built at every call; build it once at module level")
        elif isinstance(node.func, ast.Attribute):
            self._check_mutation(node.func)
        if name not in _ORDERED_USES:
            for argument in node.args:
                self._check_set_order(argument)
        self.generic_visit(node)

    def _builds_on_table(self, node: ast.Call) -> bool:
        """`accounts.insert()`: a statement, which changes nothing before it is executed."""
        function = node.func
        return (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in self._module.tables - self._locals
            and function.attr in _TABLE_BUILDERS
            and not (node.args or node.keywords)
        )

    def _check_mutation(self, function: ast.Attribute) -> None:
        holder = function.value
        if isinstance(holder, ast.Name) and function.attr == "pop" and holder.id in self._sets:
            self._report(function, "set_order", "error", f"{holder.id}.pop() takes an arbitrary element")
        if function.attr in _MUTATORS and self._is_global(holder):
            self._report(function, "global_state", "error", f"changes {ast.unparse(holder)}, {_OUTLIVES}")

    def _is_global(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._module.variables and node.id not in self._locals

    def _is_named_elsewhere(self, node: ast.expr) -> bool:
        """Whether something belongs to a class, a function or an import."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        known = self._module.definitions.keys() | self._module.imports.keys()
        return isinstance(node, ast.Name) and node.id in known - self._locals

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._sets
        if isinstance(node, ast.BinOp):
            return self._is_set(node.left) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor)
        return isinstance(node, ast.Call) and self._module.dotted(node.func) in ("set", "frozenset")

    def _check_set_order(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._report(node, "set_order", "error", "the order of a set differs between processes; use sorted(…)")

    def visit_For(self, node: ast.For) -> None:
        self._check_set_order(node.iter)
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        for generator in node.generators:
            self._check_set_order(generator.iter)
        self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check_set_order(node.value)
        self.generic_visit(node)

    def _visit_global(self, node: ast.Global | ast.Nonlocal) -> None:
        if isinstance(node, ast.Global):
            self._report(node, "global_state", "error", f"global {', '.join(node.names)} outlives the call; use a table")

    visit_Global = visit_Nonlocal = _visit_global

    def _visit_targets(self, node: ast.Assign | ast.Delete) -> None:
        for target in node.targets:
            self._check_target(target)
        self.generic_visit(node)

    visit_Assign = visit_Delete = _visit_targets

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_target(node.target)
        self.generic_visit(node)

    def _check_target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Attribute | ast.Subscript) and (self._is_global(target) or self._is_named_elsewhere(target)):
            self._report(target, "global_state", "error", f"changes {ast.unparse(target)}, {_OUTLIVES}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]:
            if isinstance(default, ast.List | ast.Dict | ast.Set):
                self._report(default, "global_state", "error", "a mutable default outlives the call")
        for decorator in node.decorator_list:
            name = self._module.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
            if name in ("functools.cache", "functools.lru_cache"):
                self._report(decorator, "global_state", "warning", f"{name} {_CACHES}")
        for statement in node.body:
            self.visit(statement)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        caught = set(_caught(self._module, node.type))
        if node.type is None or "BaseException" in caught:
            self._report(node, "swallow", "error", "swallows tx.abort and failures of the machine; catch what you expect")
        elif caught & {"MemoryError", "RecursionError"}:
            self._report(node, "swallow", "error", "a failure of the machine is no outcome; let it pass")
        elif "Exception" in caught:
            self._report(node, "swallow", "warning", "may swallow a RecursionError or MemoryError; catch what you expect")
        self.generic_visit(node)

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._report(node, "late_import", "warning", "import at module level, so that the code is certainly in the bundle")

    visit_Import = visit_ImportFrom = _visit_import


def _caught(module: ModuleNames, node: ast.expr | None) -> Iterator[str]:
    for element in node.elts if isinstance(node, ast.Tuple) else [node] if node else []:
        yield module.dotted(element) or ""
