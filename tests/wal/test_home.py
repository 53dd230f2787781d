"""A copy of a node's directory never starts by accident, and a moved one always does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import Locked
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.files import RealFiles
from cmdlog.wal.hard_state import open_hardstate
from cmdlog.wal.log import Log
from cmdlog.wal.opening.home import CopiedNode, Home, LinkedNode, adopt
from cmdlog.wal.system import machine
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.planner import PAST, make_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.recover.to_directory import rebuild
from snapshot.catalog import list_snapshots
from tests.commands import Command
from tests.node.rig import ask, counters, open_node
from tests.waiting import PATIENCE_S

FILES = RealFiles()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node that is the rest of a cluster, with calls, a snapshot and a fault record."""
    folder = tmp_path_factory.mktemp("home")
    directory = folder / "node"
    node = open_node(folder / "made", inline=True, partitions=2)
    for n in range(10):
        ask(node, "bump", id=n, amount=1)
    node.close()
    rebuild_jointly(make_joint_plan(FILES, [str(folder / "made")]), FILES, str(directory), workers=0)
    node = open_node(directory, inline=True)
    node.take_snapshot()
    ask(node, "bump", id=0, amount=1)
    node.close()
    log = FaultLog.open(FILES, str(directory), load_instance(FILES, str(directory)).identity)
    log.append(failed=[2], epoch=2, term=3, demotions=((0, 4, 3),), reason="node 2 does not answer")
    return directory


@pytest.fixture
def original(made: Path, tmp_path: Path) -> Path:
    """That node, on a volume of its own, as if it had never been anywhere else."""
    directory = tmp_path / "volume" / "node"
    shutil.copytree(made, directory)
    forget_home(directory)
    reopen(directory)
    return directory


def forget_home(directory: Path) -> None:
    """As a creation that was interrupted leaves a hard state: the next start takes the place where it is for its home."""
    hard = open_hardstate(FILES, str(directory / "log"))
    hard.state.home = None
    hard.save()
    hard.close()


def copied(original: Path, how: str) -> Path:
    """A copy as operators make them."""
    target = original.parent / "copy"
    if how == "cp":
        subprocess.run(["cp", "-a", str(original), str(target)], check=True)
    elif how == "tar":
        target.mkdir()
        packed = subprocess.run(["tar", "-C", str(original), "-c", "."], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-C", str(target), "-x"], input=packed, check=True)
    else:
        shutil.copytree(original, target)
    return target


def reopen(directory: Path) -> None:
    """Opens and closes the log."""
    Log.open(FILES, str(directory)).close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cp", "tar", "copytree"])
def test_copy_is_refused_and_the_original_runs_on(original: Path, how: str) -> None:
    """The error names the directory and both ways out; nothing of the copy changes, and the original starts as ever."""
    copy = copied(original, how)
    before = (copy / "instance.json").read_bytes(), (copy / "log" / "hardstate").read_bytes()
    with pytest.raises(CopiedNode, match="copy") as refused:
        reopen(copy)
    assert refused.value.exit_code == 11
    assert f"`cmdlog adopt {copy}`" in refused.value.hint
    assert f"`cmdlog recover {copy} --to OUT`" in refused.value.hint
    assert before == ((copy / "instance.json").read_bytes(), (copy / "log" / "hardstate").read_bytes())
    reopen(original)


@pytest.mark.slow
def test_copy_of_a_node_that_was_never_opened_is_refused(original: Path, tmp_path: Path) -> None:
    """What a recovery has just made is as little to be started twice."""
    out = tmp_path / "out"
    rebuild(make_plan(FILES, str(original), PAST), FILES, str(out), workers=0)
    shutil.copytree(out, tmp_path / "twin")
    with pytest.raises(CopiedNode):
        reopen(tmp_path / "twin")
    reopen(out)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moved", "folder", "linked"])
def test_directory_that_is_moved_starts(original: Path, how: str) -> None:
    """A rename of it or of a folder above, and another path to it, are no copies."""
    target = original.parent.parent / "elsewhere"
    if how == "moved":
        original.rename(target)
    elif how == "linked":
        target.symlink_to(original)
    else:
        original.parent.rename(target)
        target /= original.name
    reopen(target)


@pytest.mark.slow
def test_hard_link_copy_is_refused_by_name_and_so_is_adopting_it(original: Path) -> None:
    """Both directories would write the same files: neither starts until the links are gone, and then the original does."""
    copy = original.parent / "copy"
    subprocess.run(["cp", "-al", str(original), str(copy)], check=True)
    before = (copy / "instance.json").read_bytes(), (copy / "log" / "hardstate").read_bytes()
    for directory in (copy, original):
        with pytest.raises(LinkedNode, match=r"instance\.json has 2 names") as refused:
            reopen(directory)
        assert refused.value.exit_code == 11
        assert "cp -a" in refused.value.hint
    with pytest.raises(LinkedNode):
        adopt(FILES, str(copy))
    assert before == ((copy / "instance.json").read_bytes(), (copy / "log" / "hardstate").read_bytes())
    shutil.rmtree(copy)
    reopen(original)


@pytest.mark.slow
def test_copy_beside_the_running_original_is_refused(original: Path) -> None:
    """The copy has a lock of its own, which nobody holds; it is refused all the same."""
    node = open_node(original, inline=True)
    copy = copied(original, "cp")
    with pytest.raises(CopiedNode):
        open_node(copy, inline=True)
    assert ask(node, "bump", id=0, amount=1) == 3
    with pytest.raises(Locked):
        adopt(FILES, str(original))
    node.close()


@pytest.mark.slow
def test_adopted_copy_is_a_whole_node_in_a_new_incarnation(original: Path) -> None:
    """Log, snapshots, fault log and archive of the earlier incarnation stay its own, over restarts and rotations."""
    copy = copied(original, "cp")
    was = load_instance(FILES, str(original)).identity
    made = adopt(FILES, str(copy))
    assert made is not None
    identity = load_instance(FILES, str(copy)).identity
    assert identity == made.identity
    assert (identity.cluster_id, identity.node_id) == (was.cluster_id, was.node_id)
    assert identity.incarnation != was.incarnation
    assert identity.earlier == (was.incarnation,)
    assert all(snapshot.manifest is not None for snapshot in list_snapshots(FILES, str(copy), identity))
    for _ in range(2):
        node = open_node(copy, inline=True)
        assert counters(node) == {**dict.fromkeys(range(10), 1), 0: 2}
        assert node.status()["failure_set"] == {"sequence": 1, "nodes": [2]}
        node.take_snapshot()
        node.close()
    assert {s.manifest.incarnation for s in list_snapshots(FILES, str(copy), identity) if s.manifest} == {
        was.incarnation.hex(),
        identity.incarnation.hex(),
    }
    assert FaultLog.open(FILES, str(copy), identity).newest is not None
    assert adopt(FILES, str(copy)) is None
    reopen(original)  # it cannot know


@pytest.mark.slow
def test_copy_of_an_adopted_copy_is_refused_again(original: Path) -> None:
    """Every generation of copies needs its own word, and keeps all earlier incarnations."""
    first = copied(original, "cp")
    adopt(FILES, str(first))
    second = first.parent / "second"
    shutil.copytree(first, second)
    with pytest.raises(CopiedNode):
        reopen(second)
    made = adopt(FILES, str(second))
    assert made is not None
    assert len(made.identity.earlier) == 2
    reopen(second)


@pytest.mark.slow
def test_crash_within_an_adoption_leaves_a_refused_copy(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instance file is written and the hard state is not: no start, and the same command finishes."""
    copy = copied(original, "cp")
    with monkeypatch.context() as broken:
        broken.setattr("cmdlog.wal.opening.home.record_home", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            adopt(FILES, str(copy))
    with pytest.raises(CopiedNode):
        reopen(copy)
    assert adopt(FILES, str(copy)) is not None
    reopen(copy)


@pytest.mark.slow
def test_directory_without_a_home_is_recorded_at_its_first_start(original: Path) -> None:
    """A hard state without a home, after a crash at the end of its creation, takes the place where it is opened."""
    forget_home(original)
    copy = copied(original, "cp")
    reopen(copy)
    hard = open_hardstate(FILES, str(copy / "log"))
    hard.close()
    assert hard.state.home is not None
    assert hard.state.home[0] == os.stat(copy / "instance.json").st_ino


@pytest.mark.slow
def test_other_machine_is_refused_and_an_unknown_one_is_not(
    original: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A volume that comes to another machine needs a word; a container without a machine id does not."""
    told = tmp_path / "machine-id"
    monkeypatch.setattr(machine, "MACHINE_ID_PATH", told)
    for content in (None, "", "uninitialized\n"):
        if content is not None:
            told.write_text(content)
        reopen(original)
    told.write_text("a" * 32 + "\n")
    first = FILES.machine_id()
    assert first
    if Path("/etc/machine-id").exists():
        with pytest.raises(CopiedNode, match="another machine"):
            reopen(original)
        adopt(FILES, str(original))
    reopen(original)
    told.write_text("b" * 32 + "\n")
    assert FILES.machine_id() != first
    with pytest.raises(CopiedNode, match="another machine"):
        reopen(original)


@pytest.mark.parametrize(
    ("recorded", "found", "refused"),
    [
        (Home(7, 100, "m"), Home(7, 100, "m"), False),
        (Home(7, 100, "m"), Home(7, 101, "m"), True),  # a copy that was given the number of a removed file
        (Home(7, 100, "m"), Home(8, 100, "m"), False),  # a file system whose numbers change with every mount
        (Home(7, 0, "m"), Home(8, 0, "m"), True),
        (Home(7, 0, ""), Home(7, 100, ""), False),  # a newer kernel reports births
        (Home(7, 100, "m"), Home(7, 100, "n"), True),
        (Home(7, 100, "m"), Home(7, 100, ""), False),
        (Home(7, 100, ""), Home(7, 100, "n"), False),
        (Home(0, 0, ""), Home(8, 100, "n"), False),
    ],
)
def test_what_tells_a_copy_from_the_original(recorded: Home, found: Home, refused: bool) -> None:
    """Births decide where both are known, else inodes; machines where both are known."""
    assert bool(recorded.doubt(found)) is refused


@pytest.mark.slow
def test_command_adopts_once_and_serve_names_it(original: Path, command: Command) -> None:
    """`serve` and `recover` end with 11 and the command to give; after it the node starts, and a second one changes nothing."""
    copy = copied(original, "cp")
    served = subprocess.run(
        [sys.executable, "-m", "cmdlog", "serve", "tests.node.apps.faulty:db", "--data", str(copy), "--port", "0"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert served.returncode == 11
    assert "cmdlog adopt" in served.stderr
    assert command("recover", copy)[0] == 11
    code, told = command("adopt", copy, "--json")
    assert (code, told["adopted"]) == (0, True)
    assert command("recover", copy)[0] == 0
    assert json.loads((copy / "instance.json").read_bytes())["incarnation"] == told["incarnation"]
    assert command("adopt", copy, "--json") == (0, {"directory": str(copy), "adopted": False})
