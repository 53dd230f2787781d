"""`cmdlog status`: what matters, from whatever a server tells."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import out
from cmdlog.cli.server.status import error_lines, partition_rows, render, status, summary
from tests.client.scripted import ScriptedServer, Step, http, problem

TOLD: dict[str, Any] = {
    "node": "cluster c, node 1",
    "directory": "/data/[x]",
    "ready": True,
    "error": None,
    "uptime_s": 7300.2,
    "durability": "sync",
    "partitions": {
        "0": {"role": "leader", "durable": 7, "committed": 7, "applied": 6},
        "1": {"role": "leader", "durable": 1, "committed": 1, "applied": 1, "lag": 3},
    },
    "inflight_calls": 3,
    "inflight_bytes": 90,
    "idempotency_keys": 5,
    "sessions": 4,
    "clock": {"jumped": False},
    "sites": [1, 2],
    "log": {
        "segments": {"total": 64, "used": 32},
        "fill": 0.5,
        "sync_us": {"median": 300.0, "p99": 1200.0},
        "held_by": {"anchor": "snapshot-p0000"},
        "disk_full": None,
    },
    "predicted_recovery_s": 1.5,
}


def shown(told: dict[str, Any]) -> str:
    """The status as a terminal of eighty columns shows it."""
    written = io.StringIO()
    Console(width=80, file=written).print(render(told))
    return written.getvalue()


def test_status_fits_eighty_columns() -> None:
    """Node, watermarks, log fill, load: all there, nothing cut."""
    text = shown(TOLD)
    for part in ("ready", "/data/[x]", "for 2.0 hours", "2 site processes", "50.0% full", "32 of 64 segments", "snapshot-p0000",
                 "0.30 ms", "about 1.5 s", "3 calls in flight", "4 client sessions", "committed", "applied"):  # fmt: skip
        assert part in " ".join(text.split()), part
    assert "…" not in text
    assert "red" not in dict(summary(TOLD)).get("error", "")


def test_a_reserve_in_use_and_missing_space_are_shown() -> None:
    """How much of the reserve is left, once some is used; how many segments others could take the space of."""
    log = {"segments": {"total": 64, "used": 64, "without_space": 2}, "fill": 1.0, "reserve": {"bytes": 9000, "left_bytes": 9000}}
    text = dict(summary({**TOLD, "log": log}))["log"]
    assert "2 segments without space of their own" in text
    assert "reserve" not in text
    log["reserve"] = {"bytes": 9000, "left_bytes": 400}
    assert "400 of 9000 bytes of its reserve left" in dict(summary({**TOLD, "log": log}))["log"]


def test_troubles_come_first() -> None:
    """Whatever is wrong stands above what is usual."""
    told = {**TOLD, "error": "fsync failed", "ready": False, "log": {"disk_full": "no space"}, "clock": {"jumped": True},
            "failure_set": {"nodes": [3]}, "snapshot_error": "image damaged"}  # fmt: skip
    names = [name for name, _ in summary(told)]
    assert names[:6] == ["error", "disk full", "snapshots", "clock", "failed nodes", "state"]


def test_reach_of_the_archive_is_shown_and_a_promise_that_is_not_kept() -> None:
    """How far back one can go, where a window is kept; where one was promised and is not, that is a trouble."""
    assert "restorable" not in dict(summary({**TOLD, "archive": {"window_s": 0.0, "oldest_txn": "0"}}))
    for oldest, says in (("0", "since the beginning"), ("7", "since 2026-01-31T12:00:00Z"), (None, "no moment but the newest")):
        archive = {"window_s": 60.0, "oldest_txn": oldest, "oldest_time": "2026-01-31T12:00:00Z" if oldest == "7" else None}
        assert says in dict(summary({**TOLD, "archive": archive}))["restorable"]
    name, text = summary({**TOLD, "archive": {"window_s": 0.0, "unkept_window_s": 604800.0}})[0]
    assert (name, "604800 s was promised" in text) == ("archive", True)
    damaged = {"window_s": 0.0, "unkept_window_s": None, "promise_problem": "/data/archive/promise.json is damaged"}
    name, text = summary({**TOLD, "archive": damaged})[0]
    assert (name, "promise.json is damaged" in text) == ("archive", True)


def test_damage_is_a_trouble_and_the_scrub_says_how_far_it_is() -> None:
    """File, offset, partition and what is done; the pass under way and the last one; off, or interrupted."""
    found = {"path": "/data/log/seg-2", "offset": 8192, "partition": 3, "what": "body_crc", "repair": "fresh snapshots are taken"}
    under_way = {"every_s": 9.0, "pass": {"percent": 48.5}, "last": {"finished": 0.0}, "findings": [found], "problem": None}
    rows = summary({**TOLD, "scrub": under_way})
    assert rows[0] == ("damage", "[red]/data/log/seg-2 at offset 8192, partition 3: body_crc; fresh snapshots are taken[/red]")
    assert dict(rows)["scrub"] == "48.5 % of log, snapshots and archive read, last whole pass ended 1970-01-01T00:00:00Z"
    assert dict(summary({**TOLD, "scrub": {"every_s": 0.0}}))["scrub"] == "off: see scrub_every_s"
    assert dict(summary({**TOLD, "scrub": {"every_s": 1.0}}))["scrub"] == "no pass yet"
    assert "interrupted: why" in dict(summary({**TOLD, "scrub": {"every_s": 1.0, "problem": "why"}}))["scrub"]
    bare = {"path": "/data/archive/x", "what": "bad"}
    assert "/data/archive/x: bad; just found" in summary({**TOLD, "scrub": {"findings": [bare]}})[0][1]
    assert "scrub" not in dict(summary(TOLD))


def test_an_archive_that_takes_no_more_is_a_trouble_and_an_unknown_recovery_time_is_called_so() -> None:
    """Status names the archive as the cause that `log_full` names; before any call it does not forecast `None` seconds."""
    why = "600 bytes are in /data/archive, and archive_bytes_max=614400 leaves no room for 9 more"
    rows = summary({**TOLD, "predicted_recovery_s": None, "archive": {"window_s": 60.0, "problem": why}})
    assert rows[0][0] == "archive"
    assert why in rows[0][1]
    assert dict(rows)["recovery"] == "unknown until a call has been executed"


def test_a_full_volume_is_named_with_what_it_has_left() -> None:
    """Path and free bytes stand first, and the table says which partitions met it; without trouble it has no such column."""
    full = {"path": "/data/[x]", "free_bytes": 4096, "partitions": [0]}
    marks = TOLD["partitions"]
    told = {**TOLD, "ready": False, "disk_full": full, "partitions": {n: {"state": "ok", **of} for n, of in marks.items()}}
    assert "state" not in partition_rows(told)[0]
    told["partitions"]["0"]["state"] = "disk_full"
    told["partitions"]["1"]["state"] = "io"
    rows = summary(told)
    assert [name for name, _ in rows[:3]] == ["disk full", "partitions", "state"]
    text = " ".join(shown(told).split())
    assert "/data/[x]: 4,096 bytes free" in text
    assert "1 refuses calls: io" in text
    assert "│ disk_full │" in text


def test_calls_that_hang_are_a_trouble() -> None:
    """The server's own sentence, in red, before everything that is well."""
    stalled = [{"message": "partition 1: reserve has been running for 4.2 s"}, {"message": "partition 2: [stopped]"}]
    name, text = summary({**TOLD, "stalled": stalled})[0]
    assert (name, text) == ("stalled", "[red]partition 1: reserve has been running for 4.2 s; partition 2: \\[stopped][/red]")


def test_recent_errors_have_text_place_count_and_time() -> None:
    """The newest first; an error that no procedure raised has no place."""
    raised = {"code": "procedure_failed", "procedure": "reserve", "text": "KeyError: 'x'", "file": "shop.py", "line": 7}
    errors = [
        {
            "code": "log_full",
            "procedure": "",
            "text": "no room",
            "file": "",
            "line": 0,
            "count": 2,
            "time": 0.0,
            "request_id": "a",
        },
        {**raised, "count": 3, "time": 1_700_000_000.5, "request_id": "b"},
    ]
    assert error_lines({"errors": errors}) == [
        "2023-11-14T22:13:20Z  3 x procedure_failed in reserve, shop.py:7 (request b)",
        "    KeyError: 'x'",
        "1970-01-01T00:00:00Z  2 x log_full (request a)",
        "    no room",
    ]
    assert "KeyError" in shown({**TOLD, "errors": errors})


def test_partitions_have_a_row_each() -> None:
    """Marks that one partition has and another lacks leave an empty cell."""
    columns, rows = partition_rows(TOLD)
    assert columns == ["partition", "role", "durable", "committed", "applied", "lag"]
    assert rows == [["0", "leader", "7", "7", "6", ""], ["1", "leader", "1", "1", "1", "3"]]


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(sorted(TOLD)), JSON), st.dictionaries(st.sampled_from(sorted(TOLD["log"])), JSON))
def test_status_of_another_version_is_shown_as_far_as_it_goes(told: dict[str, Any], log: dict[str, Any]) -> None:
    """Missing members and members of other types are left out, never a crash."""
    shown({**told, "log": log})


def test_watch_goes_on_while_the_server_is_away(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, a line of JSON each; a server that is restarting is shown as not ready; Ctrl-C is the end."""
    naps = iter([None, None, KeyboardInterrupt()])

    def nap(_seconds: float) -> None:
        found = next(naps)
        if found is not None:
            raise found

    monkeypatch.setattr(out, "json", True)
    monkeypatch.setattr("cmdlog.cli.server.status.time", SimpleNamespace(sleep=nap))  # other threads may sleep, too
    again = Step("body read", reply=problem(503, "not_ready", "Retry-After: 60"))
    with ScriptedServer([Step(reply=http(200, TOLD)), again, Step(reply=http(200, TOLD))]) as server:
        status(server.url, watch=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ready"] for line in lines] == [True, False, True]


def test_wrong_credential_ends_the_watch() -> None:
    """What waiting cannot cure is an error."""
    with ScriptedServer([Step("body read", reply=problem(401, "unauthenticated"))]) as server, pytest.raises(CommandFailed) as no:
        status(server.url, watch=True)
    assert "--token-file" in no.value.hint


def test_member_of_a_cluster_says_its_part() -> None:
    """A node alone has no such row."""
    members = [{}, {}, {}, {"state": "removed"}]
    cluster = {"node": 2, "members": members, "state": "configuring", "standing": "following", "leader": None}
    rows = dict(summary({"ready": False, "cluster": cluster}))
    assert rows["cluster"] == "node 2 of 3, configuring, following; no leader is known; see `cmdlog cluster status`"
    rows = dict(summary({"cluster": {**cluster, "state": "running", "standing": "taking_over", "leader": 2}}))
    assert rows["cluster"].startswith("node 2 of 3, running, taking over; node 2 leads")
    assert "cluster" not in dict(summary({"ready": True}))
