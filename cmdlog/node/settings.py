"""Every setting of the node: name, type, default, unit and reason, in one place that help texts and documents share.

One rule: `Settings` exist only with values that were checked here, each by itself and all together. Nothing is ignored silently.

Where values come from, and how text becomes one of them, is `cmdlog.cli.server.settings_sources`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from cmdlog.operator_error import OperatorError
from cmdlog.wal.directory.local_token import is_loopback
from cmdlog.wal.format.segment import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX
from cmdlog.wal.ids import PARTITIONS_MAX

SEGMENT_ALIGNMENT_BYTES: Final = 4096
SIZE_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
KINDS: Final[Mapping[type, str]] = {bool: "bool", int: "int", float: "float", str: "text"}

T = TypeVar("T")


class BadSetting(OperatorError, ValueError):
    """A setting that does not exist or cannot have this value. `key` is its name as it was given."""

    exit_code = 2
    hint = "`cmdlog serve --help` lists every setting with its unit and default"

    def __init__(self, key: str, problem: str, *, hint: str = "") -> None:
        self.key = key
        super().__init__(f"{key}: {problem}", hint=hint)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One row of the table that `--help`, documents and `cmdlog.toml` share."""

    name: str
    kind: Literal["int", "float", "bool", "text", "path", "choice"]
    default: Any
    unit: str
    reason: str
    lowest: float
    highest: float
    choices: tuple[str, ...]
    at_creation: bool  # stays as it was when the directory was made
    optional: bool  # None is a value


def _setting(
    default: T,
    reason: str,
    *,
    unit: str = "",
    lowest: float = -math.inf,
    highest: float = math.inf,
    choices: tuple[str, ...] = (),
    at_creation: bool = False,
    kind: str = "",
) -> T:
    metadata: dict[str, object] = {
        "kind": kind or ("choice" if choices else KINDS[type(default)]),
        "reason": reason,
        "unit": unit,
        "lowest": lowest,
        "highest": highest,
        "choices": choices,
        "at_creation": at_creation,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The node's settings, checked. Units are in the names; `_max` limits are inclusive."""

    # fixed when the directory is created
    partitions: int = _setting(
        4,
        "independent streams of calls; each uses at most one core",
        lowest=1,
        highest=PARTITIONS_MAX,
        at_creation=True,
    )
    segment_bytes: int = _setting(
        16 << 20,
        "size of one log file; preallocated, and zeroed in advance in about 10 ms",
        unit="bytes",
        lowest=SEGMENT_BYTES_MIN,
        highest=SEGMENT_BYTES_MAX,
        at_creation=True,
    )
    segments: int = _setting(
        64,
        "log files; the log never grows beyond segments x segment_bytes",
        lowest=4,
        highest=SEGMENTS_MAX,
        at_creation=True,
    )
    log_reserve_bytes: int = _setting(
        1 << 20,
        "log space reserved for control records, so that a full log can recover; by default at most half of segment_bytes",
        unit="bytes",
        lowest=4096,
        at_creation=True,
    )
    preallocate: Literal["ring", "ahead"] = _setting(
        "ring",
        "disk space of the log: ring allocates all of it at creation; ahead allocates two segments at a time",
        choices=("ring", "ahead"),
    )

    # log and sites
    sites: int = _setting(
        0, "processes that execute procedures; 0: one per core, at most one per partition", lowest=0, highest=1024
    )
    durability: Literal["sync", "async"] = _setting(
        "sync", "sync answers after fdatasync; async may lose the last async_window_ms in a power cut", choices=("sync", "async")
    )
    async_window_ms: float = _setting(
        50.0, "longest time from an async answer to its fdatasync", unit="ms", lowest=1, highest=10_000
    )
    log_threads: int = _setting(4, "threads that write the log; each has one fdatasync in flight", lowest=1, highest=64)
    batch_calls_max: int = _setting(
        1024, "calls in one batch: one SQLite transaction, one answer of the site", unit="calls", lowest=1, highest=65535
    )
    batch_bytes_max: int = _setting(
        1 << 20, "bytes in one batch; bounds a block and a site's memory", unit="bytes", lowest=1024, highest=16 << 20
    )
    site_batches_max: int = _setting(
        2, "batches of a partition in flight: one executing, one in the log or waiting at the site", lowest=1, highest=64
    )
    site_restarts_max: int = _setting(
        3, "times that one call may crash its site; then a logged record skips it for good, and the node continues", lowest=1,
        highest=1000,
    )  # fmt: skip
    start_timeout_s: float = _setting(
        60.0, "longest start of a site, HTTP or query process, or code check", unit="s", lowest=10, highest=86_400
    )
    traceback_locals: bool = _setting(False, "show values of locals in tracebacks of procedures: for development")
    digest_rows: bool = _setting(
        True, "checksum changed rows of each batch to detect non-determinism; costs up to 30 % of a site"
    )
    wal_bytes_max: int = _setting(
        256 << 20, "a partition's SQLite WAL; from half on new readers wait, beyond it all end", unit="bytes", lowest=1 << 20
    )

    # callers
    inflight_calls_max: int = _setting(100_000, "calls accepted and not yet answered; beyond it 503", unit="calls", lowest=1)
    inflight_bytes_max: int = _setting(64 << 20, "bytes of their parameters; beyond it 503", unit="bytes", lowest=1024)
    call_bytes_max: int = _setting(
        1 << 20,
        "one call's parameters; beyond it 413; by default at most batch_bytes_max and half of segment_bytes",
        unit="bytes",
        lowest=64,
        highest=16 << 20,
    )
    call_timeout_s: float = _setting(
        30.0, "longest execution of one call; then it is killed, and a skip is logged", unit="s", lowest=0.05, highest=3600
    )
    query_rows_max: int = _setting(10_000, "rows that one query may return", unit="rows", lowest=1)
    query_timeout_s: float = _setting(
        5.0, "longest execution of one query; a reader keeps the WAL from being reset", unit="s", lowest=0.01, highest=600
    )
    query_bytes_max: int = _setting(
        16 << 20, "bytes of one query's result as JSON, and of any value in it", unit="bytes", lowest=1024, highest=256 << 20
    )
    query_memory_bytes_max: int = _setting(128 << 20, "memory that SQLite may use for one query", unit="bytes", lowest=4 << 20)
    queries_max: int = _setting(2, "concurrent queries of a credential, in own processes; others wait", lowest=1, highest=64)

    # identity and time
    clock_lead_max_ms: int = _setting(
        60_000, "how far transaction ids may lead real time; they do not follow larger clock jumps", unit="ms", lowest=1
    )
    key_window_s: int = _setting(
        3600, "how long a repeated idempotency key returns the first result; must exceed the clients' retries", unit="s", lowest=1
    )
    key_forget_s: int = _setting(
        86_400, "how long an expired key without a time (not a UUIDv7) is remembered, and refused", unit="s", lowest=1
    )
    keys_max: int = _setting(
        1_000_000, "idempotency keys per partition, about 150 bytes each; beyond it 503 sessions_full", unit="keys", lowest=1
    )
    session_window: int = _setting(
        1024,
        "how far the number of a session's call may lie above what its client has seen",
        unit="numbers",
        lowest=1,
        highest=65_535,
    )
    session_idle_s: int = _setting(
        3600, "how long a session without a call is known; must exceed the clients' retries", unit="s", lowest=1
    )
    sessions_max: int = _setting(
        200_000, "client sessions per partition, about 1 KB each; beyond it 503 sessions_full", unit="sessions", lowest=1
    )

    # snapshots
    snapshot_log_fraction: float = _setting(0.5, "share of the log in use at which a snapshot starts", lowest=0.05, highest=0.95)
    snapshots_kept: int = _setting(
        3, "snapshots kept per partition; the log is truncated at the second-newest", lowest=2, highest=10_000
    )
    snapshot_age_max_s: float = _setting(
        3600.0, "age at which a partition's newest snapshot is followed by another one, if there were calls; 0 = no limit",
        unit="s", lowest=0,
    )  # fmt: skip
    recovery_budget_s: float = _setting(
        30.0, "predicted recovery time beyond which snapshots are taken; 0 = no budget", unit="s", lowest=0
    )
    points_kept: int = _setting(2, "recovery points kept, with the snapshots and log they need", lowest=1, highest=1000)
    failure_after_s: float = _setting(
        30.0, "silence of a cluster's node after which it loses its vote until it is level again; 0 = never", unit="s", lowest=0
    )
    election_timeout_ms: float = _setting(
        1000.0, "silence of a cluster's leader before a node campaigns, at random up to twice as long", unit="ms", lowest=300
    )
    migrate: bool = _setting(False, "run the application's migrations that the tables lack")
    drill_every_s: float = _setting(0.0, "time between restore drills, which run at idle priority; 0 = none", unit="s", lowest=0)
    scrub_every_s: float = _setting(
        86_400.0, "time from one reading of log, snapshots and archive for damage to the next; 0 = never", unit="s", lowest=0
    )
    scrub_bytes_per_s: int = _setting(
        8 << 20, "speed of that reading, at idle priority; 8 MiB/s read a full log of 1 GiB in about two minutes",
        unit="bytes/s", lowest=64 << 10,
    )  # fmt: skip
    snapshot_deltas: bool = _setting(
        True, "a snapshot may hold only the rows that changed since an earlier one; needs digest_rows"
    )
    retention_window_s: float = _setting(
        0.0, "period of which every moment stays restorable; its log and snapshots are kept in archive/; 0 = none",
        unit="s", lowest=0,
    )  # fmt: skip
    archive_bytes_max: int = _setting(0, "largest size of archive/; 0 = no limit but the volume", unit="bytes", lowest=0)
    archive_full: Literal["stop", "shorten"] = _setting(
        "stop",
        "when archive/ is full: stop keeps the window, and a full log then refuses writes; shorten drops the oldest history",
        choices=("stop", "shorten"),
    )

    # cluster
    copies_max: int = _setting(2, "nodes that may copy this node's data at once", unit="copies", lowest=1, highest=64)
    copy_rate_bytes_per_s: int = _setting(
        64 << 20, "bytes per second that all copies of this node's data share; 0 = no limit", unit="bytes", lowest=0
    )

    # HTTP
    host: str = _setting("127.0.0.1", "address to listen on; one that is not loopback needs token_file")
    port: int = _setting(8642, "TCP port; 0 picks a free one and prints it", lowest=0, highest=65535)
    token_file: Path | None = _setting(  # noqa: RUF009 - a field, like all others
        None, "file of credentials; with it every request needs one; `cmdlog token add` creates it", kind="path"
    )
    header_timeout_s: float = _setting(10.0, "time for a request's head to arrive, else 408", unit="s", lowest=0.05, highest=3600)
    header_bytes_max: int = _setting(
        16 << 10, "size of a request's head, including the first line; beyond it 431", unit="bytes", lowest=1024, highest=1 << 20
    )
    headers_max: int = _setting(100, "headers of one request; beyond it 431", unit="headers", lowest=8, highest=10_000)
    body_timeout_s: float = _setting(
        30.0, "time for a request's body to arrive, longest pause in a batch; beyond it 408", unit="s", lowest=0.05, highest=3600
    )
    write_timeout_s: float = _setting(
        30.0, "time in which a client must read 64 KiB of its answer, else it is cut off", unit="s", lowest=0.05, highest=3600
    )
    keep_alive_s: float = _setting(
        75.0, "how long an idle connection is kept open; longer than clients usually do", unit="s", lowest=0.05, highest=3600
    )
    connections_max: int = _setting(
        4096, "open connections; beyond it an idle or late one is closed", unit="connections", lowest=1, highest=1_000_000
    )
    tls_cert_file: Path | None = _setting(None, "certificate chain in PEM, for https; reread when it changes", kind="path")  # noqa: RUF009 - as above
    tls_key_file: Path | None = _setting(  # noqa: RUF009 - as above
        None, "its private key in PEM, unencrypted; by default in tls_cert_file", kind="path"
    )
    tls_ca_file: Path | None = _setting(  # noqa: RUF009 - as above
        None, "CA certificates in PEM; a client's certificate must be signed by one of them", kind="path"
    )
    tls_client: Literal["required", "optional"] = _setting(
        "required", "with tls_ca_file: whether clients must or may present a certificate", choices=("required", "optional")
    )
    stream_calls_max: int = _setting(
        16_384, "calls in flight of one batch request; further lines are read when there is room", unit="calls", lowest=1
    )
    drain_timeout_s: float = _setting(
        10.0, "how long a stopping server waits for requests in flight", unit="s", lowest=0, highest=3600
    )

    # records of the server's own running
    slow_call_ms: float = _setting(1000.0, "calls slower than this are logged, without parameters; 0 = none", unit="ms", lowest=0)
    log_format: Literal["auto", "json", "text"] = _setting(
        "auto", "log lines on standard error; auto: text on a terminal, else JSON", choices=("auto", "json", "text")
    )

    def __post_init__(self) -> None:
        for setting in TABLE.values():
            check_value(setting, getattr(self, setting.name), setting.name)
        _check_together(self)


def _table() -> dict[str, SettingRow]:
    return {
        item.name: SettingRow(name=item.name, default=item.default, optional=item.default is None, **item.metadata)
        for item in dataclasses.fields(Settings)
    }


TABLE: Final[Mapping[str, SettingRow]] = _table()
"""Every setting by name, in the order of the class."""


def known_setting(name: str, origin: str, spell: Callable[[str], str]) -> str:
    """The name. Raises: BadSetting when there is no such setting, with the nearest name as `spell` writes it."""
    if name in TABLE:
        return name
    near = difflib.get_close_matches(name, TABLE, n=1, cutoff=0.5)
    raise BadSetting(origin, "no such setting" + (f"; did you mean {spell(near[0])}?" if near else ""))


def fitted(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, with the defaults that it leaves no room for made smaller. Raises: BadSetting for an unknown name."""
    for name in given:
        known_setting(name, name, str)
    sizes = {name: TABLE[name].default for name in ("segment_bytes", "batch_bytes_max", "log_reserve_bytes", "call_bytes_max")}
    wanted = {name: given.get(name, size) for name, size in sizes.items()}
    if not all(type(size) is int for size in wanted.values()):
        return dict(given)
    half = wanted["segment_bytes"] // 2
    room = {"log_reserve_bytes": half, "call_bytes_max": min(half, wanted["batch_bytes_max"])}
    return {**{name: bound for name, bound in room.items() if bound < sizes[name]}, **given}


TYPES: Final[Mapping[str, Any]] = {"int": int, "float": (float, int), "bool": bool, "text": str, "choice": str, "path": Path}


def check_value(setting: SettingRow, value: Any, origin: str) -> None:
    """Type, choice and bounds. Raises: BadSetting, which names `origin`."""
    if value is None and setting.optional:
        return
    if (type(value) is bool and setting.kind != "bool") or not isinstance(value, TYPES[setting.kind]):
        raise BadSetting(origin, f"{value!r} is not of type {setting.kind}")
    if setting.choices and value not in setting.choices:
        raise BadSetting(origin, f"{value!r} is not one of {', '.join(setting.choices)}")
    if setting.kind not in ("int", "float"):
        return
    number: float = value
    unit = f" {setting.unit}" if setting.unit else ""
    if not number >= setting.lowest:  # also refuses NaN
        raise BadSetting(origin, f"{number} is below the minimum of {setting.lowest}{unit}")
    if not number <= setting.highest:
        raise BadSetting(origin, f"{number} is above the maximum of {setting.highest}{unit}")


def _check_together(settings: Settings) -> None:
    """What no setting can say alone."""
    s = settings
    if s.segment_bytes % SEGMENT_ALIGNMENT_BYTES:
        raise BadSetting("segment_bytes", f"{s.segment_bytes} is not a multiple of {SEGMENT_ALIGNMENT_BYTES}")
    too_large: list[tuple[str, str]] = []  # what must be lowered, and to what: all of it at once
    for smaller, larger, share in (
        ("log_reserve_bytes", "segment_bytes", 2),
        ("call_bytes_max", "segment_bytes", 2),
        ("call_bytes_max", "batch_bytes_max", 1),
        ("batch_bytes_max", "inflight_bytes_max", 1),
        ("key_window_s", "key_forget_s", 1),
        ("sites", "partitions", 1),
    ):
        bound = getattr(s, larger) // share
        if getattr(s, smaller) > bound:
            of = f"half of {larger}" if share == 2 else larger
            what = f"{getattr(s, smaller)} is more than {of} ({bound}); lower it to {bound} or raise {larger}"
            too_large.append((smaller, what))
    if too_large:
        (first, problem), *others = too_large
        raise BadSetting(first, ". ".join([problem, *(f"{name}: {what}" for name, what in others)]))
    for name in ("tls_key_file", "tls_ca_file"):
        if getattr(s, name) is not None and s.tls_cert_file is None:
            raise BadSetting(name, "needs tls_cert_file: without a certificate nothing is encrypted")
    if s.token_file is None and not is_loopback(s.host):
        problem = f"{s.host} is not loopback, so token_file is required: every request needs a credential"
        raise BadSetting("host", problem, hint="`cmdlog token add FILE --name NAME` creates a token file")
