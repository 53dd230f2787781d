"""The map of modules says what the modules say of themselves."""

import pytest

from tests.project.module_map import module_map, path_of, sentence
from tests.project.test_repository import PACKAGES, sources


@pytest.mark.parametrize("package", PACKAGES)
def test_module_map_is_the_code(package: str) -> None:
    """MODULES.md lists every module with the first sentence of its docstring: run `make map`."""
    assert path_of(package).read_text() == module_map(package), "run `make map`"


def test_every_module_says_what_it_is() -> None:
    """Each module of the product begins with a sentence for the map."""
    assert [str(path) for path, text in sources(*PACKAGES) if not sentence(text)] == []


def test_first_sentence_is_cut_out() -> None:
    """A sentence ends at a full stop or colon before a capital, not within a name or a number."""
    assert (
        sentence('"""Reads v1.2 of `cmdlog.wal`, and\nmore. Then the rest.\n\nOne rule."""')
        == "Reads v1.2 of `cmdlog.wal`, and more"
    )
