"""Lint: what in the code of procedures could give another result on another replica.

It reads sources, starting from the procedures and from the functions that columns have as defaults, and following the names
that they use through the application's modules; code that none of them reaches (loaders, workloads) may do as it likes, unless it
runs when its module is imported (`import_effects.py`). It cannot prove determinism; `check.py` adds a double run.

An *error* breaks replay for sure when it is reached; a *warning* may be right, and deserves a look.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from procedures.checks.default_reprs import text_of
from procedures.checks.import_effects import import_effects
from procedures.checks.module_names import ModuleNames
from procedures.checks.reached_code import ReachedCode, bound_by, names_bound_in, reached_code

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
_ITERATES = frozenset(("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "dict.fromkeys", "repr", "str"))
_SET_METHODS = frozenset(("union", "intersection", "difference", "symmetric_difference"))  # a set, of a set
_AT_IMPORT = frozenset(("clock", "chance", "environment", "identity", "set_order"))
"""Of code that ran at import, whose result procedures use. The rest of it, such as reading a file, is done once."""
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
        procedures: procedure → (module, qualified name of the function).
    """
    modules = {name: ModuleNames(name, source) for name, source in sources.items()}
    findings: set[Finding] = set()
    for code in reached_code(modules, procedures.values()):
        findings.update(_Visitor(modules[code.module], code).run())
    for effect in import_effects(modules):
        findings.add(Finding(effect.module, effect.line, effect.code, "error", effect.function, effect.message))
    return sorted(findings)


class _Visitor(ast.NodeVisitor):
    """Looks at one definition."""

    def __init__(self, module: ModuleNames, code: ReachedCode) -> None:
        self._module = module
        self._function, self._node = code.name, code.node
        self._at_import = code.at_import
        self._findings: list[Finding] = []
        self._locals = code.enclosing | names_bound_in(code.node)
        self._sets: set[str] = set()
        self._raised: set[ast.AST] = set()
        self._order_free: set[ast.expr] = set()  # comprehensions of which only what is in them counts
        self._held_sets: set[str] = set()  # that somebody else made, so it may be passed on
        self._values = {name: value for name, value in module.values.items() if name not in self._locals}

    def run(self) -> list[Finding]:
        bound = Counter(name for child in ast.walk(self._node) if (name := bound_by(child)) is not None)
        for child in ast.walk(self._node):
            if isinstance(child, ast.arg) and _is_set_hint(child.annotation) and bound[child.arg] == 1:
                self._held_sets.add(child.arg)
            if not isinstance(child, ast.Assign | ast.AnnAssign) or child.value is None:
                continue
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            self._values.update({name: child.value for name in names if bound[name] == 1})
            if self._is_set(child.value):
                self._sets.update(names)
        self.visit(self._node)
        return self._findings

    def _report(self, node: ast.AST, code: str, severity: Severity, message: str) -> None:
        if not self._at_import or code in _AT_IMPORT:
            self._add(node, code, severity, message)

    def _add(self, node: ast.AST, code: str, severity: Severity, message: str) -> None:
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
        if name in _ORDERED_USES:
            self._order_free.update(argument for argument in node.args if isinstance(argument, ast.GeneratorExp | ast.ListComp))
        joins = isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        if name not in _ORDERED_USES:
            for argument in node.args:
                self._check_set_order(argument, iterates=joins or name in _ITERATES)
        self._check_text(node)
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._check_set_order(node.value, iterates=True)
        self._check_text(node)
        self.generic_visit(node)

    def _check_text(self, node: ast.Call | ast.FormattedValue) -> None:
        shown = text_of(self._module, node, self._values, self._locals)
        if shown is not None and node not in self._raised:
            message = (
                f"the text of {ast.unparse(shown)} says where in memory it is; write what it means, or give its class a __repr__"
            )
            self._report(node, "identity", "error", message)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._raised.update(ast.walk(node))  # the text of an exception is no part of a result
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
        if function.attr == "pop" and (self._is_set(holder) or self._is_held_set(holder)):
            self._report(function, "set_order", "error", f"{ast.unparse(holder)}.pop() takes an arbitrary element")
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
            sides = (self._is_set(side) or _is_view(side) for side in (node.left, node.right))
            return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and any(sides)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
            return self._is_set(node.func.value)
        return self._module.dotted(node.func) in ("set", "frozenset")

    def _is_held_set(self, node: ast.expr) -> bool:
        """A parameter, or a constant of the module: it is passed on to ask what is in it."""
        if not isinstance(node, ast.Name) or node.id in self._sets:
            return False
        return node.id in self._held_sets or self._is_set(self._values.get(node.id, node))

    def _check_set_order(self, node: ast.expr, *, iterates: bool = True) -> None:
        if self._is_set(node) or (iterates and self._is_held_set(node)):
            self._report(node, "set_order", "error", "the order of a set differs between processes; use sorted(…)")

    def visit_For(self, node: ast.For) -> None:
        self._check_set_order(node.iter)
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        for generator in node.generators:
            self._check_set_order(generator.iter, iterates=node not in self._order_free)
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
            self.visit(default)
        if self._at_import:
            self._check_kept_closure(node)
        if node.name == "__hash__":  # orders nothing: a dict keeps its order, and sets are found where they are read
            return
        for decorator in node.decorator_list:
            name = self._module.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
            if name in ("functools.cache", "functools.lru_cache"):
                self._report(decorator, "global_state", "warning", f"{name} {_CACHES}")
        for statement in node.body:
            self.visit(statement)

    def _check_kept_closure(self, outer: ast.FunctionDef) -> None:
        """The function that it returns is kept by the module, and so is what that function rebinds."""
        given = {node.value.id for node in ast.walk(outer) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)}
        for inner in ast.walk(outer):
            if isinstance(inner, ast.FunctionDef) and inner is not outer and inner.name in given:
                for node in ast.walk(inner):
                    if isinstance(node, ast.Nonlocal):
                        names = ", ".join(node.names)
                        self._add(node, "global_state", "error", f"nonlocal {names}: the module keeps {inner.name}; use a table")

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


def _is_view(node: ast.expr) -> bool:
    """`rows.keys()`, of which `&` and the like make a set."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys" and not node.args


def _is_set_hint(node: ast.expr | None) -> bool:
    """`set[str]`, as the hint of a parameter."""
    named = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(named, ast.Name) and named.id in ("set", "frozenset")


def _caught(module: ModuleNames, node: ast.expr | None) -> Iterator[str]:
    for element in node.elts if isinstance(node, ast.Tuple) else [node] if node else []:
        yield module.dotted(element) or ""
