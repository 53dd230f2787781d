"""The documents that users read: short, in plain words, with tables that the code makes and examples that run."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import LOCAL
from cmdlog.api.gate.route_table import TABLE as ROUTES
from cmdlog.cli.app import make_program
from cmdlog.cli.server.settings_table import settings_table
from cmdlog.node.reporting.prometheus import TABLE as METRICS
from replay.spark.base.options import CALLS, NAMES, STATE, TABLES, BadOption, check_fit
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
README = "README.md"
WRITING = "procedures/WRITING.md"
TYPES = "procedures/TYPES.md"
SERVING = "cmdlog/SERVING.md"
DEPLOYING = "cmdlog/DEPLOYING.md"
CLUSTER = "cmdlog/CLUSTER.md"
RUNNING = "cmdlog/RUNNING.md"
RECOVERY = "replay/RECOVERY.md"
SPARK = "replay/spark/SPARK.md"
DOCUMENTS = (README, WRITING, TYPES, SERVING, DEPLOYING, CLUSTER, RUNNING, RECOVERY, SPARK)
README_LINES_MAX = 120
README_BYTES_MAX = 8192
LINE_CHARS_MAX = 100
PARAGRAPH_WORDS_MAX = 90
SENTENCE_WORDS_MAX = 30
REPEATED_WORDS_MIN = 12
NOT_OURS = frozenset[str]()
"""Documents that are named and are not in the tree. It may only shrink."""
STUMBLES = re.compile(
    r"\b(told|tells? of|gone on|go(es)? on with|broken off|behind|in front of|whoever|nobody knows|stands|anew|otherwise"
    r"|what comes of|let in|taken out|bears)\b",
    re.IGNORECASE,
)
"""Words that a native reader stumbles over; the field has its own: reported, resume, interrupted, after, before, skipped."""


def read(name: str) -> str:
    """The text of a file of the tree."""
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(name: str) -> Iterator[tuple[str, str]]:
    """(language, text) of each code block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def paragraphs(name: str) -> Iterator[str]:
    """Paragraphs and items of lists on one line each; no code, tables or headings."""
    text = re.sub(r"^```.*?^```$", "\n", read(name), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||<!--).*$", "\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text):
        if block.strip():
            yield " ".join(block.split()).removeprefix("- ")


def sentences(paragraph: str) -> list[str]:
    """Its sentences; a piece of code is one word."""
    prose = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", paragraph))
    return [sentence for sentence in re.split(r"(?<=[.?!])\s+", prose) if sentence]


def between(name: str, mark: str) -> str:
    """What a document has between `<!-- mark -->` and `<!-- end of mark -->`."""
    found = re.search(rf"<!-- {mark} -->\n\n(.*?)\n<!-- end of {mark} -->", read(name), re.DOTALL)
    assert found is not None, f"{name} has no <!-- {mark} -->"
    return found[1]


def test_the_readme_is_a_page() -> None:
    """README stays short: what a user looks up is in the document that it links to."""
    text = read(README)
    assert text.count("\n") <= README_LINES_MAX, "move what is too much into the document of its subject"
    assert len(text.encode()) <= README_BYTES_MAX, "move what is too much into the document of its subject"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_sentences_and_paragraphs_are_short(name: str) -> None:
    """No line, sentence or paragraph is longer than what is read at one go; rows of tables cannot be wrapped."""
    long_lines = [line for line in read(name).splitlines() if len(line) > LINE_CHARS_MAX and not line.startswith("|")]
    assert long_lines == [], f"wrap at {LINE_CHARS_MAX} characters"
    long_paragraphs = [text for text in paragraphs(name) if len(text.split()) > PARAGRAPH_WORDS_MAX]
    assert long_paragraphs == [], f"split paragraphs of more than {PARAGRAPH_WORDS_MAX} words"
    long_sentences = [one for text in paragraphs(name) for one in sentences(text) if len(one.split()) > SENTENCE_WORDS_MAX]
    assert long_sentences == [], f"split sentences of more than {SENTENCE_WORDS_MAX} words"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_words_are_those_of_the_field(name: str) -> None:
    """A document says reported, resumes, interrupted, after and before, and has none of the words that readers stumble over."""
    found = [line for line in read(name).splitlines() if STUMBLES.search(line)]
    assert found == [], "say it in the field's own words"


def test_nothing_is_said_twice() -> None:
    """A sentence of twelve words or more is in one document only: a second copy would drift."""
    said = Counter(one for name in DOCUMENTS for text in paragraphs(name) for one in sentences(text))
    assert [one for one, times in said.items() if times > 1 and len(one.split()) >= REPEATED_WORDS_MIN] == []


def test_documents_that_are_named_exist() -> None:
    """Each `*.md` that a tracked file names is in the tree: by its path from there, from the root, or by a name of its own."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone: nothing says which files belong to the project")
    tracked = [Path(name) for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    names = {path.name for path in tracked if path.suffix == ".md"}
    missing = set()
    for path in tracked:
        if path.suffix not in (".py", ".md", ".toml", ".html") or path == Path(__file__).relative_to(ROOT):
            continue
        for named in re.findall(r"(?<![\w*])[\w./-]+\.md\b", read(str(path))):
            there = (ROOT / path.parent / named).is_file() or (ROOT / named).is_file() or named in names
            if not there and named not in NOT_OURS:
                missing.add(f"{path}: {named}")
    assert sorted(missing) == [], "name a document that exists"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    """Each link of a document leads to a file of the tree."""
    targets = re.findall(r"\]\(([^)#]+)", read(name))
    assert [target for target in targets if not (ROOT / name).parent.joinpath(target).is_file()] == []


def test_documents_are_installed() -> None:
    """Each document in a package is among the package's data in pyproject.toml."""
    data = read("pyproject.toml").partition("[tool.setuptools.package-data]")[2].partition("\n[")[0]
    for name in DOCUMENTS[1:]:
        package, _, file = name.rpartition("/")
        assert re.search(rf'^"?{package.replace("/", ".")}"? = \[.*"{file}"', data, re.MULTILINE), name


def test_the_table_of_settings_is_the_code() -> None:
    """RUNNING.md has the table that `python -m cmdlog.cli.server.settings_table` prints."""
    assert between(RUNNING, "settings") == settings_table(), "put there what that prints"


def test_the_table_of_options_is_the_code() -> None:
    """SPARK.md has a row of each option, and says of which tables it is."""
    rows = [[cell.strip(" `") for cell in line.split(" | ")] for line in between(SPARK, "options").splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == list(NAMES)
    kinds = {CALLS: CALLS, f"{STATE}*": f"{STATE}x", **{table: table for table in TABLES[1:]}}
    for name, _, _, said, _ in rows:
        taken = [shown for shown, table in kinds.items() if is_taken(name.strip("| `"), table)]
        rest = [shown for shown in kinds if shown not in taken]
        wanted = "all" if not rest else f"all but {rest[0]}" if len(rest) == 1 else ", ".join(taken)
        assert said.replace("`", "") == wanted, name


def is_taken(option: str, table: str) -> bool:
    """Whether the table has a use for it."""
    with contextlib.suppress(BadOption):
        check_fit(table, (option,))
        return True
    return False


def test_every_route_and_code_has_its_row() -> None:
    """SERVING.md names each route of the server with the roles that may use it, and each code of an error with its status."""
    rows = [line for line in read(SERVING).splitlines() if line.startswith("|")]
    for route in ROUTES:
        (row,) = [row for row in rows if row.startswith(f"| `{route.method} {route.path}` ")]
        stated = set(re.findall(r"read|invoke|admin", row.split("|")[3])) or {"admin"}
        assert stated | {"admin"} == route.roles - {LOCAL}, row
    for code, (status, _) in CODES.items():
        (row,) = [row for row in rows if f"`{code}`" in row.split("|")[1]]
        assert str(status) in row.split("|")[2], row


def test_metrics_that_are_named_exist() -> None:
    """A metric that a document names is one that the server has."""
    named = {metric for name in DOCUMENTS for metric in re.findall(r"`(cmdlog_[a-z_]+)`", read(name))}
    assert named - METRICS.keys() - {"cmdlog_clock", "cmdlog_embedded", "cmdlog_server"} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_that_are_shown_exist(name: str) -> None:
    """Each command line in a document names a command of the program, and options that it has."""
    for language, block in fenced(name):
        for line in block.replace("\\\n", " ").splitlines() if not language else ():
            words = shlex.split(line, comments=True)
            if "cmdlog" in words and words[0] not in ("make", "pip", "spark-submit"):
                _check_command(words[words.index("cmdlog") + 1 :])


def test_the_readme_lists_every_command() -> None:
    """README's table has each command of the program."""
    listed = {name for line in read(README).splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert _program().commands.keys() - listed == set()


@cache
def _program() -> Any:
    return typer.main.get_command(make_program())


def _check_command(words: list[str]) -> None:
    command = _program()
    while subcommands := getattr(command, "commands", {}):
        assert words, f"{command.name} needs a command"
        assert words[0] in subcommands, f"there is no command {words[0]!r}"
        command, words = subcommands[words[0]], words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} - known == set(), command.name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_in_python_are_python(name: str) -> None:
    """Each block of Python compiles."""
    for language, block in fenced(name):
        if language == "python":
            ast.parse(block)


@pytest.mark.slow
def test_the_readme_s_example_runs(tmp_path: Path) -> None:
    """The example of the README runs as it is printed there, and prints what its comments say."""
    example = _Example(tmp_path)
    example.run("embedded.py")
    with example.serving():
        commands = next(block for language, block in fenced(README) if not language and "cmdlog serve" in block)
        call, curl = commands.splitlines()[1:]
        assert example.shell(call).strip() == "4"
        if shutil.which("curl"):
            assert '"result":1' in example.shell(curl)
        else:
            assert example.shell("cmdlog call reserve item=1 count=3").strip() == "1"
        example.run("client.py")


def test_no_block_of_the_readme_is_left_out() -> None:
    """Every Python block is a file that `test_the_readme_s_example_runs` runs; every `make` names a target of the Makefile."""
    python = [block.splitlines()[0] for language, block in fenced(README) if language == "python"]
    assert python == ["# shop.py", "# embedded.py", "# client.py"], "run a new block in test_the_readme_s_example_runs"
    shell = [line for language, block in fenced(README) if not language for line in block.splitlines()]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    wanted = {line.split()[1] for line in shell if line.startswith("make ")}
    assert wanted
    assert wanted <= targets


@pytest.mark.slow
def test_the_other_examples_run(tmp_path: Path) -> None:
    """The embedded example of SERVING.md goes through, and so does the test of WRITING.md, with its other procedure added."""
    example = _Example(tmp_path)
    example.run("embedded.py")
    (embedded,) = [block for language, block in fenced(SERVING) if language == "python" and "cmdlog.open" in block]
    assert example.python(embedded).split() == ["4", "0", "[(1,", "0)]"]
    blocks = [block for language, block in fenced(WRITING) if language == "python"]
    marks = (
        "class Account",
        "prices = db.table",
        "EACH",
        "pytest_plugins",
        "import assert_replays",
        "import assert_history_replays",
    )
    *declared, plugin, test, generated = (next(block for block in blocks if mark in block) for mark in marks)
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write("\n".join(declared))
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "test_shop.py").write_text(test)
    (tmp_path / "test_history.py").write_text(generated.replace("max_examples=20", "max_examples=1"))
    assert "2 passed" in example.shell(f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider test_*.py")


class _Example:
    """The README's blocks in a folder. The server's port is a free one, which stands for 8642."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, "8642"
        self._files = {m[1]: block for language, block in fenced(README) if (m := re.match(r"# (\w+\.py)\n", block))}
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
        self._environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, folder)))
        (folder / "shop.py").write_text(self._files["shop.py"])

    def run(self, name: str) -> None:
        """Runs a block, and compares its output with the numbers in the comments of its prints."""
        text = self._files[name]
        expected = re.findall(r"print\(.*\)  # (-?\d+)", text)
        assert expected
        assert self.python(text).split() == expected

    def python(self, text: str) -> str:
        """What a program prints."""
        (self.folder / "program.py").write_text(text.replace("8642", self.port))
        return self.shell(f"{shlex.quote(sys.executable)} program.py")

    def shell(self, line: str) -> str:
        program = f'cmdlog() {{ {shlex.quote(sys.executable)} -m cmdlog.cli "$@"; }}\n'
        environment = {**self._environment, "CMDLOG_URL": f"http://127.0.0.1:{self.port}"}
        script = program + line.replace("8642", self.port)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The server, as the README starts it; it is stopped in order."""
        line = next(line for _, block in fenced(README) for line in block.splitlines() if line.startswith("cmdlog serve"))
        server = subprocess.Popen(
            [sys.executable, "-m", "cmdlog.cli", *shlex.split(line)[1:]],
            cwd=self.folder, env={**self._environment, "CMDLOG_PORT": "0"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        assert server.stdout is not None
        try:
            for printed in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", printed):
                    self.port = found[1]
                if printed.startswith("ready"):
                    break
            yield
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
