"""Words that a native reader stumbles over: what users read and what maintainers read have a budget of them that only falls."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project.test_repository import syntax_nodes

ROOT = Path(__file__).resolve().parents[2]
BUDGET = Path(__file__).with_name("words_budget.json")
PACKAGES = ("cmdlog", "procedures", "replay", "snapshot")
DOCUMENTS = (".md", ".html")
SHOWN_MAX = 30

INSTEAD = {
    r"told": "reported, answered, acknowledged, notified",
    r"tell(s|ing)? of": "report, describe",
    r"(go|goes|going|gone|went) on(?! (disk|the wire|a))": "resume, continue",
    r"(broken|break|breaks|breaking|broke) off": "interrupted, stopped",
    r"behind(?![,.;:)]| or | and | \||$)(?! (a|the|its|one|this|each) (lock|latch|site|gate|proxy|firewall|leader)\b)": "after",
    r"in front of": "before",
    r"whoever": "the caller, anyone who",
    r"nobody knows": "unknown",
    r"stands(?! (for|in for|alone)\b)": "is",
    r"anew": "again",
    r"(?<=[a-z] )(?<!or )(?<!and )(?<!but )(?<!which )(?<!that )(?<!stated )otherwise|otherwise than": "differently",
    r"(comes|come|came|coming) of": "the result of, results in",
    r"(let|lets|letting) in": "accept, admit",
    r"(take|takes|taking|taken|took) out": "skip, remove",
    r"bears|borne": "carries, has",
}
"""Each phrase as a pattern, and what the field says. One waits behind a lock or a proxy, and lags behind; order is after."""
STUMBLE = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in INSTEAD), re.IGNORECASE)

Place = tuple[str, int, str]
Found = dict[tuple[str, str], list[Place]]


def stumbles(text: str) -> list[str]:
    """The phrases of a text that have a better word, in lower case. Line ends and names in code do not count."""
    prose = re.sub(r"``?[^`\n]+``?", "code", " ".join(text.split()))
    return [match[0].lower() for match in STUMBLE.finditer(prose)]


def instead_of(phrase: str) -> str:
    """What to say for a phrase."""
    for pattern, better in INSTEAD.items():
        if re.search(rf"\b(?:{pattern})\b", f"it {phrase} it", re.IGNORECASE):
            return better
    return "a word of the field"


def python_texts(source: str) -> Iterator[tuple[str, int, str]]:
    """(kind, line, text): literals are `visible`, docstrings and comments are `prose`; a literal of one word is an identifier."""
    joined = re.sub(r"[\s\"'#\\]+", " ", re.sub(r"[\"']\s*f?[\"']", "", source))
    if not stumbles(joined):  # most modules: nothing to take apart
        return
    alone = set()
    for node in syntax_nodes(source):  # parents come first
        if isinstance(node, ast.Expr):
            alone.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield ("prose" if id(node) in alone else "visible"), node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield "prose", token.start[0], token.string


def texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """The texts of a file: all of a document or a page is visible."""
    content = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(content)
        return
    for number, line in enumerate(content.splitlines(), start=1):
        yield "visible", number, line


@cache
def found() -> Found:
    """Where the phrases are, by kind of text and package; documents outside of the packages go by their folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone: nothing says which files belong to the project")
    places: Found = defaultdict(list)
    for name in sorted(listed.stdout.decode().split("\0")):
        path = Path(name)
        package = path.parts[0] if len(path.parts) > 1 else "documents"
        read = path.suffix in DOCUMENTS or (path.suffix == ".py" and package in PACKAGES)
        if not read or not (ROOT / path).is_file():
            continue
        for kind, line, text in texts(path):
            places[kind, package] += [(name, line, phrase) for phrase in stumbles(text)]
    return places


def budget() -> dict[str, dict[str, int]]:
    """What is allowed, by kind of text and package."""
    allowed: dict[str, dict[str, int]] = json.loads(BUDGET.read_text())
    return allowed


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("no call was told yet", ["told"]),
        ("it goes on with the next; it went on disk", ["goes on"]),
        ("the entries behind it wait behind a lock, and fall behind.", ["behind"]),
        ("Otherwise it stands for the first, or otherwise stands first", ["stands"]),
        ("it ended otherwise than before, and reads otherwise", ["otherwise", "otherwise"]),
        ("what comes of a skip that is taken\nout", ["comes of", "taken out"]),
        ("`told` and `gone_on` are names", []),
    ],
)
def test_stumbles_are_recognised(text: str, phrases: list[str]) -> None:
    """The table finds its phrases across line ends, and leaves the meanings alone that are plain English."""
    assert stumbles(text) == phrases


def test_literals_docstrings_and_comments_are_kept_apart() -> None:
    """A literal is what users read; a docstring, also one of an attribute, and a comment are what maintainers read."""
    source = 'LIMIT = 1\n"""A limit of all."""\ndef f(x):\n    """The first."""\n    raise E(f"no {x} at all")  # told\n'
    assert sorted((kind, text.strip()) for kind, _, text in python_texts(source)) == [
        ("prose", "# told"),
        ("prose", "A limit of all."),
        ("prose", "The first."),
        ("visible", "at all"),
        ("visible", "no"),
    ]


def test_stumbles_do_not_become_more() -> None:
    """No package has more of these phrases than its budget: new text is written in the words of the field."""
    allowed = budget()
    for (kind, package), places in sorted(found().items()):
        most = allowed[kind].get(package, 0)
        shown = [f"{name}:{line}: {phrase!r}, use {instead_of(phrase)} instead" for name, line, phrase in places[:SHOWN_MAX]]
        assert len(places) <= most, f"{len(places)} in the {kind} text of {package}, {most} are allowed\n" + "\n".join(shown)


def test_budgets_are_not_larger_than_needed() -> None:
    """A budget is what is there: one that was not lowered with the count would let the phrases return."""
    unused = {
        f"{kind} {package}": f"{most} are allowed, there are {len(found().get((kind, package), ()))}"
        for kind, packages in budget().items()
        for package, most in packages.items()
        if most > len(found().get((kind, package), ()))
    }
    assert unused == {}, f"lower {BUDGET.relative_to(ROOT)}: `python tests/project/{Path(__file__).name}` does"


LOGGED = re.compile(
    r"\b(?:(?:log|logger)\.(?:debug|info|warning|error|exception|critical)|tell)\(\s*(?P<event>[^,)]*)(?P<more>,?)"
)
EVENT = re.compile(r'"[a-z][a-z0-9]*(_[a-z0-9]+)*"')


def log_events(source: str) -> Iterator[str]:
    """The first argument of each call of a logger; it is also called under the name `tell`, with facts as keywords."""
    for called in LOGGED.finditer(source):
        if not called[0].startswith("tell") or (called["more"] and called["event"].startswith('"')):
            yield called["event"]


def test_log_events_have_names() -> None:
    """An event of the log is a name in snake_case with its facts as keys: a sentence could not be searched for or counted."""
    sentences = [
        f"{path.relative_to(ROOT)}: {event}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for event in log_events(path.read_text(encoding="utf-8"))
        if not EVENT.fullmatch(event)
    ]
    assert sentences == [], "name the event (`snapshot_failed`) and give its facts as keywords"


def _lower() -> None:
    """Writes the budget down to the counts, and raises nothing."""
    lowered = {
        kind: {package: min(most, len(found().get((kind, package), ()))) for package, most in packages.items()}
        for kind, packages in budget().items()
    }
    BUDGET.write_text(json.dumps(lowered, indent=2) + "\n")


if __name__ == "__main__":
    _lower()
