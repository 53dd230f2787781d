"""Programs of the product start warm, whichever way they are started; nothing else would say so but the time that tests take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.testing.proof import OTHER_SEED
from procedures.checks.check import check
from tests import warm_start

pytestmark = pytest.mark.slow  # processes are started

FACTS = """
import json, sys

def main():
    print(json.dumps([sys.path[0], sys.argv[1] in sys.modules, sys.argv, hash("a text")]))
"""
SHARE = """
import json, os
from snapshot.background_io import make_way

def main():
    make_way(os.SCHED_IDLE)
    print(json.dumps([os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]))
"""
HASH = [sys.executable, "-c", "print(hash('a text'))"]


def refuse(_process: Any, args: Any, *_given: Any) -> None:
    """In place of a cold start."""
    raise AssertionError(f"a cold start: {args}")


@pytest.fixture(autouse=True)
def importers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the imports are there."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    warm_start.start_importers()


@pytest.mark.parametrize(
    ("seed", "module"), [("0", "cmdlog.api.app"), (OTHER_SEED, "replay.recover.worker"), ("2", "procedures.checks.check")]
)
def test_children_of_the_product_start_warm(seed: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites, workers and servers of a node; as with `-P`, their current folder hides no module from them."""
    (tmp_path / "facts.py").write_text(FACTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = subprocess.run(HASH, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    with ChildProcess("facts", module, hash_seed=seed, stdout=PIPE, cwd=tmp_path.parent) as child:
        program = str(warm_start.ROOT / "cmdlog/die_with_parent.py")
        assert next(child.answers()) == [str(tmp_path), True, [program, module], int(expected)]


def test_program_that_makes_way_keeps_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests nothing is left for who takes the rest, and a test waits for it; a cold start does make way."""
    (tmp_path / "share.py").write_text(SHARE)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]
    shares = []
    for start in ("", "cold"):
        monkeypatch.setenv(warm_start.SWITCH, start)
        with ChildProcess("share", hash_seed="0", stdout=PIPE) as child:
            shares.append(next(child.answers()))
    warm, cold = shares
    assert warm == mine
    assert cold != mine


def test_runs_of_check_start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, though their time zones and locales differ; what a procedure sees of these does."""
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    assert check("procedures.samples.bank:db", calls=40) == []


def test_commands_start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cmdlog` as a program of its own."""
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    done = subprocess.run([sys.executable, "-m", "cmdlog", "version"], capture_output=True, check=True)
    assert b"cmdlog" in done.stdout


@pytest.mark.parametrize("line", [["-c", "pass"], ["-P", "-m", "json.tool"], ["-I", "-m", "cmdlog"], ["-m", "pytest"], []])
def test_other_programs_start_as_ever(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the imports stands for programs of the product with no options but `-P`."""
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    with pytest.raises(AssertionError, match="a cold start"):
        subprocess.run([sys.executable, *line], check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("variable", ["PYTHONHASHSEED", "TZ", "LC_ALL", "LD_PRELOAD"])
def test_program_that_needs_a_start_of_its_own_gets_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interpreter reads when it starts cannot be changed in a fork."""
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    monkeypatch.setenv("TZ", "UTC")
    with pytest.raises(AssertionError, match="a cold start"):
        subprocess.run([sys.executable, "-m", "cmdlog", "version"], check=True, env={**os.environ, variable: "4"})


def test_program_that_finds_another_product_gets_a_start_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of one of our names, on the path or in the current folder, is what the program imports."""
    monkeypatch.setattr(warm_start, "_start_cold", refuse)
    (tmp_path / "replay").mkdir()
    for folder, path in ((tmp_path, ""), (tmp_path.parent, str(tmp_path))):
        with pytest.raises(AssertionError, match="a cold start"):
            subprocess.run(
                [sys.executable, "-m", "cmdlog", "version"], check=True, cwd=folder, env={**os.environ, "PYTHONPATH": path}
            )
