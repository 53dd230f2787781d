"""What holds for every file of the repository, read from git's list of tracked files."""

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cmdlog", "procedures", "replay", "snapshot")
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 400
LONGER_MODULES = frozenset({
    "cmdlog/api/connections/connection.py",  # a state machine: its table needs every one of its methods
})  # fmt: skip
"""Modules that may be longer. The list only gets shorter: what is split leaves it, and nothing joins it."""
LONGER_MODULE_LINES_MAX = 500
FOLDER_MODULES_MAX = 15

MACHINE_TRACES = {
    "home folder": re.compile(r"/(?:root|home/[a-z0-9_.-]+|Users/[A-Za-z0-9_.-]+)/"),
    "package index": re.compile(r"(?:pypi\.org/simple|pythonhosted\.org|/simple/?\s*$)", re.MULTILINE),
    "index option": re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host|^\s*-[if]\s+\S*:/", re.MULTILINE),
    "address with credentials": re.compile(r"\w+://[^/\s:@\"'{}]+:[^/\s@\"'{}]+@"),
}
"""What a file says only because of the machine that it was written on."""


@cache
def tracked() -> tuple[Path, ...]:
    """Paths of the tracked files that exist; skips outside a clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone: nothing says which files belong to the project")
    return tuple(path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file())


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    """Tracked Python files below `folders`, with their text."""
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders:
            yield path.relative_to(ROOT), path.read_text()


@cache
def syntax_nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a module, parents first; parsed once for all tests of this folder, which one process runs."""
    nodes = tuple(ast.walk(ast.parse(text)))
    gc.freeze()  # a million of them, which the collector would look at again and again
    return nodes


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module, nested ones too."""
    for node in syntax_nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("home folder", 'DATA = "/home/' + 'ada/cmdlog"'),
        ("home folder", "cd /root" + "/cmdlog"),
        ("package index", "https://pypi.org" + "/simple"),
        ("package index", "fetch mirror.example/root/" + "simple"),
        ("index option", "--extra-index" + "-url https://mirror.example"),
        ("index option", "-i https:" + "//mirror.example"),
        ("address with credentials", "https://ada" + ":secret@mirror.example"),
    ],
)
def test_traces_of_a_machine_are_recognised(kind: str, line: str) -> None:
    """The patterns below find what they are there to find."""
    assert MACHINE_TRACES[kind].search(line)


def test_no_file_carries_traces_of_a_machine() -> None:
    """No tracked file names a home folder, a package index or a credential: a clone works the same everywhere."""
    found = []
    for path in tracked():
        data = path.read_bytes()
        if path == Path(__file__) or b"\0" in data:
            continue
        text = data.decode()
        name = path.relative_to(ROOT)
        found += [f"{name}: {kind}" for kind, pattern in MACHINE_TRACES.items() if pattern.search(text)]
    assert found == []


def test_constraints_pin_one_version_each_and_nothing_else() -> None:
    """Each line of constraints.txt is a comment or `name==version`, and no name comes twice."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pinned = [re.fullmatch(r"([A-Za-z0-9._-]+)==[0-9][A-Za-z0-9.]*", line) for line in lines]
    assert [line for line, match in zip(lines, pinned, strict=True) if match is None] == []
    names = [re.sub(r"[-_.]+", "-", match[1]).lower() for match in pinned if match]
    assert len(names) == len(set(names))


def test_every_direct_dependency_is_pinned() -> None:
    """A dependency that pyproject.toml names has its version in constraints.txt: installs are the same every time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    names = {re.split(r"[\[<>=]", item)[0].lower() for item in wanted} - {project["name"]}
    assert names - {name.lower() for name in pinned} == set()


def test_every_package_is_installed() -> None:
    """The explicit list of packages in pyproject.toml is what the source folders hold."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    held = {".".join(path.parent.parts) for path, _ in sources(*PACKAGES)}
    assert sorted(listed) == sorted(held)


def test_functions_fit_on_a_screen() -> None:
    """No function of the product is longer than 60 lines."""
    too_long = [
        f"{path}:{node.lineno} {node.name}"
        for path, text in sources(*PACKAGES)
        for node in functions(text)
        if (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_modules_are_about_one_thing() -> None:
    """No module of the product has more than 400 lines; the listed ones have at most 500, and none is listed in vain."""
    lines = {str(path): text.count("\n") for path, text in sources(*PACKAGES)}
    longer = {path for path, count in lines.items() if count > MODULE_LINES_MAX}
    assert longer - LONGER_MODULES == set(), "find the concept inside that deserves a name of its own"
    assert LONGER_MODULES - longer == set(), "these are short enough, or gone: remove them from LONGER_MODULES"
    assert {path: lines[path] for path in longer if lines[path] > LONGER_MODULE_LINES_MAX} == {}


def test_folders_are_narrow() -> None:
    """No folder of the product has more than 15 modules: beyond that, group them by what they are about."""
    counted = Counter(str(path.parent) for path, _ in sources(*PACKAGES) if path.stem != "__init__")
    assert {folder: count for folder, count in counted.items() if count > FOLDER_MODULES_MAX} == {}


def test_every_test_states_its_property() -> None:
    """Each test has a docstring: the sentence that it would refute."""
    wordless = [
        f"{path}:{node.lineno} {node.name}"
        for path, text in sources("tests")
        for node in functions(text)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert wordless == []


def test_modules_do_not_shadow_the_standard_library() -> None:
    """No module bears the name of a standard module: run as a script, its folder would hide that one."""
    assert [str(path) for path, _ in sources(*PACKAGES) if path.stem in sys.stdlib_module_names] == []
