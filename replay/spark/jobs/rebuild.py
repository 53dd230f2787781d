"""`rebuild`: the tables of an application as they were at some moments, as Parquet, from snapshots and log, on Spark.

One rule: exactly the rows that `cmdlog recover --until` would produce, or no output at all.

One task replays one log partition and writes all its tables at all moments; `manifest.json` lists what is where:

    OUT/accounts/p0000.parquet                       of one moment
    OUT/accounts/as_of_txn=7301444403200/p0000.parquet   of a list of moments: a column `as_of_txn` when OUT/accounts is read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.wal.files import Files
from procedures import Database
from procedures.code.bundle import capture_bundle
from replay.recover.progress import RecoveryProgress
from replay.spark.base.version_check import versions
from replay.spark.jobs.fetched_inputs import input_names
from replay.spark.jobs.job import FinishedJob, Sessions, run_job
from replay.spark.jobs.past_replay import Moment, MomentReplay, find_history, parse_moment, plan_json
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.staging import FORMAT, tables_of

JOB: Final = "rebuild"


@dataclass(frozen=True, slots=True)
class Rebuilt(FinishedJob):
    """A finished rebuild."""

    @property
    def calls(self) -> int:
        return int(self.manifest["calls"])

    @property
    def rows(self) -> int:
        """Of all tables at all moments."""
        return sum(table["rows"] for point in self.manifest["points"] for table in point["tables"].values())


def rebuild(
    spark: Sessions,
    paths: str | Sequence[str],
    app: Database | None = None,
    *,
    to: str,
    until: Moment | Sequence[Moment] = None,
    tables: Sequence[str] | None = None,
    accept_data_loss: bool = False,
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
) -> Rebuilt:
    """Writes the tables (all, or those named) as of `until`, or of each moment of a list, into the new folder `to`.

    Args:
        spark: the session, or what starts it; that is used after planning, so that bad input is reported at once.
        paths: node directories of one cluster, readable by driver and executors under the same names: paths, file: URIs, or
            URIs of what pyarrow knows (s3://…, hdfs://…), which each task copies first.
        app: declares the types of the tables; None: the code in the log does. Calls are replayed by the log's code in any case.

    Durable on return. An interrupted run is resumed by the same call, with the log's end of the first run. A finished one
    returns its manifest, even if the log has changed since; nothing is written.

    Raises: NotEmpty, OtherJob, Locked; Divergence, Poison; Interrupted, SparkFailed, TaskError; what the plan raises.
    """
    several = not (until is None or isinstance(until, int | str) or not isinstance(until, Sequence))
    moments: list[Moment] = list(until) if several else [until]  # type: ignore[arg-type,list-item]
    request: dict[str, Any] = {
        "job": JOB,
        "paths": input_names(paths),
        "until": sorted({_text(parse_moment(moment)) for moment in moments}),
        "several": several,
        "tables": sorted(tables) if tables is not None else None,
        "types": capture_bundle(app).hash if app is not None else None,
        "accept_data_loss": accept_data_loss,
    }
    return run_job(
        Rebuilt,
        spark,
        to,
        request,
        lambda files, told: _orders(files, told, app),
        work=rebuild_partition,
        manifest_of=lambda orders, rows: _manifest(request, orders, rows),
        moves_of=_moves,
        tell=progress,
    )


def _text(until: int | None) -> str:
    return "" if until is None else str(until)


def _orders(files: Files, request: Mapping[str, Any], app: Database | None) -> Iterator[dict[str, Any]]:
    """One order for each partition that exists at the last moment."""
    untils = [int(text) if text else None for text in request["until"]]
    histories = [
        find_history(files, request["paths"], until, accept_data_loss=request["accept_data_loss"])
        for until in sorted(untils, key=lambda until: (until is None, until))
    ]
    last = histories[-1]
    stated = {str(version): {name: value[name] for name in ("bundle", "hash")} for version, value in last.catalogs.items()}
    if app is not None:
        bundle = capture_bundle(app)
        stated = {"0": {"bundle": bundle.to_bytes().decode(), "hash": bundle.hash}}
    for partition in last.partitions:
        yield {
            "key": f"p{partition:04d}",
            "partition": partition,
            "cluster_id": last.cluster_id,
            "writes_replicated": partition == last.partitions[0],
            "tables": request["tables"],
            "catalogs": stated,
            **_amount(histories, partition),
            "points": [_point(history, partition) for history in histories],
        }


def _point(history: MomentReplay, partition: int) -> dict[str, Any]:
    return {
        "until": history.until,
        "as_of": history.txn_id() if history.until is None else history.until,
        "notes": list(history.notes),
        "legs": [plan_json(leg) for leg in history.of(partition)],
    }


def _amount(histories: Sequence[MomentReplay], partition: int) -> dict[str, int]:
    """Calls and bytes to be replayed: a moment continues from the one before, unless there is a snapshot between them."""
    calls = size = 0
    before: tuple[int, int, int] = (-1, 0, 0)
    for history in histories:
        parts = [leg.partitions[0] for leg in history.of(partition)]
        now = (parts[0].from_index, sum(part.calls for part in parts), sum(part.bytes for part in parts))
        goes_on = now[0] == before[0]
        calls += now[1] - (before[1] if goes_on else 0)
        size += now[2] - (before[2] if goes_on else 0)
        before = now
    return {"calls": calls, "bytes": size}


def _manifest(
    request: Mapping[str, Any], orders: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    points = []
    for number, point in enumerate(orders[0]["points"]):
        folder = f"as_of_txn={point['as_of']}" if request["several"] else ""
        of = {str(row["partition"]): row["stands"][number] for row in rows}
        points.append(
            {
                "until": _text(point["until"]) or None,
                "as_of_txn": str(point["as_of"]),
                "notes": point["notes"],
                "partitions": {key: {"index": r["index"], "txn_id": str(r["txn_id"])} for key, r in of.items()},
                "tables": tables_of([(row, file) for row in rows for file in row["files"] if file["point"] == number], folder),
            }
        )
    return {
        "format": FORMAT,
        "job": JOB,
        "cluster_id": orders[0]["cluster_id"],
        "paths": request["paths"],
        "request": request,
        "calls": sum(row["calls"] for row in rows),
        "versions": versions(),
        "points": points,
    }


def _moves(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for point in manifest["points"]:
        for table in point["tables"].values():
            for file in table["files"]:
                yield file["from"], file["path"]
