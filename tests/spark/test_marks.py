"""What a feed remembers of an order that has not ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from replay.spark.base.version_check import versions
from replay.spark.feeding.marks import Marks
from replay.spark.feeding.task import feed_file
from replay.spark.jobs.task_attempt import carry_out

ROWS = 120
FIRST = 30
END = 110


@pytest.fixture(autouse=True)
def small_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One each ten rows."""
    monkeypatch.setattr("replay.spark.feeding.marks.MARK_ROWS", 10)


def order_of(folder: Path) -> dict[str, Any]:
    """A range in the middle of a file; every seventh row is no call."""
    for name in ("attempts", "rows", "progress"):
        (folder / name).mkdir()
    params = ["[]" if n % 7 == 0 else orjson.dumps({"n": n}).decode() for n in range(ROWS)]
    parquet.write_table(
        pyarrow.table({"procedure": ["bump"] * ROWS, "params": params}), folder / "calls.parquet", row_group_size=25
    )
    about = {"key": "c000003-000030", "partition": 5, "file": 3, "first": FIRST, "job": "j", "began_ms": 1_700_000_000_000}
    return {**about, "path": str(folder / "calls.parquet"), "calls": END - FIRST, "staging": str(folder), "versions": versions()}


class Server:
    """Answers calls, each fifth one with an abort; the process dies behind so many answers. It reads ahead as a client does."""

    def __init__(self, answers: int, window: int = 15) -> None:
        self.left, self.window = answers, window
        self.names: list[str] = []
        self.times: dict[str, int] = {}  # in the keys

    def __call__(self, rows: Iterable[tuple[str, Mapping[str, Any], str]], *, began_ms: int) -> Iterator[dict[str, Any]]:
        ahead: list[int] = []
        for _, params, name in rows:
            self.names.append(name)
            self.times[name] = began_ms
            ahead.append(params["n"])
            if len(ahead) == self.window:
                yield from self._answers(ahead)
        yield from self._answers(ahead)

    def _answers(self, ahead: list[int]) -> Iterator[dict[str, Any]]:
        while ahead:
            if not self.left:
                raise OSError("the machine dies")
            self.left -= 1
            ended = "aborted" if ahead.pop(0) % 5 == 0 else "ok"
            yield {"key": "k", "ended": ended, "code": "", "abort_code": "", "detail": "", "txn_id": 1}


@pytest.mark.parametrize("answers", [0, 1, 14, 15, 16, 40, 67, 68])
def test_next_attempt_sends_what_has_no_answer(tmp_path: Path, answers: int) -> None:
    """However far the first attempt came: what it had answers for is not sent again, and the report is whole."""
    order = order_of(tmp_path)

    def work(order: Mapping[str, Any], attempt: Any) -> dict[str, Any]:
        return feed_file(order, attempt, server)

    server = Server(answers)
    with pytest.raises(OSError, match="the machine dies"):
        carry_out(order, work)
    assert len(server.names) <= answers + server.window
    first, server = server, Server(ROWS)
    row = orjson.loads(carry_out(order, work))
    calls = [n for n in range(FIRST, END) if n % 7]
    assert server.names == [f"j/3/{n}" for n in calls[answers:]]
    assert first.names == [f"j/3/{n}" for n in calls[: len(first.names)]]
    bad = {n: "refused" if n % 7 == 0 else "aborted" for n in range(FIRST, END) if n % 7 == 0 or n % 5 == 0}
    assert (row["calls"], row["statuses"]["ok"]) == (END - FIRST, END - FIRST - len(bad))
    report = parquet.read_table(tmp_path / row["files"][0]["path"]).to_pylist()
    assert {of["row"]: of["ended"] for of in report} == bad
    assert [of["row"] for of in report] == sorted(bad)
    assert {of["file"] for of in report} == {3}


def test_keys_have_the_time_at_which_their_part_was_first_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was sent keeps its key however late the next attempt is; one that was not gets a key that is not too old."""
    order = {**order_of(tmp_path), "key_rows": 20}

    def work(order: Mapping[str, Any], attempt: Any) -> dict[str, Any]:
        return feed_file(order, attempt, server)

    first = server = Server(30)
    monkeypatch.setattr("replay.spark.feeding.task.time.time", lambda: 1_800_000_000)
    with pytest.raises(OSError, match="the machine dies"):
        carry_out(order, work)
    second = server = Server(ROWS)
    monkeypatch.setattr("replay.spark.feeding.task.time.time", lambda: 1_800_086_400)
    assert orjson.loads(carry_out(order, work))["calls"] == END - FIRST
    assert set(first.times.values()) == {1_800_000_000_000}
    both = first.times.keys() & second.times.keys()
    assert both
    assert {name: second.times[name] for name in both} == {name: first.times[name] for name in both}
    begun = FIRST + 40
    assert {int(name.split("/")[2]) >= begun: ms for name, ms in second.times.items()} == {
        False: 1_800_000_000_000,
        True: 1_800_086_400_000,
    }


def test_two_attempts_at_once_agree_on_the_time_of_a_part(tmp_path: Path) -> None:
    """Whoever asks first decides, for each part by itself; the folders of the other one do not stay."""
    one, two = (Marks(str(tmp_path), "c0-0", f"c0-0.{name}") for name in ("aa", "bb"))
    with contextlib.closing(one), contextlib.closing(two):
        assert (one.fix_key_time(0, 5), two.fix_key_time(0, 6), two.fix_key_time(20, 7), one.fix_key_time(20, 8)) == (5, 5, 7, 7)
    assert sorted(path.name for path in (tmp_path / "marks").glob("*.time")) == ["c0-0.000000.time", "c0-0.000020.time"]


def test_marks_that_death_cut_count_as_far_as_they_are_whole(tmp_path: Path) -> None:
    """A file cut at any byte gives the rows of its whole lines; a line of rubbish ends it; other orders' marks are left alone."""
    marks = Marks(str(tmp_path), "c0-0", "c0-0.aa")
    for n in range(35):
        marks.add("aborted" if n == 12 else "ok", {"row": n} if n == 12 else None)
    data = Path(marks.path).read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) == 3  # the last five rows are not marked
    for size in range(0, len(data) + 1, 7):
        Path(marks.path).write_bytes(data[:size])
        again = Marks(str(tmp_path), "c0-0", "c0-0.bb")
        assert again.upto == 10 * data[:size].count(b"\n") == again.ended.total()
        again.close()
        os.unlink(again.path)
    Path(marks.path).write_bytes(lines[0] + b"\0" * 40 + b"\n" + lines[2])
    for key, upto in (("c0-0", 10), ("c0", 0)):
        with contextlib.closing(Marks(str(tmp_path), key, f"{key}.cc")) as found:
            assert found.upto == upto
    marks.close()


def test_two_attempts_at_once_keep_marks_apart(tmp_path: Path) -> None:
    """The third one takes those of whoever came further."""
    one, other = Marks(str(tmp_path), "c0-0", "c0-0.aa"), Marks(str(tmp_path), "c0-0", "c0-0.bb")
    for _ in range(20):
        one.add("ok")
    for _ in range(30):
        other.add("failed", {"row": 1})
    third = Marks(str(tmp_path), "c0-0", "c0-0.cc")
    assert (third.upto, dict(third.ended)) == (30, {"failed": 30})
    assert sum(len(rows) for rows in third.report()) == 30  # also when no row is left to be sent
    for marks in (one, other, third):
        marks.close()
