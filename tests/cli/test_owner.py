"""Commands of root leave nothing of root in another user's node directory, and the service of that user starts afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import cmdlog
from cmdlog.cli.directory.owner import act_as_owner, made_for_owner
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from procedures.samples import bank
from snapshot.catalog import list_snapshots

pytestmark = pytest.mark.slow
OWNER: Final = 54321  # nobody has an account of this number
APP: Final = "procedures.samples.bank:db"
LOOKING: Final = (
    "log inspect", "log dump", "log history", "log verify", "snapshot list", "snapshot verify", "snapshot points",
    "archive list", "archive verify", "drill", "recover --plan", "recover", "diff", "cluster quarantine list",
)  # fmt: skip
MAKING: Final = (
    "recover DIR --to OUT", "snapshot export DIR --to OUT", "snapshot export DIR --to OUT --point NOW",
    f"recover DIR --to OUT --code current --app {APP}", f"fork DIR --at start --app {APP} --to OUT",
)  # fmt: skip
WITH_CODE: Final = (f"migrate {APP} --plan --data", f"migrate {APP} --data", f"check {APP} --from")
START: Final = """
import sys, cmdlog
from cmdlog.cli.directory.owner import become
from procedures.samples import bank
become(int(sys.argv[2]), int(sys.argv[2]))
with cmdlog.open(sys.argv[1], bank.db, partitions=1) as opened:
    opened.call("open_account", branch=1, customer=2)
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A stopped node of another user, with files that a stop leaves and with those of a kill."""
    data = tmp_path / "node"
    with cmdlog.open(data, bank.db, partitions=1, segments=4, segment_bytes=1 << 20) as opened:
        opened.call("open_account", branch=1, customer=1)
        opened.node.take_snapshot()
        opened.call("open_account", branch=1, customer=3)
    for folder, _, names in os.walk(data):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, OWNER, OWNER)
    return data


def owners(data: Path) -> dict[str, int]:
    """Owner of each file and folder."""
    return {str(path.relative_to(data)): path.stat().st_uid for path in (data, *data.rglob("*"))}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")
def test_root_leaves_no_file_that_stops_the_service(node: Path) -> None:
    """After every command that looks, all files are the owner's, and its service starts; so does it beside a folder of root."""
    failed = {}
    for words in (*(f"{command} DIR" for command in LOOKING), *(f"{command} DIR" for command in WITH_CODE)):
        command = words.replace("DIR", str(node)).split() + ([str(node)] if words.startswith("diff") else [])
        done = subprocess.run([sys.executable, "-m", "cmdlog", *command], check=False, capture_output=True, text=True)
        if done.returncode:
            failed[words] = done.stderr
        assert set(owners(node).values()) == {OWNER}, words
    assert failed == {}
    (node / "drills").rename(node.parent / "drills")
    (node / "drills").mkdir(0o700)  # as of root, from another time: a start does not need it
    started = subprocess.run([sys.executable, "-c", START, str(node), str(OWNER)], check=False, capture_output=True, text=True)
    assert started.returncode == 0, started.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")
def test_what_root_makes_of_a_directory_is_its_owners(node: Path, tmp_path: Path) -> None:
    """Also where its owner may not write, and after a run that failed; a service of the owner starts on a fork."""
    (made,) = list_snapshots(RealFiles(), str(node), load_instance(RealFiles(), str(node)).identity)
    moment = str(made.manifest.txn_id) if made.manifest else ""
    for number, words in enumerate(MAKING):
        out = tmp_path / f"out{number}"
        command = words.replace("DIR", str(node)).replace("OUT", str(out)).replace("NOW", moment).split()
        done = subprocess.run([sys.executable, "-m", "cmdlog", *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
        assert {*owners(out).values(), *owners(node).values()} == {OWNER}, words
    started = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path / f"out{len(MAKING) - 1}"), str(OWNER)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert started.returncode == 0, started.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")
def test_a_refused_output_keeps_its_owner(node: Path, tmp_path: Path) -> None:
    """A folder that holds other things is nobody's output; a new one is given away however the run ends."""

    def fail(out: Path) -> None:
        with made_for_owner(node, out):
            (out / "state").mkdir(parents=True)
            raise KeyboardInterrupt

    (tmp_path / "mine" / "other").mkdir(parents=True)
    for name, owner in {"mine": 0, "new": OWNER}.items():
        with pytest.raises(KeyboardInterrupt):
            fail(tmp_path / name)
        assert set(owners(tmp_path / name).values()) == {owner}


def test_what_is_no_node_of_another_user_changes_nobody(tmp_path: Path) -> None:
    """An own directory, an empty one, and one that is not there."""
    before = os.getresuid(), os.getresgid()
    assert [act_as_owner(path) for path in (tmp_path, tmp_path / "none")] == [tmp_path, tmp_path / "none"]
    assert (os.getresuid(), os.getresgid()) == before
