"""Whether a child process gets on, as its parent sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.child_process import PIPE, ChildProcess
from cmdlog.child_progress import count_progress, read_progress


def test_program_that_is_no_child_counts_for_nobody() -> None:
    """The same code runs in the node itself."""
    count_progress()
    assert read_progress(-1) == 0


@pytest.mark.slow
def test_progress_of_a_child_is_seen_by_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted where work is done: a child that stands still shows the same number, whoever looks."""
    source = "from cmdlog.child_progress import count_progress\nimport sys\n"
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
