"""Large files made durable and removed in pieces."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from snapshot import background_io
from snapshot.background_io import WORK_S
from tests.waiting import PATIENCE_S


def test_writing_out_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece is written, the last and shorter one too, and the bytes are those that were there."""
    monkeypatch.setattr(background_io, "WRITE_BYTES", 1000)
    path = tmp_path / "image"
    content = os.urandom(4321)
    path.write_bytes(content)
    written: list[tuple[int, int, int]] = []
    real = os.pwritev

    def watched(fd: int, pieces: list[bytes], at: int, flags: int) -> int:
        written.append((at, len(pieces[0]), flags))
        return real(fd, pieces, at, flags)

    monkeypatch.setattr(os, "pwritev", watched)
    background_io.write_out(str(path))
    assert path.read_bytes() == content
    assert [part[:2] for part in written] == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000), (4000, 321)]
    assert {part[2] for part in written} == {os.RWF_DSYNC}


def test_file_with_another_name_stays_whole_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill that holds an image by a hard link reads all of it after retention removed the snapshot."""
    monkeypatch.setattr(background_io, "CUT_BYTES", 1000)
    path, held = tmp_path / "image", tmp_path / "held"
    path.write_bytes(bytes(3500))
    os.link(path, held)
    background_io.remove_file(str(path))
    assert (path.exists(), held.stat().st_size) == (False, 3500)


def test_a_large_file_is_cut_off_in_pieces_before_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cut takes more than a piece, and the unlink finds at most one."""
    monkeypatch.setattr(background_io, "CUT_BYTES", 1000)
    monkeypatch.setattr(background_io, "CUT_PAUSE_S", 0)
    path = tmp_path / "image"
    path.write_bytes(bytes(3500))
    sizes = [3500]
    truncate, unlink = os.truncate, os.unlink

    def cut(name: str, size: int) -> None:
        sizes.append(size)
        truncate(name, size)

    def taken_away(name: str) -> None:
        sizes.append(0)
        unlink(name)

    monkeypatch.setattr(os, "truncate", cut)
    monkeypatch.setattr(os, "unlink", taken_away)
    background_io.remove_file(str(path))
    assert not path.exists()
    assert all(0 < before - after <= 1000 for before, after in pairwise(sizes))


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    """Empty files, folders in folders, and a link whose target stays."""
    kept = tmp_path / "kept"
    kept.write_bytes(b"1")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(b"2")
    (folder / "empty").touch()
    (folder / "link").symlink_to(kept)
    background_io.remove_tree(str(folder))
    assert not folder.exists()
    assert kept.read_bytes() == b"1"


def test_rest_is_taken_when_the_last_one_was_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every call, which would cost more than the work, and never later than the first one behind `WORK_S`."""
    now, rests = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: rests.append((now[0], seconds)))
    monkeypatch.setattr(background_io, "time", clock)
    rest = background_io.Breath()
    for _ in range(10):
        now[0] += background_io.WORK_S * 0.4
        rest()
    assert [at for at, _ in rests] == pytest.approx([background_io.WORK_S * 0.4 * call for call in (3, 6, 9)])
    assert {seconds for _, seconds in rests} == {background_io.REST_S}


def test_cache_is_forgotten_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the file, a rest behind each piece."""
    monkeypatch.setattr(background_io, "FORGET_BYTES", 4096)
    path = tmp_path / "image"
    path.write_bytes(bytes(10_000))
    done: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, at, size, _advice: done.append(f"{at}+{size}"))

    def rested() -> bool:
        done.append("rest")
        return False

    background_io.forget_cache(str(path), rested)
    assert done == ["0+4096", "rest", "4096+4096", "rest", "8192+4096", "rest"]


# -- Starting a process that makes way

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, resource, signal, sys

def rests():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

first, looks = rests(), 0
while rests() < first + 5 and looks < 3_000_000:
    looks += 1
during, told = rests() - first, [signal.getitimer(signal.ITIMER_REAL)[1]]

def main():
    told.append(signal.getitimer(signal.ITIMER_REAL)[1])
    print(json.dumps({"rests": during, "timer": told, "arguments": sys.argv[1:]}))
    return 3
"""


def test_imports_rest(tmp_path: Path) -> None:
    """A module that only computes while it is imported gives the processor up again and again; its `main` is left alone."""
    (tmp_path / "probe.py").write_text(PROBE)
    done = subprocess.run(
        [sys.executable, "-m", "snapshot.background_io", "probe", "a", "b"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3, done.stderr
    told = orjson.loads(done.stdout)
    assert told["rests"] >= 5
    assert told["timer"] == [WORK_S, 0]
    assert told["arguments"] == ["a", "b"]
