"""Work that fails on executors, beside the folder of the job: each kind leaves a file that says how often it ran."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay.errors import ReplayError
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.task_attempt import Attempt
from tests.waiting import wait_for


def die_once(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The first attempt at each task ends with its process, half of a file written."""
    if _count(order, "died") == 1:
        Path(attempt.folder, "accounts.parquet").write_bytes(b"PAR1 half")
        os._exit(1)
    return rebuild_partition(order, attempt)


def fail_first_partition(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The disk of whoever takes partition 0 is full, each time."""
    if order["partition"] == 0:
        _count(order, "failed")
        raise OSError(28, "No space left on device")
    return count_runs(order, attempt)


def refuse(_order: Mapping[str, Any], _attempt: Attempt) -> dict[str, Any]:
    """An error that no second attempt would cure."""
    raise ReplayError("not today")


def count_runs(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """It works, and says that it ran."""
    _count(order, "ran")
    return rebuild_partition(order, attempt)


def fill_disk(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Somebody else takes all the room of the output's volume, once, before any task writes there."""
    volume = Path(order["staging"]).parent
    mark = volume.with_name("full")
    try:
        made = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        wait_for(lambda: mark.stat().st_size)
    else:
        with contextlib.suppress(OSError), open(volume / "filler", "ab", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        os.write(made, b".")
        os.close(made)
    return rebuild_partition(order, attempt)


def take_input_away(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The node's directory is gone when the first task begins."""
    _count(order, "ran")
    node = order["points"][0]["legs"][0]["directory"]
    with contextlib.suppress(FileNotFoundError):
        os.rename(node, f"{node}.away")
    return rebuild_partition(order, attempt)


def wait_in_second(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """Partition 1 does not end before it is killed."""
    _wait_in_second(order, attempt)
    return count_runs(order, attempt)


def wait_in_second_whatif(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The same of a back-fill."""
    _wait_in_second(order, attempt)
    return count_whatifs(order, attempt)


def count_whatifs(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """It works, and says that it ran."""
    _count(order, "ran")
    return backfill_partition(order, attempt)


def _wait_in_second(order: Mapping[str, Any], attempt: Attempt) -> None:
    if order["partition"] == 1:
        Path(attempt.folder, "half.parquet").write_bytes(b"PAR1 half")
        _count(order, "waits")
        while True:
            attempt.count_calls(1)
            time.sleep(0.05)


def stop_in_second(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The first attempt at partition 1 stands still with half of a file written, as a process that hangs does."""
    _stop_in_second(order, attempt)
    return count_runs(order, attempt)


def stop_in_second_whatif(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
    """The same of a back-fill."""
    _stop_in_second(order, attempt)
    return count_whatifs(order, attempt)


def _stop_in_second(order: Mapping[str, Any], attempt: Attempt) -> None:
    if order["partition"] == 1 and _count(order, "stops") == 1:
        Path(attempt.folder, "half.parquet").write_bytes(b"PAR1 half")
        os.kill(os.getpid(), signal.SIGSTOP)


def runs(staging: str | Path, what: str, key: str) -> int:
    """How often that happened to a task."""
    try:
        return os.stat(_path(staging, what, key)).st_size
    except FileNotFoundError:
        return 0


def _count(order: Mapping[str, Any], what: str) -> int:
    with open(_path(order["staging"], what, order["key"]), "ab") as file:
        file.write(b".")
    return runs(order["staging"], what, order["key"])


def _path(staging: str | Path, what: str, key: str) -> Path:
    return Path(staging).parent / f"{what}.{key}"
