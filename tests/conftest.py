"""Rules for every test: which run when nobody names a marker, and which share a process."""

from typing import Any

import pytest

BY_NAME_ONLY = ("torture", "fuzz", "sim")
"""Markers of tests that run for minutes: left out unless `-m` names them, also under `-m 'not slow'`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that run by name only."""
    left_out = [name for name in BY_NAME_ONLY if name not in config.option.markexpr]
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (deselected if any(map(item.get_closest_marker, left_out)) else chosen).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile` one process gets all of tests/spark: it holds one JVM, and a second one would not fit beside it."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class OneProcessForSpark(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.split("::", 1)[0]

    return OneProcessForSpark(config, log)
