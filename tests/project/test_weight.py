"""How heavy the program may be: a budget of lines for each package, and figures of its shape that only fall.

`weight_limits.json` holds both. A commit that needs more lines than a budget has raises it, and says what the lines buy; a figure
of the shape is never raised. What fell lowers its number: `python -m tests.project.test_weight` writes it down.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.project.test_repository import ROOT
from tests.project.weight import (
    BAG_FIELDS_MAX,
    BRANCHES_MIN,
    Module,
    Product,
    annexes,
    bags,
    circles,
    hugging,
    late_attributes,
    lines_of_packages,
    silent_functions,
    strangers,
)

LIMITS: Final = Path(__file__).with_name("weight_limits.json")
SLACK_LINES: Final = 300  # of a package: what may have been saved before its budget follows
FRAGMENT: Final = re.compile(r"^(Of|At|Those|Since|Until|Whose|Which|As|So|But|And|Or|Too)\b")
"""First words of a docstring that is neither a sentence nor a noun phrase."""


@cache
def product() -> Product:
    """The tree, read once."""
    return Product.read(ROOT)


def fragments(found: Product) -> list[str]:
    """Docstrings of functions and classes that begin in the middle of a sentence."""
    return [
        f"{module.path} {node.name}: {text}"
        for module in found.modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if FRAGMENT.match(text := (ast.get_docstring(node) or "").partition("\n")[0])
    ]


def figures(found: Product) -> dict[str, int]:
    """Figure -> its value; each is better the smaller it is."""
    return {
        "modules": len(found.modules),
        "annexes": len(annexes(found)),
        "modules within 10 lines of the cap": len(hugging(found)),
        "Callable types": found.count(r"\bCallable\["),
        "lambdas": found.count(r"\blambda\b"),
        "Protocols": found.count(r"\(Protocol\)|\bProtocol\["),
        "bags of more than 8 fields": sum(fields > BAG_FIELDS_MAX for fields in bags(found).values()),
        "bags": len(bags(found)),
        "attributes first set outside __init__": len(late_attributes(found)),
        "modules whose classes share no word with them": len(strangers(found)),
        "import circles": len(circles(found)),
        "long branching functions without a comment": len(silent_functions(found, BRANCHES_MIN)),
        "fmt: skip": found.count("fmt: skip"),
        "dict[str, Any]": found.count(re.escape("dict[str, Any]")),
        "docstrings that are fragments": len(fragments(found)),
    }


@cache
def shape() -> dict[str, int]:
    """The figures of the tree."""
    return figures(product())


def limits() -> dict[str, dict[str, int]]:
    """`lines` by package, and `figures`."""
    held: dict[str, dict[str, int]] = json.loads(LIMITS.read_text())
    return held


def test_packages_keep_their_budget_of_lines() -> None:
    """No package has more lines than its budget; a package without one gets it in the commit that makes it."""
    lines, budget = lines_of_packages(product()), limits()["lines"]
    assert {name: count for name, count in lines.items() if count > budget.get(name, 0)} == {}, (
        "make it smaller, or raise the budget in weight_limits.json and say in the commit what the lines buy"
    )


def test_budgets_follow_the_code() -> None:
    """A budget is at most 300 lines above what its package has, and no budget is left of a package that is gone."""
    lines, budget = lines_of_packages(product()), limits()["lines"]
    loose = {name: held for name, held in budget.items() if held > lines.get(name, -SLACK_LINES) + SLACK_LINES}
    assert loose == {}, "run `python -m tests.project.test_weight`"


@pytest.mark.parametrize("name", figures(Product(ROOT, ())))
def test_figures_only_fall(name: str) -> None:
    """What makes a program hard to read gets no more, and what has become less stays so."""
    found, limit = shape()[name], limits()["figures"][name]
    assert found <= limit, "find the plainer way; `tests.project.weight` has the functions that list the places"
    assert found == limit, "it fell: run `python -m tests.project.test_weight`"


def test_weights_are_recognised() -> None:
    """The figures above count what they are there to count."""
    a = Module(
        Path("cmdlog/x/a.py"), "from cmdlog.x import b\nclass B:\n    def __init__(self): ...\n    def go(self): self.late = 1\n"
    )
    b = Module(Path("cmdlog/x/b.py"), "from cmdlog.x import a\ndef old():\n    'Of each partition.'\n")
    found = Product(ROOT, (a, b))
    expected = {
        "annexes": 2,
        "attributes first set outside __init__": 1,
        "modules whose classes share no word with them": 1,
        "import circles": 1,
        "docstrings that are fragments": 1,
    }
    assert {name: count for name, count in figures(found).items() if name in expected} == expected


def lowered() -> dict[str, dict[str, int]]:
    """The limits with what fell; budgets of packages that have none yet."""
    held = limits() if LIMITS.exists() else {"lines": {}, "figures": {}}
    lines = lines_of_packages(product())
    return {
        "lines": {name: min(count, held["lines"].get(name, count)) for name, count in lines.items()},
        "figures": {name: min(count, held["figures"].get(name, count)) for name, count in shape().items()},
    }


if __name__ == "__main__":
    LIMITS.write_text(json.dumps(lowered(), indent=2) + "\n")
