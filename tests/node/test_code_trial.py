"""A node's sites load new code before anything of it is logged, as a recovery will, and keep it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from cmdlog.node.deploying.code_trial import CodeTrial
from cmdlog.node.deploying.load_check import NotReplayable
from cmdlog.node.settings import Settings
from cmdlog.node.sites.site_child import NotStarted, SiteChild
from cmdlog.wal.directory.instance import LOCK_NAME
from cmdlog.wal.errors import NotEmpty
from procedures import Database
from procedures.code.bundle import capture_bundle
from tests.member.members import Members
from tests.node.deployed import make_version
from tests.node.rig import SMALL, ask, open_node

BESIDE: Final = "from pathlib import Path\nLINES = Path('rates.txt').read_text().split()"
HOME: Final = "import os\nFOLDER = os.getcwd()\nassert FOLDER == {folder!r} or '__file__' not in globals() and not os.listdir()"
IN_A_BUNDLE: Final = 'if "__file__" not in globals(): '
SETTINGS: Final = Settings(**SMALL, sites=1)


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program finds where it is started."""
    (tmp_path / "rates.txt").write_text("3 4")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trial() -> Iterator[CodeTrial]:
    """Of a node with sites."""
    with CodeTrial(inline=False) as trial:
        yield trial


def versions_of(directory: Path, app: Database, **settings: Any) -> list[int]:
    """Which versions of the code the log has, once a start with this one has served a call."""
    node = open_node(directory, app=app, **settings)
    try:
        ask(node, "hit", id=1)
        return sorted(node._boot.code.by_version)
    finally:
        node.close()


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[SiteChild]:
    """Every site process that was started."""
    found, spawn = list[SiteChild](), SiteChild.spawn

    def note(number: int, partitions: Sequence[int]) -> SiteChild:
        found.append(spawn(number, partitions))
        return found[-1]

    monkeypatch.setattr(SiteChild, "spawn", note)
    return found


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[SiteChild]:
    """Every one that was asked to try code."""
    found, try_code = list[SiteChild](), SiteChild.try_code

    def note(site: SiteChild, order: Any) -> None:
        found.append(site)
        try_code(site, order)

    monkeypatch.setattr(SiteChild, "try_code", note)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (BESIDE, r"FileNotFoundError: .*'rates.txt' \(.*\.py, line \d+\)"),
        (IN_A_BUNDLE + "raise RuntimeError('imported elsewhere')", r"imported elsewhere.*\(.*\.py, line \d+\)"),
        (IN_A_BUNDLE + "raise KeyboardInterrupt('pressed')", "ended its import: KeyboardInterrupt: pressed"),
        ("import os\n" + IN_A_BUNDLE + "os._exit(3)", "ended its import: exit code 3"),
    ],
    ids=["relative file", "error", "interrupt", "exit"],
)
def test_a_first_start_whose_code_no_replay_loads_makes_nothing(
    tmp_path: Path, spawned: list[SiteChild], begin: str, why: str
) -> None:
    """No process is left, and the corrected program starts as the first one, with other sizes."""
    with pytest.raises(NotReplayable, match=why) as refused:
        open_node(tmp_path / "data", app=make_version(tmp_path, 1, tables=begin)[0], partitions=1)
    assert refused.value.exit_code == 13
    assert os.listdir(tmp_path / "data") == [LOCK_NAME]
    assert [site.popen.returncode is None for site in spawned] == [False]
    assert versions_of(tmp_path / "data", make_version(tmp_path, 2)[0], partitions=2) == [1]


@pytest.mark.slow
def test_changed_code_that_no_replay_loads_is_not_logged(tmp_path: Path) -> None:
    """The former program can be started again, and the next version that runs is the log's second."""
    assert versions_of(tmp_path / "data", make_version(tmp_path, 1)[0]) == [1]
    with pytest.raises(NotReplayable, match=r"rates\.txt"):
        open_node(tmp_path / "data", app=make_version(tmp_path, 2, tables=BESIDE)[0])
    assert versions_of(tmp_path / "data", make_version(tmp_path, 1)[0]) == [1]
    assert versions_of(tmp_path / "data", make_version(tmp_path, 3)[0]) == [1, 2]


@pytest.mark.slow
def test_new_code_is_tried_by_the_sites_that_serve(tmp_path: Path, spawned: list[SiteChild], tried: list[SiteChild]) -> None:
    """No process is started for it; a start whose code the log has asks none to try."""
    app = make_version(tmp_path, 1, tables=HOME.format(folder=str(tmp_path)))[0]
    assert versions_of(tmp_path / "data", app, partitions=2, sites=2) == [1]
    assert [site.number for site in tried] == [0, 1]
    assert spawned == tried
    assert versions_of(tmp_path / "data", app, partitions=2, sites=2) == [1]
    assert len(tried) == 2


@pytest.mark.slow
def test_a_member_makes_no_directory_of_code_that_no_replay_loads(tmp_path: Path) -> None:
    """Neither does one that is started with such a program later propose it: it ends, and its former program serves."""
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    members = Members(tmp_path / "bad", app=make_version(tmp_path, 1, tables=BESIDE)[0])
    with pytest.raises(NotReplayable, match=r"rates\.txt"):
        members.join(1)
    assert os.listdir(tmp_path / "bad" / "n1") == [LOCK_NAME]
    members = Members(tmp_path / "good", app=make_version(tmp_path, 2)[0])
    try:
        members.join_all()
        members.close(1)
        with pytest.raises(NotReplayable, match=r"rates\.txt"):
            members.join(1, app=make_version(tmp_path, 3, tables=BESIDE)[0])
        members.join(1, app=make_version(tmp_path, 2)[0])
        assert ask(members.leader(), "hit", id=1) == 2
    finally:
        members.close_all()


def test_a_folder_that_is_no_nodes_is_refused_before_anything_is_tried(tmp_path: Path, spawned: list[SiteChild]) -> None:
    """What is found out at once costs no process."""
    with pytest.raises(NotEmpty):
        open_node(tmp_path, app=make_version(tmp_path, 1)[0])
    assert spawned == []


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_a_site_that_is_killed_meanwhile_is_tried_once_more(
    tmp_path: Path, trial: CodeTrial, spawned: list[SiteChild], monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """It says nothing about the code; a second one blames the machine."""
    real = SiteChild.try_code

    def try_code(site: SiteChild, order: Any) -> None:
        if len(spawned) <= kills:
            os.kill(site.popen.pid, signal.SIGKILL)
            site.popen.wait()
        real(site, order)

    monkeypatch.setattr(SiteChild, "try_code", try_code)
    bundle = capture_bundle(make_version(tmp_path, 1)[0])
    if kills == 2:
        with pytest.raises(NotStarted, match="SIGKILL"):
            trial.load(bundle, SETTINGS)
        return
    for _ in range(2):
        trial.load(bundle, SETTINGS)
    site = trial.take_site(0, (0,))
    assert site is spawned[1]
    site.discard()


@pytest.mark.slow
def test_a_machine_without_temporary_folders_tries_code_too(
    tmp_path: Path, trial: CodeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a read-only root: a relative path leads nowhere there either."""

    def refuse(**_: Any) -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    trial.load(capture_bundle(make_version(tmp_path, 1)[0]), SETTINGS)
    with pytest.raises(NotReplayable, match=r"rates\.txt"):
        trial.load(capture_bundle(make_version(tmp_path, 2, tables=BESIDE)[0]), SETTINGS)
