"""`cmdlog archive list | verify | prune DIR`: the history that a node keeps in addition to its log and its newest snapshots.

All three read a directory, also while the node runs. `prune` removes the oldest and nothing else; what the node promised when it
ran last (`archive/promise.json`), or a recovery point needs, it removes only with `--force`.
"""

from __future__ import annotations

import math
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.directory.owner import DirectoryArgument
from cmdlog.cli.directory.snapshot import damaged_points
from cmdlog.cli.output import JsonFlag, out
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import MILLIS_SHIFT, txn_millis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.log.source import LogSource
    from snapshot.archive_layout import ArchivedSegment
    from snapshot.catalog import Snapshot
    from snapshot.recovery_points import Point
    from snapshot.retention import Needs

COLUMNS: Final = ("name", "blocks", "from", "to", "bytes")
AGE: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
AGE_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
WINDOW_S_MAX: Final = 1e10  # stands for all of it
LIST_HELP: Final = """List what the archive holds, oldest first, and where blocks are missing. Reads only headers and manifests.

It shows from which moment on `cmdlog recover DIR --until TIME --to OUT` can restore any moment.
"""
VERIFY_HELP: Final = """Read every archived segment and snapshot: all checksums, each file's predecessor, the chain of blocks.

It shows from which moment on every one can be restored with what is whole: a snapshot that was removed by hand shows by
that alone.
All files are checked before it ends, including recovery points (snapshots/points) and archive/promise.json. Exit code 10 when
something is damaged or missing, 11 when something belongs to another node, 1 when everything is intact but the node runs
without the retention window that it had promised.
"""
PRUNE_HELP: Final = """Remove history that only older moments need.

The node itself removes what its retention_window_s no longer needs. Use this to keep less than that, or to clean up after the
window was switched off. What the window or a recovery point still needs is not removed unless --force is given. When a promised
window was switched off, pruning up to now withdraws the promise.
"""


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help="List, verify and prune the history that point-in-time recovery reads.")
    group.command("list", help=LIST_HELP)(list_it)
    group.command("verify", help=VERIFY_HELP)(verify)
    group.command("prune", help=PRUNE_HELP)(prune)
    program.add_typer(group, name="archive")


class Archive:
    """What a directory's archive holds and promises, as it is now."""

    def __init__(self, directory: Path) -> None:
        from snapshot.archive.archive import ArchiveFolder
        from snapshot.archive.archive_retention import promise_end, promise_problem, read_promise
        from snapshot.catalog import list_archived, list_snapshots
        from snapshot.recovery_points import list_points

        files, self.path = RealFiles(), os.path.abspath(directory)
        self.folder = ArchiveFolder(files, self.path, load_instance(files, self.path).identity)
        self.segments = self.folder.segments()
        self.snapshots = list_archived(files, self.path, self.folder.identity)
        self.both = [*self.snapshots, *list_snapshots(files, self.path, self.folder.identity)]  # of archive and node
        self.points, self.bad_points = list_points(files, self.path)
        self.promised_s = read_promise(files, self.path)  # infinite where it cannot be read
        self.ended = promise_end(files, self.path)  # None: it is kept
        self.problem = promise_problem(files, self.path)

    @property
    def partitions(self) -> list[int]:
        return sorted({snapshot.partition for snapshot in self.both})

    @property
    def window_s(self) -> float:
        """That was promised; a finite number."""
        return min(self.promised_s, WINDOW_S_MAX)

    def needed(self, points: Iterable[Point] = ()) -> Needs:
        """What the promised window needs, and these points."""
        from snapshot.retention import needs, window_begin

        begin = window_begin(now_millis=_now(), window_s=self.window_s)
        return needs(self.both, self.partitions, begin=begin, points=points)


def list_it(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Heads and manifests are checked."""
    archive = Archive(directory)
    _show(archive, [*map(_of_segment, archive.segments), *map(_of_snapshot, archive.snapshots)], "Archive")


def verify(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Everything is read."""
    from snapshot.archive.archive import check_segments
    from snapshot.catalog import check

    archive = Archive(directory)
    code, rows = 0, []
    for segment, problem in zip(archive.segments, check_segments(archive.folder, archive.segments), strict=True):
        rows.append({**_of_segment(segment), **({"problem": problem} if problem else {})})
        code = code or ((11 if segment.foreign else 10) if problem else 0)
    for snapshot in archive.snapshots:
        problem = check(archive.folder.files, snapshot)
        rows.append({**_of_snapshot(snapshot), **({"problem": problem} if problem else {})})
        code = code or (10 if problem else 0)
    holes = _show(archive, rows, "Verified")
    damaged = sum("problem" in row for row in rows)
    if damaged or holes:
        raise CommandFailed(
            f"{damaged} of {len(rows)} files are damaged, {holes} ranges of blocks are missing",
            hint="restore the named files from a backup; moments after the newest of them can still be restored",
            exit_code=code or 10,
        )
    if archive.bad_points:
        raise damaged_points(archive.bad_points, archive.path)
    _check_promise(archive)


def prune(
    directory: DirectoryArgument,
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE|TIME", help="Remove history older than this: 36h, 14d, 2w, or a time.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also remove what the promised window or a recovery point needs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    json: JsonFlag = False,
) -> None:
    """Whole files, oldest first."""
    from snapshot.archive.archive import remove_folder, remove_segment

    archive, wanted = Archive(directory), _moment(older_than)
    segments, snapshots = _to_go(archive, wanted, force=force)
    if not dry_run:
        for segment in segments:
            remove_segment(archive.folder, segment)
        for snapshot in snapshots:
            remove_folder(archive.folder, snapshot.path)
        _take_back(archive, wanted, force=force)
    names = [*(segment.name for segment in segments), *(os.path.basename(snapshot.path) for snapshot in snapshots)]
    value = {"removed": [] if dry_run else names, "would_remove": names if dry_run else [], "before": _time(wanted)}

    def show() -> None:
        for name in names:
            out.text(name)
        out.text(f"{len(names)} files {'would be' if dry_run else 'were'} removed; moments from {_time(wanted)} on are as before")

    out.result(value, show)


def _to_go(archive: Archive, wanted_millis: int, *, force: bool) -> tuple[list[ArchivedSegment], list[Snapshot]]:
    """What is needed for older moments alone. Raises: CommandFailed when a promise needs any of it and `force` is not given."""
    from snapshot.retention import needs

    promised = archive.needed(archive.points)
    keep = needs(archive.both, archive.partitions, begin=wanted_millis << MILLIS_SHIFT)
    standing = {link.path for snapshot in archive.both if not snapshot.archived for link in snapshot.chain}
    segments = [s for s in archive.segments if not keep.log(first_block=s.first_block, last_block=s.last_block)]
    old = [s for s in archive.snapshots if (s.partition, s.name) not in keep.snapshots and s.path not in standing]
    held = [s.name for s in segments if promised.log(first_block=s.first_block, last_block=s.last_block)]
    held += [s.name for s in old if (s.partition, s.name) in promised.snapshots]
    bad = archive.bad_points
    if (held or bad) and not force:
        window = f"the promised window of {archive.window_s:g} s, or a point, needs"
        who = f"the damaged point {bad[0].name} may need" if bad else window
        which = f"{held[0]} and {len(held) - 1} more" if held else "any of these files"
        drop = "delete the point's file in snapshots/points"
        hint = f"prune less, lower retention_window_s and restart the node, {drop}, or use --force; nothing was removed"
        raise CommandFailed(f"{who} {which}", hint=hint)
    return segments, old


def _check_promise(archive: Archive) -> None:
    """Raises: CommandFailed when the file of the promised window is damaged, or the node runs without that window."""
    give_up = f"`cmdlog archive prune {archive.path} --older-than 0s --force` gives up"
    if archive.problem:
        raise CommandFailed(
            archive.problem,
            hint="until then nothing leaves the archive without --force; a start with --retention-window-s SECONDS writes the "
            f"file again, and {give_up} whatever was promised",
            exit_code=10,
        )
    if archive.ended is not None:
        window_s = archive.promised_s
        since = f"and the node runs without since {_time(archive.ended)}: what is newer is not archived"
        raise CommandFailed(
            f"a window of {window_s:g} s was promised, {since}",
            hint=f"start it with --retention-window-s {window_s:g}; if it is meant to end, {give_up} the promise and the "
            "archive, what recovery points need of it included",
        )


def _take_back(archive: Archive, wanted_millis: int, *, force: bool) -> None:
    """A promise that ended, or cannot be read, is over when all that it covered is given up."""
    from snapshot.archive.archive_retention import write_promise

    unreadable = force and archive.problem and not archive.folder.segments()
    if unreadable or (archive.ended is not None and archive.ended <= wanted_millis):
        write_promise(archive.folder.files, archive.path, window_s=0)


def _of_segment(archived: ArchivedSegment) -> dict[str, Any]:
    m = archived.manifest
    row: dict[str, Any] = {
        "name": archived.name,
        "kind": "segment",
        "first_block": archived.first_block,
        "last_block": archived.last_block,
        "bytes": archived.bytes,
    }
    if m is not None:
        row["transactions"] = {str(p): [str(of.first), str(of.last)] for p, of in m.partitions.items()}
        row["from_time"], row["to_time"] = _time(m.first_millis), _time(m.last_millis)
        row["sha256"] = m.sha256
    problem = archived.problem or archived.doubt
    return {**row, "problem": problem} if problem else row


def _of_snapshot(snapshot: Snapshot) -> dict[str, Any]:

    m = snapshot.manifest
    row: dict[str, Any] = {"name": os.path.basename(snapshot.path), "kind": "snapshot", "partition": snapshot.partition}
    if m is None:
        return {**row, "problem": snapshot.problem}
    moment = _time(txn_millis(m.txn_id)) if m.txn_id else None
    return {
        **row, "first_block": m.log_block, "last_block": m.log_block, "bytes": m.bytes, "txn_id": str(m.txn_id),
        "from_time": moment, "to_time": moment,
    }  # fmt: skip


def _show(archive: Archive, rows: list[dict[str, Any]], title: str) -> int:
    """Prints rows and gaps; how many gaps there are."""
    from replay.log.source import open_source
    from snapshot.recovery_points import describe_points

    live, promised = open_source(archive.folder.files, archive.path, accept_data_loss=True), archive.promised_s
    live_first = live.first_blocks[0]
    holes = _holes(archive, live_first)
    value = {
        "files": rows,
        "missing_blocks": [list(hole) for hole in holes],
        "bytes": sum(row.get("bytes", 0) for row in rows),
        "promised_window_s": None if math.isinf(promised) else promised,
        "promise_ended": _time(archive.ended),
        "promise_problem": archive.problem or None,
        **_reach(archive, rows, holes, live),
        "points": describe_points(archive.points, archive.bad_points),
    }

    def show() -> None:
        shown = [
            [row["name"], f"{row.get('first_block', '')} - {row.get('last_block', '')}", row.get("from_time") or "",
             row.get("to_time") or "", row.get("bytes", ""), "bad" if "problem" in row else "whole"]
            for row in rows
        ]  # fmt: skip
        out.table(f"{title}: {value['bytes']} bytes", (*COLUMNS, "state"), shown)
        for row in rows:
            if "problem" in row:
                out.text(f"{row['name']}: {row['problem']}")
        for first, last in holes:
            out.text(f"blocks {first} to {last} are missing: moments before {last + 1} cannot be restored from older snapshots")
        out.text(_reach_text(value))
        if promised and not value["window_kept"] and not value["promise_ended"]:
            out.text(f"the promised window of {promised:g} s does not reach back that far")
        if value["promise_problem"]:
            out.text(value["promise_problem"])
        if value["promise_ended"]:
            out.text(f"the promised window of {promised:g} s is not kept since {value['promise_ended']}")

    out.result(value, show)
    if not promised:
        return 0  # gaps between what only recovery points need are no loss
    return sum(not _was_not_archived(archive, hole, live_first) for hole in holes)


def _reach(archive: Archive, rows: list[dict[str, Any]], holes: list[tuple[int, int]], live: LogSource) -> dict[str, Any]:
    """From which moment on every one can be restored from what is whole, as `describe_reach` shows it."""
    from snapshot.archive.archive import begins_empty
    from snapshot.retention import describe_reach, oldest_restorable

    bad = {row["name"]: row.get("last_block", 0) for row in rows if "problem" in row}
    archived = [segment.segment for segment in archive.segments if segment.segment is not None]
    first = [*archived, *live.segments][0]
    log_from = max([first.header.first_block, *(last + 1 for _, last in holes), *(last + 1 for last in bad.values())])
    usable = [snapshot for snapshot in archive.both if not bad.keys() & {os.path.basename(link.path) for link in snapshot.chain}]
    oldest = oldest_restorable(usable, archive.partitions, log_from=log_from)
    if log_from == 1 and begins_empty(archive.folder.files, first):
        oldest = 0
    unkept_s = archive.window_s if archive.ended is not None else 0
    return describe_reach(oldest, now_millis=_now(), window_s=archive.window_s, unkept_s=unkept_s, log_from=log_from)


def _reach_text(reach: dict[str, Any]) -> str:
    if reach["oldest_txn"] is None:
        return "no moment can be restored: a partition has no snapshot whose log is there"
    return f"every moment {f'from {since} on' if (since := reach['oldest_time']) else 'since the beginning'} can be restored"


def _was_not_archived(archive: Archive, hole: tuple[int, int], live_first: int) -> bool:
    """Whether the blocks between archive and log went while the node ran without its window: `_check_promise` speaks of that."""
    archived = max((segment.last_block for segment in archive.segments), default=0)
    return archive.ended is not None and hole == (archived + 1, live_first - 1)


def _holes(archive: Archive, live_first: int) -> list[tuple[int, int]]:
    """Blocks that are missing between what there is, and before it where the promised window needs them."""
    from snapshot.archive_layout import gaps

    since = archive.needed().from_block or 0
    first = min([s.first_block for s in archive.segments if s.segment is not None] + [live_first])
    return [(since, first - 1)] * (0 < since < first) + gaps(archive.segments, live_first)


def _moment(text: str) -> int:
    """Milliseconds since 1970. Raises: CommandFailed."""
    if match := AGE.fullmatch(text):
        return max(0, int((time.time() - float(match[1]) * AGE_SECONDS[match[2]]) * 1000))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise CommandFailed(f"{text!r} is neither an age such as 14d nor a time such as 2026-01-31T12:00:00Z", exit_code=2)
    return max(0, int(moment.timestamp() * 1000))


def _time(millis: int | None) -> str | None:
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> int:
    return int(time.time() * 1000)
