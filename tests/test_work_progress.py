"""Whether a child process gets on, as its parent sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.work_progress import count_progress, hear_progress, read_progress


def test_program_that_is_no_child_counts_for_nobody() -> None:
    """The same code runs in the node itself."""
    count_progress()
    assert read_progress(-1) == 0


@pytest.mark.slow
def test_progress_of_a_child_is_seen_by_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted where work is done: a child that stands still shows the same number, whoever looks."""
    source = "from cmdlog.work_progress import count_progress\nimport sys\n"
    source += "def main():\n    for line in sys.stdin.buffer:\n        count_progress()\n        print('done', flush=True)"
    (tmp_path / "planted_progress.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with ChildProcess("planted_progress", stdin=PIPE, stdout=PIPE) as child:
        seen = [child.progress()]
        for _ in range(3):
            assert child.ask("more") == b"done\n"
            seen += [child.progress(), child.progress()]
        assert seen == [0, 1, 1, 2, 2, 3, 3]
    assert child.progress() == 0


@pytest.mark.slow
def test_work_of_a_child_of_a_child_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill leaves the replay to workers: what they count reaches the node."""
    (tmp_path / "planted_outer.py").write_text(
        "from cmdlog.child_process import PIPE, ChildProcess\n"
        "def main():\n"
        "    with ChildProcess('planted_inner', stdout=PIPE) as child:\n"
        "        child.finish()\n"
    )
    (tmp_path / "planted_inner.py").write_text(
        "import time\nfrom cmdlog.work_progress import count_progress\n"
        "def main():\n    while True:\n        count_progress()\n        time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    heard: list[int] = []
    with ChildProcess("planted_outer", stdout=PIPE) as child, hear_progress(lambda: heard.append(1)):
        assert child.finish(given_up=lambda: len(heard) >= 3) is None
    assert len(heard) >= 3
