"""The module map, a `MODULES.md` in each package, made from the first sentence of each module's docstring.

`make map` writes it; `tests/project/test_module_map.py` holds it to the code.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.project.test_repository import PACKAGES, ROOT, sources

MAP: Final = "MODULES.md"
HEAD: Final = "# Modules of `{package}`\n\nThe first sentence of each module, written by `make map`.\n"


def sentence(text: str) -> str:
    """The first sentence of a module's docstring, in one line; without its full stop."""
    words = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`(])", words, maxsplit=1)[0].rstrip(".:").replace("|", "\\|")


def module_map(package: str) -> str:
    """What the map of a package has to hold."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path, text in sources(package):
        if path.stem != "__init__":
            folders[path.parent.as_posix()].append(f"| `{path.name}` | {sentence(text)} |")
    tables = (
        f"\n## {folder}/\n\n| module | what it is |\n|---|---|\n" + "\n".join(sorted(rows)) + "\n"
        for folder, rows in sorted(folders.items())
    )
    return HEAD.format(package=package) + "".join(tables)


def path_of(package: str) -> Path:
    """Where the map of a package lies."""
    return ROOT / package / MAP


if __name__ == "__main__":
    for name in PACKAGES:
        path_of(name).write_text(module_map(name))
