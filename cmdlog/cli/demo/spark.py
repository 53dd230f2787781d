"""`cmdlog spark demo`: a query over the calls of a log, its tables as they were, and what other code would have made of it.

One rule: every figure is compared with the bank's model in plain Python, and the exit code is 0 only when all agree.

Spark starts, and reads the log for the first time, while calls are still being made: it takes about as long as they do, and a log
can be read while its node writes it.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.demo import demo_folder
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.spark_options import ConfOption, MasterOption, check_session, spark_session
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

PARTITIONS: Final = 2
SEED: Final = 7
CALLERS: Final = 8  # threads that call
CALLS: Final = 10_000
PENALTY: Final = "PENALTY = 100"  # of the bank's source; the other code asks for none
Seen = dict[int, tuple[int, int]]
Accounts = dict[tuple[int, int], list[int]]


@dataclass(frozen=True, slots=True)
class Story:
    """All calls in the order of their transaction ids."""

    calls: list[tuple[int, str, dict[str, Any]]]  # transaction id, procedure, parameters

    def accounts(self, bank: ModuleType, upto: int | None = None) -> Accounts:
        """The accounts after the transaction `upto`, by the model of this code."""
        model = bank.BankModel()
        for txn_id, procedure, params in self.calls:
            if upto is None or txn_id <= upto:
                model.apply(procedure, params)
        accounts: Accounts = model.accounts
        return accounts


def demo_it(
    calls: Annotated[int, typer.Option("--calls", min=100, max=1_000_000, help="Calls to make first.")] = CALLS,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="New folder for the log and the tables.")] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Fills a log, and looks at it four ways."""
    check_session(master, conf)
    with demo_folder(keep) as folder:
        began = time.monotonic()
        with _filling(folder / "data", calls) as story_of:
            _print_line(f"{calls:,} calls of the bank sample are being sent to the log of {folder / 'data'}")
            spark = spark_session(master, tuning="start", conf=conf)
            _print_line(f"Spark {spark.version} is up ({time.monotonic() - began:.1f} s)")
            seen = _read_log(spark, folder)
            story = story_of()
            _print_line(f"all calls are in the log ({time.monotonic() - began:.1f} s)")
        found = {
            "running": compare_prefix(seen, story),
            "query": _query(spark, folder, story),
            "rebuild": _rebuild(spark, folder, story),
            "what_if": _what_if(spark, folder, story),
        }
        ok = all(part["proved"] for part in found.values())
        seconds = round(time.monotonic() - began, 1)
        result = {**found, "calls": calls, "seconds": seconds, "proved": ok}
        out.result(result, lambda: _print_line(f"all figures agree with the model: {'yes' if ok else 'NO'} ({seconds} s)"))
    if not ok:
        raise CommandFailed("a figure differs from the model", hint="run it again with --keep DIR to inspect the files")


@contextmanager
def _filling(data: Path, calls: int) -> Iterator[Callable[[], Story]]:
    """An embedded node, as a program with some threads would use it; gives what waits for the last call."""
    import cmdlog
    from procedures.samples import bank

    with cmdlog.open(str(data), bank.db, partitions=PARTITIONS) as node, ThreadPoolExecutor(CALLERS) as callers:

        def make_call(call: tuple[str, dict[str, Any]]) -> tuple[int, str, dict[str, Any]]:
            try:
                return node.invoke(*call).txn_id, *call
            except cmdlog.Aborted as error:
                return error.txn_id, *call

        loaded = [make_call(call) for call in bank.loader()]
        made = callers.map(make_call, bank.workload(SEED, calls=calls))
        try:
            yield lambda: Story(sorted(chain(loaded, made), key=lambda call: call[0]))
        finally:
            callers.shutdown(cancel_futures=True)


def _read_log(spark: SparkSession, folder: Path) -> Seen:
    """What is in the log of the running node: partition -> (calls, the last one's TxnId)."""
    from pyspark.sql import functions as f

    calls = spark.read.format("cmdlog").schema("partition_id int, txn_id long").load(str(folder / "data"))
    rows = calls.groupBy("partition_id").agg(f.count("txn_id"), f.max("txn_id")).collect()
    seen = {int(partition): (int(count), int(last)) for partition, count, last in rows}
    _print_line(f"calls in the log at this moment, read while its node runs: {sum(count for count, _ in seen.values()):,}")
    return seen


def compare_prefix(seen: Seen, story: Story) -> dict[str, Any]:
    """What was seen of a partition is its beginning, without a hole. A call on all partitions has a row of each."""
    found = {partition: count for partition, (count, _) in seen.items()}
    model = {
        partition: sum(txn_id <= last and txn_partition(txn_id) in (partition, MULTI_PARTITION) for txn_id, *_ in story.calls)
        for partition, (_, last) in seen.items()
    }
    return {"calls": found, "proved": found == model}


def _query(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """Transfers per minute."""
    from pyspark.sql import functions as f

    table = spark.read.format("cmdlog").load(str(folder / "data"))
    minute = f.date_trunc("minute", "ts").alias("minute")
    rows = table.groupBy("procedure", minute).count().orderBy("minute", "procedure").collect()
    found_rows = [(str(row["minute"]), row["procedure"], int(row["count"])) for row in rows]
    _show("Calls per procedure and minute", ("minute", "procedure", "calls"), found_rows)
    counted = sum(count for _, procedure, count in found_rows if procedure == "transfer")
    return {"rows": found_rows, "proved": counted == sum(procedure == "transfer" for _, procedure, _ in story.calls)}


def _rebuild(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """The accounts as they were after half of the calls."""
    from procedures.samples import bank
    from replay.spark.jobs.rebuild import rebuild

    half = story.calls[len(story.calls) // 2][0]
    done = rebuild(spark, str(folder / "data"), to=str(folder / "half"), until=half)
    found = _accounts(spark, folder / "half" / "accounts")
    _print_line(f"rebuilt as of transaction {half}: {len(found):,} accounts ({done.seconds:.1f} s)")
    return {"as_of_txn": str(half), "accounts": len(found), "proved": found == story.accounts(bank, half)}


def _what_if(spark: SparkSession, folder: Path, story: Story) -> dict[str, Any]:
    """The same calls, with code that asks for no penalty."""
    from procedures.samples import bank
    from replay.spark.jobs.backfill import backfill

    other = _other_code(folder)
    done = backfill(spark, str(folder / "data"), other.db, to=str(folder / "whatif"), target="bank_whatif:db")
    _show(
        f"What if an overdraft had cost nothing ({done.seconds:.1f} s)",
        ("table", "added", "removed", "changed"),
        [(table, *counts.values()) for table, counts in done.changes.items()],
    )
    was, now, found = story.accounts(bank), story.accounts(other), _accounts(spark, folder / "whatif" / "state" / "accounts")
    money = {"was": sum(map(sum, was.values())), "now": sum(map(sum, found.values()))}
    _print_line(f"the bank's customers hold {money['now']:,} cents instead of {money['was']:,}")
    changed = sum(now[account] != was[account] for account in was)
    return {
        "changes": done.changes,
        "money": money,
        "proved": found == now and done.changes["accounts"]["changed"] == changed,
    }


def _accounts(spark: SparkSession, files: Path) -> Accounts:
    rows = spark.read.parquet(f"file://{files}").select("branch", "customer", "savings", "checking").collect()
    return {(branch, customer): [savings, checking] for branch, customer, savings, checking in rows}


def _other_code(folder: Path) -> ModuleType:
    """The sample without its penalty, as a module of its own: the application and its model."""
    from procedures.samples import bank

    changed = Path(str(bank.__file__)).read_text().replace(PENALTY, "PENALTY = 0")
    (folder / "bank_whatif.py").write_text(changed)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("bank_whatif")
    finally:
        sys.path.remove(str(folder))


def _print_line(text: str) -> None:
    if not out.json:
        out.text(text)


def _show(title: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if not out.json:
        out.table(title, columns, rows)
