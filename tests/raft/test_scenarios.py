"""Every scripted scenario gives the trace that it tells, and the runner can be believed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cmdlog.raft import Configuration, Entries
from cmdlog.raft.configuration import nodes
from cmdlog.wal.ids import Index, Term
from tests.raft.scenario import difference, main, parse, rewritten
from tests.raft.scenario_script import COMMANDS, Script
from tests.raft.scenario_text import message_of, message_text
from tests.raft.scenario_world import Violation

FOLDER = Path(__file__).with_name("scenarios")
FILES = sorted(FOLDER.glob("*.txt"))
PITFALLS = 42
OWN = 1  # that are on no list


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_happens_as_it_is_told(path: Path) -> None:
    """A difference is shown as a diff; `python -m tests.raft.scenario --rewrite FILE` writes what happens now."""
    assert not difference(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_begins_with_what_it_is_about(path: Path) -> None:
    """Its number and sentence, and, but for the introduction, what goes wrong without the rule."""
    number = int(path.stem[:2])
    head = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    if number:
        assert head.startswith(f"# {number}. ")
        assert number == PITFALLS or "# Without the rule" in head


def test_every_pitfall_has_a_scenario() -> None:
    """Numbers are those of the list of pitfalls, and go on with our own; 0 is the introduction."""
    assert [int(path.stem[:2]) for path in FILES] == list(range(PITFALLS + OWN + 1))


def test_every_command_is_explained_and_used() -> None:
    """The module's head names each; some scenario says each."""
    import tests.raft.scenario

    said = {
        word for path in FILES for part in parse(path.read_text()) if not isinstance(part, str) for word in _names(part.commands)
    }
    explained = set(re.findall(r"[a-z]+", tests.raft.scenario.__doc__ or ""))
    assert set(COMMANDS) <= explained
    assert set(COMMANDS) - said == set()


def _names(commands: list[str]) -> set[str]:
    return {line.removeprefix("quiet ").split()[0] for line in commands}


MESSAGES = [
    "1>2 pre-vote request t4, log ends 3@2",
    "1>2 transfer vote request t4, log ends 3@2",
    "2>1 vote granted t4",
    "2>1 vote refused t4",
    '1>2 append t4 after 3@2, commit 3: 4@3 "a b", 5@4 empty, 6@4 [voters 1 2, learners 4]',
    "1>2 append t4 after 3@2, commit 3: 4@4 [voters 1 2, outgoing 1 3, next learners 3, auto-leave]",
    "1>2 append t4 after 3@2, commit 3: nothing",
    "2>1 append taken t4 up to 6",
    "2>1 append refused t4 at 5, try 3@2",
    "1>2 heartbeat t4 round 7, commit 3",
    "2>1 heartbeat reply t4 round 7",
    "1>2 snapshot t4 9@3 [voters 1 2, forced, epoch 5]",
    "2>1 snapshot failed t4 at 9",
    "1>2 campaign now t4",
    "1>2 removed t4 by 9",
    "2>1 read request t4: 1 2",
    "1>2 read reply t4 at 6: 1 2",
    '2>1 forward t4: "a", "b"',
]


@pytest.mark.parametrize("text", MESSAGES)
def test_a_message_is_read_as_it_is_written(text: str) -> None:
    """So a script can say any message that a trace can show."""
    assert message_text(message_of(text)) == text


def test_an_unknown_message_is_refused() -> None:
    """A typing error is no message."""
    with pytest.raises(ValueError, match="no message"):
        message_of("1>2 hello")


def test_two_histories_end_a_scenario() -> None:
    """Whatever the expected trace says: an index that was applied with one entry is never applied with another."""
    script = Script()
    script.run(["nodes 1 2 3", "elect 1", "propose 1 a", "settle"])
    other = Entries(Index(2), [Term(9)], bytes(1), [b"z"])
    with pytest.raises(Violation):
        script.world._apply(script.node("2"), other)


def test_a_wrong_script_is_told_by_its_line() -> None:
    """An unknown command, a node that is down, a message that is not there, commands without a trace."""
    for commands in ("fly 1", "nodes 1 2 3\ncrash 1\ntick 1", "nodes 1 2 3\ndrop 1>2", "nodes 1\nrestart 1", "nodes 1\ncopied 1"):
        with pytest.raises(ValueError, match=r"\S") as told:
            rewritten(f"# about\n\n{commands}\n----\n")
        assert "at line 3" in str(told.value.__notes__)
    with pytest.raises(ValueError, match="line 1"):
        rewritten("nodes 1")


def test_rewriting_gives_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that tells something else is shown as a diff; rewritten, it agrees, and comments stay where they were."""
    path = tmp_path / "case.txt"
    path.write_text("# About.\n\nnodes 1\nelect 1\n----\nnothing of the kind\n\n# End.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["scenario", str(path)])
        assert main() == 1
        assert "-nothing of the kind" in capsys.readouterr().out
        patch.setattr("sys.argv", ["scenario", "--rewrite", str(path)])
        assert main() == 0
        patch.setattr("sys.argv", ["scenario", str(path)])
        assert main() == 0
    text = path.read_text()
    assert text.startswith("# About.\n\nnodes 1\nelect 1\n----\n1 becomes candidate in t1\n")
    assert text.endswith("\n\n# End.\n")


def test_a_configuration_is_that_of_the_first_members() -> None:
    """Voters and learners of `nodes` are what every member starts with."""
    script = Script()
    script.run(["nodes 1 2 learners 3"])
    assert script.core("3").configuration == Configuration(voters=nodes([1, 2]), learners=nodes([3]))
