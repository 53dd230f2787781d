"""Tasks that have reported nothing for long."""

from __future__ import annotations

from replay.spark.jobs.task_attempt import STALLED_S, StalledTasks, TaskProgress


def test_task_without_a_report_is_named_until_the_next_one() -> None:
    """The sentence stays the same, so that it is printed once; of several tasks the one that was silent first is named."""
    now = [100.0]
    stalled = StalledTasks(lambda: now[0])
    first, second = TaskProgress(7, process="process 12 on here"), TaskProgress(9, process="process 13 on there")
    assert stalled.find({"p0": first}) == ""
    now[0] += 1
    assert stalled.find({"p0": first, "p1": second}) == ""
    now[0] += STALLED_S - 1
    said = stalled.find({"p0": first, "p1": second})
    assert said.startswith("task p0 has reported nothing since ")
    assert ", process 12 on here; " in said
    now[0] += 5
    assert stalled.find({"p0": first, "p1": second}) == said
    assert ", process 13 on there; " in stalled.find({"p0": TaskProgress(8, process=first.process), "p1": second})
    assert stalled.find({"p0": TaskProgress(8, process=first.process)}) == ""
