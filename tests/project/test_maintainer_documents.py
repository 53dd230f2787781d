"""What holds for the maintainers' documents: ARCHITECTURE.md, CONTRIBUTING.md, SECURITY.md and every DECISIONS.md.

One rule: a document is held to the tree. It names what exists, says each thing once, and is short enough to be read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project.test_repository import PACKAGES, ROOT, tracked

ARCHITECTURE_BYTES_MAX = 20_480
DECISION_WORDS_MAX = 150
PARAGRAPH_WORDS_MAX = 90
SENTENCE_WORDS_MAX = 30
LINE_CHARACTERS_MAX = 100
REPEATED_WORDS_MIN = 12  # a shorter sentence may well be written twice

HEADS = ("Context", "Decision", "Crash", "Not taken")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[\w+\])")
REFERENCE = re.compile(r"^\[\w+\]: .*$", re.MULTILINE)
DECISION = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
BLOCK = re.compile(r"\n\s*\n|\n(?=[-|] |\d+\. )")  # between paragraphs, items of a list, rows of a table
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w./-]+(?:\.py|\.md|\.html|/)")
MODULES = (".py", ".md")
ROOTS = (*PACKAGES, "tests", "bench")
GENERATED = frozenset({"bench/out/"})
DOTTED = re.compile(rf"\b(?:{'|'.join(PACKAGES)}|tests)(?:\.\w+)+")
FOLDER_LINE = re.compile(r"^( *)(\w+)/  +\S", re.MULTILINE)


def decision_files() -> list[Path]:
    """Every DECISIONS.md of the repository."""
    return [path for path in tracked() if path.name == "DECISIONS.md"]


def maintainer_documents() -> list[Path]:
    """The documents that follow the limits on prose."""
    return [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *decision_files()]


def name_of(path: Path) -> str:
    """The path from the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items and rows, each as one line; without code, headings and link targets."""
    prose = REFERENCE.sub("", FENCE.sub("", text))
    for block in BLOCK.split(prose):
        flat = " ".join(block.split())
        if flat and not flat.startswith("#"):
            yield flat


def sentences(text: str) -> Iterator[str]:
    """The sentences of the prose; a row of a table is one."""
    for block in blocks(text):
        yield from SENTENCE_END.split(LINK.sub(r"\1", block))


@cache
def decisions(path: Path) -> tuple[tuple[int, str, str], ...]:
    """Number, title and body of each decision of a file."""
    text = path.read_text()
    found = list(DECISION.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return tuple((int(match[1]), match[2], text[match.end() : end].strip()) for match, end in zip(found, ends, strict=True))


@cache
def repository_paths() -> frozenset[str]:
    """Tracked files and their folders, folders with a slash at the end."""
    names = {name_of(path) for path in tracked()}
    folders = {f"{parent.as_posix()}/" for name in names for parent in Path(name).parents}
    return frozenset(names | folders)


def exists(name: str, homes: list[str]) -> bool:
    """Whether the path is there, from the root or from one of the folders `homes`."""
    return any(f"{home}{name}" in repository_paths() for home in ["", *homes])


def missing_paths(text: str, home: str) -> list[str]:
    """Paths in backquotes that lead nowhere. A short one is meant from `home`, or from a folder named in the same block."""
    missing: set[str] = set()
    for block in blocks(text):
        quoted = [name for name in QUOTED.findall(block) if PATH.fullmatch(name)]
        homes = ["", home, *(name for name in quoted if name in repository_paths())]
        ours = [name for name in quoted if name.endswith(MODULES) or name.split("/")[0] in ROOTS]
        missing |= {name for name in ours if not any(f"{folder}{name}" in repository_paths() for folder in homes)}
    return sorted(missing - GENERATED)


def missing_dotted(text: str) -> list[str]:
    """Dotted names of which the module is not there, or does not hold the name after it."""
    names = {name for name in DOTTED.findall(FENCE.sub("", text)) if not name.endswith(MODULES)}
    return sorted(name for name in names if not is_in_tree(name))


def is_in_tree(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a name that its module mentions."""
    parts = name.split(".")
    if "/".join(parts) + "/" in repository_paths():
        return True
    for count in range(len(parts), 0, -1):
        for ending in (".py", "/__init__.py"):
            module = "/".join(parts[:count]) + ending
            if module in repository_paths():
                return count == len(parts) or parts[count] in (ROOT / module).read_text()
    return False


def test_architecture_can_be_read_in_one_sitting() -> None:
    """ARCHITECTURE.md keeps its budget; what explains a choice belongs to a DECISIONS.md."""
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= ARCHITECTURE_BYTES_MAX


@pytest.mark.parametrize("path", decision_files(), ids=name_of)
def test_decisions_have_one_form(path: Path) -> None:
    """A decision has its number, the four heads in order and at most 150 words."""
    wrong = []
    for expected, (number, title, body) in enumerate(decisions(path), 1):
        if number != expected:
            wrong.append(f"{title}: number {number}, expected {expected}")
        if tuple(re.findall(r"^\*\*([^*]+)\.\*\*", body, re.MULTILINE)) != HEADS:
            wrong.append(f"{title}: the heads are not {HEADS}")
        if (count := len(body.split())) > DECISION_WORDS_MAX:
            wrong.append(f"{title}: {count} words, at most {DECISION_WORDS_MAX}")
    assert decisions(path)
    assert wrong == []


def test_architecture_links_every_file_of_decisions() -> None:
    """ARCHITECTURE.md has a link to each DECISIONS.md of a package, and to no other."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Decisions")[1]
    assert sorted(re.findall(r"\]\((\S+)\)", section)) == sorted(name_of(path) for path in decision_files())


def test_architecture_has_a_line_for_every_folder() -> None:
    """Each folder with modules has one line that says why it exists, and no line is about a folder that is gone."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Folders")[1].split("## ")[0]
    above: dict[int, str] = {}
    listed = []
    for indent, folder in FOLDER_LINE.findall(section):
        above[len(indent)] = above.get(len(indent) - 2, "") + folder + "/"
        listed.append(above[len(indent)])
    with_modules = {f"{Path(name).parent.as_posix()}/" for name in repository_paths() if name.endswith(".py")}
    assert sorted(listed) == sorted(folder for folder in with_modules if folder.split("/")[0] in PACKAGES)


@pytest.mark.parametrize("path", maintainer_documents(), ids=name_of)
def test_documents_name_what_exists(path: Path) -> None:
    """Every path and every dotted module name in a maintainers' document is in the tree."""
    text = path.read_text()
    folder = name_of(path.parent) + "/" if path.parent != ROOT else ""
    assert missing_paths(text, folder) == []
    assert missing_dotted(text) == []


@pytest.mark.parametrize("path", maintainer_documents(), ids=name_of)
def test_prose_is_short(path: Path) -> None:
    """Lines, paragraphs and sentences keep their limits, so that a page can be read without a second start."""
    text = path.read_text()
    long_lines = [line for line in text.splitlines() if len(line) > LINE_CHARACTERS_MAX and line[0] != "|"]
    long_paragraphs = [block for block in blocks(text) if len(block.split()) > PARAGRAPH_WORDS_MAX]
    long_sentences = [sentence for sentence in sentences(text) if len(sentence.split()) > SENTENCE_WORDS_MAX]
    assert (long_lines, long_paragraphs, long_sentences) == ([], [], [])


def test_no_sentence_is_written_twice() -> None:
    """A sentence of twelve words or more is in one document, once: what is said twice drifts apart."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in tracked():
        if path.suffix == ".md":
            for sentence in sentences(path.read_text()):
                if len(sentence.split()) >= REPEATED_WORDS_MIN:
                    places[sentence].append(name_of(path))
    assert {sentence: names for sentence, names in places.items() if len(names) > 1} == {}
