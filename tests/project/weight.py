"""How heavy the program is, in figures that its shape decides: `python -m tests.project.weight [FOLDER]`.

FOLDER is a checkout, by default this one: two checkouts compare two commits. Nothing of the product is imported or run; the
modules that a call passes are listed by `bench/path_length.py http --modules`.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

PACKAGES: Final = ("cmdlog", "procedures", "replay", "snapshot")
ANNEX_LINES_MAX: Final = 100  # of a module that one module in its own folder imports, and nothing else
CAP_HUGGING: Final = range(390, 401)
COMMENTED_LINES_MIN: Final = 25  # from which on a function says inside what its cases are
BRANCHES_MIN: Final = 3
BAG_FIELDS_MAX: Final = 8
BRANCHES: Final = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.Match, ast.ExceptHandler)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the product."""

    path: Path  # from the root of the checkout
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def name(self) -> str:
        """As it is imported."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(ast.parse(self.text)))

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    def imported(self, known: set[str]) -> set[str]:
        """Which of the known modules it imports, also for the type checker alone."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names} & known
                found |= named or {node.module}
        return found & known - {self.name}


@dataclass(frozen=True)
class Product:
    """All modules of a checkout."""

    root: Path
    modules: tuple[Module, ...]

    @staticmethod
    def read(root: Path) -> Product:
        paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
        return Product(root, tuple(Module(path.relative_to(root), path.read_text()) for path in paths))

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> the modules that it imports."""
        known = {module.name for module in self.modules}
        return {module.name: module.imported(known) for module in self.modules}

    def lines_of_c(self) -> int:
        """Lines of the steps in C."""
        paths = (path for package in PACKAGES for end in ("*.c", "*.h") for path in (self.root / package).rglob(end))
        return sum(path.read_text().count("\n") for path in paths)

    def count(self, pattern: str) -> int:
        """How often a pattern is in the text."""
        return sum(len(re.findall(pattern, module.text)) for module in self.modules)


def lines_of_packages(product: Product) -> dict[str, int]:
    """Folder -> its lines of Python and C; `cmdlog` by its own folders, and what is in none of them as `cmdlog`."""
    counted: dict[str, int] = defaultdict(int)
    for package in PACKAGES:
        for path in (product.root / package).rglob("*"):
            if path.suffix in (".py", ".c", ".h"):
                counted[budget_of(path.relative_to(product.root))] += path.read_text().count("\n")
    return dict(sorted(counted.items()))


def budget_of(path: Path) -> str:
    """The folder whose budget holds a file's lines."""
    inner = path.parts[:-1]
    return "/".join(inner[:2]) if inner[0] == "cmdlog" else "replay/spark" if inner[:2] == ("replay", "spark") else inner[0]


def annexes(product: Product) -> list[str]:
    """Small modules that only one module imports, one of the same folder: they belong to that one."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, imported in product.imports.items():
        for name in imported:
            importers[name].add(module)
    return [
        str(module.path)
        for module in product.modules
        if module.path.stem != "__init__" and module.lines < ANNEX_LINES_MAX
        if len(users := importers[module.name]) == 1 and next(iter(users)).rpartition(".")[0] == module.name.rpartition(".")[0]
    ]


def hugging(product: Product) -> list[str]:
    """Modules that are as long as they may be."""
    return [str(module.path) for module in product.modules if module.lines in CAP_HUGGING]


def strangers(product: Product) -> list[str]:
    """Modules whose classes share no word with the file: who has read the one name does not find the other."""
    found = []
    for module in product.modules:
        names = [made.name for made in ast.parse(module.text).body if isinstance(made, ast.ClassDef) and made.name[0] != "_"]
        if module.path.stem.strip("_") not in ("init", "main") and names and not any(_meet(name, module.path) for name in names):
            found.append(f"{module.path} {names[0]}")
    return found


def _meet(name: str, path: Path) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)]
    file = path.stem.strip("_").split("_")
    return any(_stem(word) == _stem(other) for word in words for other in file)


def _stem(word: str) -> str:
    """The part of a word that its plural and its verb share."""
    return word[: max(3, min(5, len(word) - 1))]


def circles(product: Product) -> list[list[str]]:
    """Groups of modules that import one another, counting what only the type checker imports (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        path.append(name)
        for other in sorted(product.imports[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in path:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(product.imports):
        if name not in order:
            visit(name)
    return found


def bags(product: Product) -> dict[str, int]:
    """Classes that only carry parameters to a constructor -> how many fields they have."""
    return {
        f"{module.path} {made.name}": sum(isinstance(line, ast.AnnAssign) for line in made.body)
        for module in product.modules
        for made in module.classes
        if re.search(r"(Ground|Parts|Hooks|Terms)$", made.name)
    }


def late_attributes(product: Product) -> list[str]:
    """Attributes of a class that another method than `__init__` sets first; fields and slots declare theirs."""
    found = []
    for module in product.modules:
        for made in module.classes:
            methods = [node for node in made.body if isinstance(node, Function)]
            if not any(method.name == "__init__" for method in methods):
                continue
            declared = {ast.unparse(node.target) for node in made.body if isinstance(node, ast.AnnAssign)}
            first = {name for method in methods if method.name == "__init__" for name in _set_by(method)} | declared
            late = {name for method in methods for name in _set_by(method)} - first
            found += [f"{module.path} {made.name}.{name}" for name in sorted(late - _slots(made))]
    return found


def _slots(made: ast.ClassDef) -> set[str]:
    assigned = (node for node in made.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__")
    return {str(inner.value) for node in assigned for inner in ast.walk(node.value) if isinstance(inner, ast.Constant)}


def _set_by(method: Function) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def silent_functions(product: Product, branches_min: int = 0) -> list[str]:
    """Functions of 25 lines or more without one comment inside, and with at least so many branches."""
    found = []
    for module in product.modules:
        lines = module.text.splitlines()
        for node in module.functions:
            inside = lines[node.lineno - 1 : node.end_lineno]
            branches = sum(isinstance(inner, BRANCHES) for inner in ast.walk(node))
            if len(inside) >= COMMENTED_LINES_MIN and branches >= branches_min and not any(" #" in line for line in inside):
                found.append(f"{module.path}:{node.lineno} {node.name}")
    return found


def bare_ids(product: Product) -> int:
    """Parameters and fields that are an id and say only that they are an `int`."""
    return product.count(r"\b(?:partition|partition_id|txn_id|index|term|lsn|node_id|node|voter)s?: int\b")


def figures(root: Path) -> Iterator[tuple[str, str]]:
    """The rows of the table."""
    product = Product.read(root)
    python = [module.lines for module in product.modules]
    tests = [path.read_text().count("\n") for path in (root / "tests").rglob("*.py")]
    held = bags(product)
    yield "product lines, Python + C", f"{sum(python) + product.lines_of_c():,}"
    yield "modules; median lines", f"{len(python)}; {statistics.median(python):.0f}"
    yield "annexes", str(len(annexes(product)))
    yield "modules of 390 to 400 lines", str(len(hugging(product)))
    yield (
        "`Callable[` / lambdas / Protocols",
        " / ".join(str(product.count(pattern)) for pattern in (r"\bCallable\[", r"\blambda\b", r"\(Protocol\)|\bProtocol\[")),
    )
    yield "parameter bags; most fields", f"{len(held)}; {max(held.values(), default=0)}"
    yield "attributes first set outside `__init__`", str(len(late_attributes(product)))
    yield "modules whose classes share no word with them", str(len(strangers(product)))
    yield "import circles, counting TYPE_CHECKING", str(len(circles(product)))
    yield (
        "functions of 25 lines or more without a comment; of these with 3 branches",
        (f"{len(silent_functions(product))}; {len(silent_functions(product, BRANCHES_MIN))}"),
    )
    yield (
        "`fmt: skip` / bare-int ids / `dict[str, Any]`",
        (f"{product.count('fmt: skip')} / {bare_ids(product)} / {product.count(re.escape('dict[str, Any]'))}"),
    )
    yield "lines of tests", f"{sum(tests):,}"
    yield "bytes of CHANGELOG", f"{(root / 'CHANGELOG.md').stat().st_size:,}"


if __name__ == "__main__":
    for name, figure in figures(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]):
        print(f"{figure:>22}  {name}")
