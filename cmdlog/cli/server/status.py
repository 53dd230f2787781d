"""`cmdlog status`: what a running server reports about itself, once or repeatedly.

One rule: what a server does not report, because it is older or newer, is left out; nothing is guessed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.output import JsonFlag, make_console, out, visible_values
from cmdlog.cli.server.server_options import DEFAULT_URL, CaOption, TimeoutOption, TokenOption, UrlOption, patience, server

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cmdlog.client import Client

STATUS_S: Final = 5.0  # an operator is waiting at the screen
BAR_CELLS: Final = 20
ERRORS_SHOWN: Final = 10

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
EveryOption = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch: refresh interval.")]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("status")(status)


def status(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    *,
    ca_file: CaOption = None,
    timeout: TimeoutOption = STATUS_S,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
    json: JsonFlag = False,
) -> None:
    """Show the node, its partitions with their watermarks, and how full the log is.

    [bold]Examples[/bold]

      cmdlog status
      cmdlog status --watch
      cmdlog status --url http://10.0.0.7:8642 --json
    """
    with server(url, token_file, timeout, ca_file) as client:
        with patience(client, url, timeout):
            told = client.status()
        if watch:
            _watch(client, told, every)
        else:
            out.result(told, lambda: out.renderable(render(told)))


def _watch(client: Client, told: dict[str, Any], every_s: float) -> None:
    """Until Ctrl-C, which is the orderly end. A server that goes away is waited for."""
    from cmdlog.errors import Unavailable

    def read_again() -> dict[str, Any]:
        try:
            return client.status()
        except Unavailable as error:
            return {"ready": False, "error": str(error)}

    watch_values(told, read_again, render, every_s)


def watch_values(
    told: Mapping[str, Any], read: Callable[[], Mapping[str, Any]], shape: Callable[[Any], RenderableType], every_s: float
) -> None:
    """Shows a value, and every so often a new one, until Ctrl-C."""
    with _Screen(shape) as show:
        while True:
            show(told)
            try:
                time.sleep(every_s)
                told = read()
            except KeyboardInterrupt:
                return


class _Screen:
    """Where `--watch` shows: one place on a terminal, or a JSON value per line."""

    def __init__(self, shape: Callable[[Any], RenderableType]) -> None:
        self._shape = shape

    def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
        from rich.live import Live

        if out.json:
            self._live = None
            return out.line
        self._live = live = Live(auto_refresh=False, console=make_console())
        live.start()
        return lambda told: live.update(self._shape(visible_values(told)), refresh=True)

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def render(told: Mapping[str, Any]) -> RenderableType:
    """The status as a terminal shows it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    told = visible_values(told)
    head = Table(box=None, show_header=False, pad_edge=False)
    head.add_column(style="bold")
    for name, value in summary(told):
        head.add_row(name, Text.from_markup(value))
    shown: list[RenderableType] = [head, *_tables(told)]
    return Group(*shown)


def _tables(told: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Partitions, and recent errors, where there are any."""
    from rich.table import Table
    from rich.text import Text

    if lines := error_lines(told):
        yield Text("Recent errors, newest first", style="italic")
        yield from map(Text, lines)  # not a table: what is cut off could be the line
    columns, rows = partition_rows(told)
    if not rows:
        return
    table = Table(title="Partitions", title_justify="left")
    for at, column in enumerate(columns):
        table.add_column(
            SHORT.get(column, column.replace("_", " ")), justify="left" if at == 1 else "right", no_wrap=column == "state"
        )
    for row in rows:
        table.add_row(*row)
    yield table


def summary(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What matters, in the order in which an operator asks for it; troubles first."""
    rows: list[tuple[str, str]] = []
    for name, value in _troubles(told):
        rows.append((name, f"[red]{_plain(value)}[/red]"))
    rows.append(("state", "[green]ready[/green]" if told.get("ready") else "[red]not ready[/red]"))
    for name, text in (
        ("node", _text(told, "node")),
        ("cluster", _membership(_part(told, "cluster"))),
        ("data", _text(told, "directory")),
        ("running", _running(told)),
    ):
        if text:
            rows.append((name, _plain(text)))
    if isinstance(told.get("log"), Mapping):
        rows.append(("log", _plain(_log(told["log"]))))
    if "predicted_recovery_s" in told:
        seconds = told["predicted_recovery_s"]
        forecast = "unknown until a call has been executed" if seconds is None else f"about {seconds} s after a crash now"
        rows.append(("recovery", _plain(forecast)))
    if reach := _reach(_part(told, "archive")):
        rows.append(("restorable", _plain(reach)))
    if scrubbed := _scrub(_part(told, "scrub")):
        rows.append(("scrub", _plain(scrubbed)))
    calls = [f"{told[name]} {words}" for name, words in LOADS if name in told]
    if calls:
        rows.append(("load", _plain(", ".join(calls))))
    return rows


SHORT: Final = {"partition": "#", "open_calls": "open", "batches_under_way": "in flight"}  # eighty columns hold them all
LOADS: Final = (
    ("inflight_calls", "calls in flight"),
    ("inflight_bytes", "bytes of parameters"),
    ("idempotency_keys", "idempotency keys known"),
    ("sessions", "client sessions known"),
)


def _troubles(told: Mapping[str, Any]) -> list[tuple[str, Any]]:
    log, clock, failed = (_part(told, name) for name in ("log", "clock", "failure_set"))
    found = [
        ("error", told.get("error")),
        ("log error", log.get("error")),
        ("token file", _part(told, "token_file").get("problem")),
        ("disk full", _disk_full(_part(told, "disk_full"))),
        ("disk full", log.get("disk_full")),
        ("partitions", _stuck(told)),
        ("stalled", _stalled(told)),
        ("snapshots", told.get("snapshot_error")),
        ("archive", _part(told, "archive").get("problem")),
        ("archive", _unkept(_part(told, "archive"))),
        *(("damage", _damage(found)) for found in _parts(_part(told, "scrub"), "findings")),
        ("clock", clock.get("jumped") and "jumped further ahead than transaction ids follow"),
        ("failed nodes", ", ".join(map(str, failed.get("nodes") or ()))),
        ("fault log", failed.get("problem")),
    ]
    return [(name, value) for name, value in found if value]


def _disk_full(full: Mapping[str, Any]) -> str:
    if not full:
        return ""
    return f"{full.get('path')}: {full.get('free_bytes', 0):,} bytes free; calls are refused until there is room"


def _unkept(archive: Mapping[str, Any]) -> str:
    """That an earlier run promised what this one does not keep."""
    if problem := archive.get("promise_problem"):
        return f"{problem}; see `cmdlog archive verify`"
    promised = archive.get("unkept_window_s")
    if not isinstance(promised, int | float) or not promised:
        return ""
    return f"a window of {promised:g} s was promised, but this node runs without one: see retention_window_s"


def _reach(archive: Mapping[str, Any]) -> str:
    """How far back one can go, where any past is promised."""
    if not archive.get("window_s"):
        return ""
    oldest = archive.get("oldest_txn")
    since = "since the beginning" if oldest == "0" else f"since {archive.get('oldest_time')}"
    return f"every moment {since}" if oldest is not None else "no moment but the newest yet"


def _damage(found: Mapping[str, Any]) -> str:
    """A file that is damaged, where, and what is done about it."""
    offset = "" if found.get("offset") is None else f" at offset {found['offset']}"
    partition = "" if found.get("partition") is None else f", partition {found['partition']}"
    return f"{_text(found, 'path')}{offset}{partition}: {_text(found, 'what')}; {_text(found, 'repair') or 'just found'}"


def _scrub(scrub: Mapping[str, Any]) -> str:
    """How far the disk is read."""
    if not scrub:
        return ""
    if not scrub.get("every_s"):
        return "off: see scrub_every_s"
    now, last = _part(scrub, "pass"), _part(scrub, "last")
    parts = [f"{now.get('percent')} % of log, snapshots and archive read" if now else ""]
    parts.append(f"last whole pass ended {_moment(last.get('finished'))}" if last else "")
    parts.append(f"interrupted: {scrub['problem']}" if scrub.get("problem") else "")
    return ", ".join(filter(None, parts)) or "no pass yet"


def _stuck(told: Mapping[str, Any]) -> str:
    """Partitions that refuse calls for another reason than a full volume, which is shown once for all."""
    found = {number: _part(_part(told, "partitions"), number).get("state", "ok") for number in _part(told, "partitions")}
    return ", ".join(f"{number} refuses calls: {state}" for number, state in found.items() if state not in ("ok", "disk_full"))


def _stalled(told: Mapping[str, Any]) -> str:
    """Calls that hang, and sites that are stopped or being replaced."""
    return "; ".join(_text(stall, "message") for stall in _parts(told, "stalled"))


def error_lines(told: Mapping[str, Any]) -> list[str]:
    """Kinds of errors seen lately, the newest first, two lines each: when, how many, where, its request; and its message."""
    lines = []
    for error in reversed(_parts(told, "errors")[-ERRORS_SHOWN:]):
        place = f", {error.get('file')}:{error.get('line')}" if error.get("file") else ""
        where = f" in {_text(error, 'procedure')}{place}" if error.get("procedure") else ""
        request = f" (request {_text(error, 'request_id')})" if error.get("request_id") else ""
        lines.append(f"{_moment(error.get('time'))}  {error.get('count', 1)} x {_text(error, 'code')}{where}{request}")
        lines += [f"    {_text(error, 'text')}"] if error.get("text") else []
    return lines


def _moment(seconds: object) -> str:
    """A time of the server in UTC, as in ISO 8601; "" if it is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(seconds, int | float) else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _running(told: Mapping[str, Any]) -> str:
    up, sites = told.get("uptime_s"), told.get("sites")
    parts = [f"for {_duration(up)}" if isinstance(up, int | float) else ""]
    parts.append(f"durability {told['durability']}" if "durability" in told else "")
    parts.append(f"{len(sites)} site processes" if isinstance(sites, Sequence) and sites else "")
    return ", ".join(filter(None, parts))


def _membership(cluster: Mapping[str, Any]) -> str:
    """Of a node that is one of several: its part in the cluster."""
    if not cluster:
        return ""
    leader = cluster.get("leader")
    who = "no leader is known" if leader is None else f"node {leader} leads"
    count = sum(member.get("state") != "removed" for member in _parts(cluster, "members"))
    standing = _text(cluster, "standing").replace("_", " ")
    return f"node {cluster.get('node')} of {count}, {_text(cluster, 'state')}, {standing}; {who}; see `cmdlog cluster status`"


def _log(log: Mapping[str, Any]) -> str:
    segments, parts = _part(log, "segments"), []
    fill = log.get("fill")
    if isinstance(fill, int | float):
        full = round(min(max(fill, 0.0), 1.0) * BAR_CELLS)
        parts.append(f"{'█' * full}{'░' * (BAR_CELLS - full)} {fill:.1%} full")
    if segments:
        parts.append(f"{segments.get('used')} of {segments.get('total')} segments used")
    reserve = _part(log, "reserve")
    if reserve and reserve.get("left_bytes") != reserve.get("bytes"):
        parts.append(f"{reserve.get('left_bytes')} of {reserve.get('bytes')} bytes of its reserve left")
    if segments.get("without_space"):
        parts.append(f"{segments.get('without_space')} segments without space of their own")
    held = _part(log, "held_by").get("anchor")
    parts.append(f"held by {held}" if held else "")
    sync = _part(log, "sync_us")
    median, p99 = sync.get("median"), sync.get("p99")
    if isinstance(median, int | float) and isinstance(p99, int | float):
        parts.append(f"sync {median / 1000:.2f} ms, p99 {p99 / 1000:.2f} ms")
    return ", ".join(filter(None, parts))


def partition_rows(told: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the partitions' table; a mark that one partition lacks is empty there."""
    partitions = {str(number): _part(_part(told, "partitions"), number) for number in _part(told, "partitions")}
    columns = list(dict.fromkeys(name for marks in partitions.values() for name in marks))
    if all(marks.get("state", "ok") == "ok" for marks in partitions.values()):
        columns = [column for column in columns if column != "state"]  # it is worth its room only when a partition refuses calls
    rows = [[number, *(str(marks.get(column, "")) for column in columns)] for number, marks in partitions.items()]
    return ["partition", *columns], rows


def _part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = told.get(name)
    return value if isinstance(value, Mapping) else {}


def _parts(told: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = told.get(name)
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []


def _text(told: Mapping[str, Any], name: str) -> str:
    return str(told.get(name) or "")


def _plain(value: object) -> str:
    """Text in which rich sees no markup."""
    from rich.markup import escape

    return escape(str(value))


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
