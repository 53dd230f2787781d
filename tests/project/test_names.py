"""Names: a class is called one thing, a function says what it does to what, and a module's words are known."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_repository import PACKAGES, ROOT, functions, sources, syntax_nodes

SHARED_CLASSES = frozenset({"InvalidParameters"})
"""Public names of `cmdlog` and of `procedures`: two packages that an application imports for different things."""

VAGUE = frozenset(
    ("begin", "goes_on", "gone_on", "heed", "keep", "look", "note", "say", "settle", "stated", "take", "tell", "tend", "told",
     "told_of", "whole")
)  # fmt: skip
"""Function names that do not say what they do to what: a search for them finds everything and nothing."""
VAGUE_ALLOWED = frozenset({("cmdlog/cli/directory/snapshot.py", "take")})  # the command `cmdlog snapshot take`

MODULE_WORDS = ROOT / "tests" / "project" / "module_words.txt"


def classes(text: str) -> Iterator[ast.ClassDef]:
    """Every class of a module, nested ones too."""
    return (node for node in syntax_nodes(text) if isinstance(node, ast.ClassDef))


def repeated(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Names that are defined in more than one place."""
    return {name: places for name, places in found.items() if len(places) > 1}


def vague(text: str) -> list[str]:
    """Functions of a module whose whole name is a verb that could mean anything."""
    return [node.name for node in functions(text) if node.name.strip("_") in VAGUE]


def product() -> dict[str, str]:
    """Path -> text of every module that is installed."""
    return {str(path): text for path, text in sources(*PACKAGES)}


def test_class_names_are_unique() -> None:
    """No class name of the product is defined twice: call each by what tells it from the other (`ForkPlace`, `BlockAt`)."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in product().items():
        for node in classes(text):
            found[node.name].append(path)
    assert {name: places for name, places in repeated(found).items() if name not in SHARED_CLASSES} == {}


def test_functions_say_what_they_do_to_what() -> None:
    """No function is called by a bare verb: name its object too (`take_records`, `describe_gap`), so that a search finds it."""
    found = {(path, name) for path, text in product().items() for name in vague(text)}
    assert found - VAGUE_ALLOWED == set()


@pytest.mark.parametrize("name", ["take", "_note", "told_of"])
def test_vague_names_are_recognised(name: str) -> None:
    """The rule above finds what it is there to find."""
    assert vague(f"class A:\n    def {name}(self): ...") == [name]


def test_words_of_modules_are_known() -> None:
    """Each word of a module's name is in module_words.txt: use one of these, or add the field's word for a new concept."""
    known = MODULE_WORDS.read_text().split()
    assert known == sorted(set(known))
    used = {word for path in product() for word in Path(path).stem.strip("_").split("_") if word}
    assert used - set(known) == set(), "unknown words"
    assert set(known) - used == set(), "words that no module uses any more: remove them from the list"
