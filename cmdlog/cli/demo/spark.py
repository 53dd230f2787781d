"""`cmdlog spark demo`: a query over the calls of a log, its tables as they were, and what other code would have made of it.

One rule: every figure that it shows is compared with a model in plain Python, and the exit code is 0 only when all agree.

Spark starts, and reads the log for the first time, while calls are still being made: it takes about as long as they do, and a log
can be read beside its node.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.spark_options import ConfOption, MasterOption, check_session, spark_session
from cmdlog.signal_handlers import undisturbed
from cmdlog.wal.ids import txn_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from procedures import Database

PARTITIONS: Final = 2
SEED: Final = 7
UNKNOWN: Final = 99  # a contestant that does not exist
LIMIT: Final = 2  # votes per phone of the other code
CALLERS: Final = 8  # threads that vote
BARS: Final = 40  # characters of the longest bar
CALLS: Final = 10_000
Seen = dict[int, tuple[int, int]]


@dataclass(slots=True)
class Story:
    """What was called, and what plain Python makes of it."""

    ids: list[int]  # transaction ids of the votes, in order
    votes: list[tuple[int, int]]  # (phone, contestant) of each

    def counted(self, limit: int, upto: int) -> Counter[int]:
        """Contestant -> votes after so many calls, with so many votes allowed per phone."""
        given: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        for phone, contestant in self.votes[:upto]:
            if contestant != UNKNOWN and given[phone] < limit:
                given[phone] += 1
                counts[contestant] += 1
        return counts


def demo_it(
    calls: Annotated[int, typer.Option("--calls", min=100, max=1_000_000, help="Calls to make first.")] = CALLS,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="New folder for log, tables and plot.")] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Fills a log, and looks at it four ways."""
    check_session(master, conf)
    with _folder(keep) as folder:
        began = time.monotonic()
        with _filling(folder / "data", calls) as story_of:
            _print_line(f"{calls:,} calls of `vote` are being sent to the log of {folder / 'data'}")
            spark = spark_session(master, tuning="start", conf=conf)
            _print_line(f"Spark {spark.version} is up ({time.monotonic() - began:.1f} s)")
            seen = _read_log(spark, folder)
            story = story_of()
            _print_line(f"all calls are in the log ({time.monotonic() - began:.1f} s)")
        found = {
            "running": _compare(seen, story),
            "query": _query(spark, folder, story),
            "rebuild": _rebuild(spark, folder, story),
            "what_if": _what_if(spark, folder, story),
        }
        plot = _plot(folder, found) if keep is not None else None
        ok = all(part["proved"] for part in found.values())
        seconds = round(time.monotonic() - began, 1)
        told = {**found, "calls": calls, "seconds": seconds, "plot": plot, "proved": ok}
        out.result(told, lambda: _print_line(f"all figures agree with the model: {'yes' if ok else 'NO'} ({seconds} s)"))
    if not ok:
        raise CommandFailed("a figure differs from the model", hint="run it again with --keep DIR to inspect the files")


@contextmanager
def _filling(data: Path, calls: int) -> Iterator[Callable[[], Story]]:
    """An embedded node, as a program with some threads would use it; gives what waits for the last call."""
    import cmdlog
    from procedures.samples import voter

    with cmdlog.open(str(data), voter.db, partitions=PARTITIONS) as node, ThreadPoolExecutor(CALLERS) as callers:

        def vote(call: tuple[str, dict[str, Any]]) -> tuple[int, tuple[int, int]]:
            name, params = call
            try:
                txn_id = node.invoke(name, params).txn_id
            except cmdlog.Aborted as error:
                txn_id = error.txn_id
            return txn_id, (params["phone"], params["contestant"])

        for name, params in voter.loader():
            node.call(name, **params)
        voted = callers.map(vote, voter.workload(SEED, calls=calls))

        def story() -> Story:
            done = sorted(voted)  # the order is that of the TxnIds
            return Story([txn_id for txn_id, _ in done], [ballot for _, ballot in done])

        try:
            yield story
        finally:
            callers.shutdown(cancel_futures=True)


def _read_log(spark: SparkSession, folder: Path) -> Seen:
    """What is in the log of the running node: partition -> (votes, the last one's TxnId)."""
    from pyspark.sql import functions as f

    votes = spark.read.format("cmdlog").option("procedures", '["vote"]').schema("partition_id int, txn_id long")
    rows = votes.load(str(folder / "data")).groupBy("partition_id").agg(f.count("txn_id"), f.max("txn_id")).collect()
    seen = {int(partition): (int(count), int(last)) for partition, count, last in rows}
    _print_line(f"votes in the log at this moment, read while its node runs: {sum(count for count, _ in seen.values()):,}")
    return seen


def _compare(seen: Seen, story: Story) -> dict[str, Any]:
    """What was seen of a partition is its beginning, without a hole."""
    found = {p: count for p, (count, _) in seen.items()}
    model = {p: sum(txn_partition(txn_id) == p and txn_id <= last for txn_id in story.ids) for p, (_, last) in seen.items()}
    return {"votes": found, "proved": found == model}


def _query(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """Calls per procedure and minute."""
    from pyspark.sql import functions as f

    table = spark.read.format("cmdlog").load(str(folder / "data"))
    minute = f.date_trunc("minute", "ts").alias("minute")
    rows = table.groupBy("procedure", minute).count().orderBy("minute", "procedure").collect()
    told = [(str(row["minute"]), row["procedure"], int(row["count"])) for row in rows]
    _show("Calls per procedure and minute", ("minute", "procedure", "calls"), told)
    votes = sum(count for _, procedure, count in told if procedure == "vote")
    return {"rows": told, "proved": votes == len(story.votes)}


def _rebuild(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """The tables as they were after half of the calls."""
    from procedures.samples import voter
    from replay.spark.jobs.rebuild import rebuild

    half = len(story.ids) // 2
    done = rebuild(spark, str(folder / "data"), to=str(folder / "half"), until=story.ids[half])
    counts = _counts(spark, folder / "half" / "votes")
    _print_line(f"rebuilt as of transaction {story.ids[half]}: {sum(counts.values()):,} votes ({done.seconds:.1f} s)")
    return {
        "as_of_txn": str(story.ids[half]),
        "counts": counts,
        "proved": counts == story.counted(voter.VOTES_PER_PHONE_MAX, half + 1),
    }


def _what_if(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """The same calls, with fewer votes per phone."""
    from procedures.samples import voter
    from replay.spark.jobs.backfill import backfill

    done = backfill(spark, str(folder / "data"), _other_code(folder), to=str(folder / "whatif"), target="voter_whatif:db")
    _show(
        f"What if a phone had had {LIMIT} votes ({done.seconds:.1f} s)",
        ("table", "added", "removed", "changed"),
        [(table, *counts.values()) for table, counts in done.changes.items()],
    )
    was, now = (story.counted(limit, len(story.votes)) for limit in (voter.VOTES_PER_PHONE_MAX, LIMIT))
    found = _counts(spark, folder / "whatif" / "state" / "votes")
    longest = max(was.values())
    for contestant in sorted(was):
        bar = "#" * round(BARS * found[contestant] / longest)
        _print_line(f"  {contestant}: {bar:<{BARS}} {found[contestant]:,} of {was[contestant]:,}")
    removed = done.changes["votes"]["removed"]
    return {"changes": done.changes, "was": was, "now": found, "proved": found == now and removed >= (was - now).total()}


def _counts(spark: SparkSession, files: Path) -> Counter[int]:
    rows = spark.read.parquet(f"file://{files}").groupBy("contestant").count().collect()
    return Counter({int(row["contestant"]): int(row["count"]) for row in rows})


def _other_code(folder: Path) -> Database:
    """The sample with another limit, as a module of its own."""
    from procedures.samples import voter

    text = Path(str(voter.__file__)).read_text()
    changed = text.replace(f"VOTES_PER_PHONE_MAX = {voter.VOTES_PER_PHONE_MAX}", f"VOTES_PER_PHONE_MAX = {LIMIT}")
    (folder / "voter_whatif.py").write_text(changed)
    sys.path.insert(0, str(folder))
    try:
        db: Database = importlib.import_module("voter_whatif").db
        return db
    finally:
        sys.path.remove(str(folder))


def _plot(folder: Path, found: dict[str, dict[str, Any]]) -> str:
    """Votes by contestant, as they were and as they would be."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed"
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    was, now = found["what_if"]["was"], found["what_if"]["now"]
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.bar([n - 0.2 for n in sorted(was)], [was[n] for n in sorted(was)], 0.4, label="as it was")
    axes.bar([n + 0.2 for n in sorted(was)], [now[n] for n in sorted(was)], 0.4, label=f"with {LIMIT} votes per phone")
    axes.set(xlabel="contestant", ylabel="votes", title="the same calls, with other code")
    axes.legend()
    path = folder / "whatif.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    _print_line(f"plot: {path}")
    return str(path)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise CommandFailed(f"{keep} is not empty", hint="name a new folder")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="cmdlog-spark-demo-"))
    try:
        yield folder
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)


def _print_line(text: str) -> None:
    if not out.json:
        out.text(text)


def _show(title: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if not out.json:
        out.table(title, columns, rows)
