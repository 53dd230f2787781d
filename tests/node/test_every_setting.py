"""Every setting at its smallest and its largest value: a node runs, is started again, and has what it acknowledged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import cmdlog
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.node.settings import TABLE, SettingRow
from tests.node.apps.faulty import db
from tests.node.rig import SMALL
from tests.waiting import wait_for

LARGE: Final = 1 << 40  # for what has no largest value
NOT_RUN: Final[Mapping[str, str]] = {
    "host": "an address, not a size",
    "token_file": "a path; tests/api/test_tokenfile.py",
    "tls_cert_file": "a path; tests/api/test_tls.py",
    "tls_key_file": "a path; tests/api/test_tls.py",
    "tls_ca_file": "a path; tests/api/test_tls.py",
}
NOT_LARGEST: Final[Mapping[str, tuple[Any, str]]] = {
    "partitions": (16, "1,000 states take minutes to make"),
    "segment_bytes": (64 << 20, "three segments of 256 MiB are zeroed ahead, for a minute on a slow disk"),
    "sites": (4, "1,024 processes do not fit a test machine; no more than partitions are let in"),
    "log_reserve_bytes": (512 << 10, "half a segment is the most that is let in"),
}
WITH: Final[Mapping[str, dict[str, Any]]] = {  # what has to be given beside the value for it to be let in
    "segment_bytes": {"segments": 4, "log_reserve_bytes": 8 << 10, "call_bytes_max": 4096, "partitions": 1},
    "segments": {"segment_bytes": 64 << 10, "log_reserve_bytes": 8 << 10, "call_bytes_max": 4096, "partitions": 1},
    "partitions": {"segments": 4},
    "batch_bytes_max": {"call_bytes_max": 1024, "inflight_bytes_max": 64 << 20},
    "call_bytes_max": {"segment_bytes": 64 << 20, "segments": 4, "batch_bytes_max": 16 << 20},
    "inflight_bytes_max": {"batch_bytes_max": 1024, "call_bytes_max": 1024},
    "key_window_s": {"key_forget_s": LARGE},
    "sites": {"partitions": 4},
    "key_forget_s": {"key_window_s": 1},
}
OFTEN: Final = {"segment_bytes", "log_reserve_bytes", "preallocate", "keys_max"}


def values_of(setting: SettingRow) -> list[Any]:
    """The smallest and the largest value, or every choice."""
    if setting.kind == "bool":
        return [False, True]
    if setting.choices:
        return list(setting.choices)
    kind = int if setting.kind == "int" else float
    largest = kind(setting.highest) if setting.highest < math.inf else kind(LARGE)
    largest = NOT_LARGEST.get(setting.name, (largest, ""))[0]
    return [kind(setting.lowest), largest]


def cases() -> Iterator[Any]:
    """(name, value): some with every run of the tests, the others for minutes."""
    for setting in TABLE.values():
        if setting.name in NOT_RUN:
            continue
        mark = pytest.mark.slow if setting.name in OFTEN else pytest.mark.torture
        for value in values_of(setting):
            yield pytest.param(setting.name, value, marks=mark, id=f"{setting.name}={value}")


@pytest.mark.parametrize(("name", "value"), list(cases()))
def test_a_node_runs_and_starts_again_with(tmp_path: Path, name: str, value: Any) -> None:
    """Calls are executed once, a snapshot is taken, a query answers, and the next start finds all of it."""
    given = {"partitions": 2, **SMALL, **WITH.get(name, {}), name: value}
    if name == "digest_rows" and not value:
        given["snapshot_deltas"] = False
    with cmdlog.open(tmp_path / "data", db, **given) as node:
        for number in range(12):
            called(node, number % 3)
        node.node.take_snapshot()
        before = [peeked(node, number) for number in range(3)]
        assert before == [4, 4, 4]
    with cmdlog.open(tmp_path / "data", db, **given) as node:
        assert [peeked(node, number) for number in range(3)] == before
        called(node, 0)
        assert peeked(node, 0) == 5
        assert node.node.error is None


def called(node: cmdlog.Embedded, number: int) -> None:
    """One call, which the smallest logs refuse until a snapshot has made room."""

    def taken() -> bool:
        try:
            return bool(node.call("bump", id=number, amount=1))
        except LogFullRefusal:
            return False

    wait_for(taken)


def peeked(node: cmdlog.Embedded, number: int) -> int:
    """What a counter has."""
    return int(node.call("peek", id=number))


def test_every_setting_has_its_case() -> None:
    """A new setting is run at both ends, or has a reason here; no reason is of a setting that is gone."""
    run = {case.values[0] for case in cases()}
    assert run | set(NOT_RUN) == set(TABLE)
    assert set(NOT_LARGEST) | set(WITH) <= set(TABLE)
