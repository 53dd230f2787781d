"""Throughput of `Executor.apply` beside a bare loop of the same statements on one APSW cursor.

Run: `python tests/procedures/measure_executor.py [rounds]`. Prints one line per variant with its ratio to the bare loop. The
variants take turns batch by batch and the median counts, so that other work on the machine disturbs all alike.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import apsw

from procedures.executor import Executor, Invocations
from procedures.outcomes import key_fingerprint
from procedures.samples import bank
from procedures.state import PartitionState

BATCH = 64
CUSTOMERS = 20_000
LOOK = "SELECT checking FROM accounts WHERE branch = ? AND customer = ?"
ADD = "UPDATE accounts SET checking = checking + ? WHERE branch = ? AND customer = ?"
NUMBERS = {procedure.name: number for number, procedure in enumerate(bank.db.procedure_list)}


def loaded_state(path: Path, *, digest_rows: bool) -> tuple[PartitionState, Executor]:
    """A state with the bank's accounts."""
    state = PartitionState.open(path, partition=0)
    executor = Executor(state, lambda _version: bank.db, digest_rows=digest_rows, millis_of=lambda txn: txn >> 21, progress=None)
    executor.apply_schema(index=1, term=1, checksum=0, txn_id=1 << 21, statements=bank.db.schema_statements())
    load = list(bank.loader(branches=1, customers=CUSTOMERS, savings=0, checking=1_000_000))
    executor.apply(batch_of(executor, load, keyed=False))
    return state, executor


def batch_of(executor: Executor, calls: list[bank.Call], *, keyed: bool) -> Invocations:
    """The next batch of these calls."""
    position = executor.position
    first = ((position.txn_id >> 21) + 1) << 21
    return Invocations(
        index=position.index + 1,
        term=1,
        checksum=0,
        catalog=1,
        txn_ids=[first + number for number in range(len(calls))],
        procedures=[NUMBERS[name] for name, _ in calls],
        params=[bank.db.procedures[name].bind(params) for name, params in calls],
        keys=[key_fingerprint("me", str(uuid.uuid4())) for _ in calls] if keyed else None,
    )


def transfers(seed: int, calls: int) -> list[bank.Call]:
    """Seeded transfers."""
    chance = random.Random(seed)
    return [
        (
            "transfer",
            {
                "branch": 0,
                "source": chance.randrange(CUSTOMERS),
                "target": chance.randrange(CUSTOMERS),
                "amount": chance.randrange(10),
            },
        )
        for _ in range(calls)
    ]


def run_bare(connection: apsw.Connection, calls: list[bank.Call]) -> Callable[[], object]:
    """The same statements on a bare cursor."""
    execute = connection.cursor().execute
    rows = [tuple(params.values()) for _, params in calls]

    def run() -> None:
        execute("BEGIN IMMEDIATE")
        for branch, source, target, amount in rows:
            execute(LOOK, (branch, source)).fetchall()
            execute(ADD, (-amount, branch, source))
            execute(ADD, (amount, branch, target))
        execute("COMMIT")

    return run


def run_engine(executor: Executor, calls: list[bank.Call], *, keyed: bool, savepoints: bool) -> Callable[[], object]:
    """The calls through the executor."""
    batch = batch_of(executor, calls, keyed=keyed)
    if savepoints:
        executor._savepoint_batches = 2
    return lambda: executor.apply(batch)


def measure(rounds: int) -> dict[str, float]:
    """Calls per second of each variant, from the median time of its batches; the variants take turns batch by batch."""
    with tempfile.TemporaryDirectory() as folder:
        raw, _ = loaded_state(Path(folder) / "bare.db", digest_rows=False)
        _, plain = loaded_state(Path(folder) / "plain.db", digest_rows=False)
        _, digesting = loaded_state(Path(folder) / "digest.db", digest_rows=True)
        prepare: dict[str, Callable[[list[bank.Call]], Callable[[], object]]] = {
            "bare loop": lambda work: run_bare(raw.connection, work),
            "apply": lambda work: run_engine(plain, work, keyed=False, savepoints=False),
            "apply, savepoints": lambda work: run_engine(plain, work, keyed=False, savepoints=True),
            "apply, keys": lambda work: run_engine(plain, work, keyed=True, savepoints=False),
            "apply, digest": lambda work: run_engine(digesting, work, keyed=False, savepoints=False),
            "apply, digest, keys": lambda work: run_engine(digesting, work, keyed=True, savepoints=False),
        }
        times: dict[str, list[float]] = {name: [] for name in prepare}
        for seed in range(rounds):
            work = transfers(seed, BATCH)
            for name, make in prepare.items():
                run = make(work)
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: BATCH / statistics.median(spent) for name, spent in times.items()}


def report(rates: dict[str, float]) -> None:
    """Prints the rates."""
    for name, rate in rates.items():
        print(f"{name:22} {rate:10,.0f} calls/s   {rate / rates['bare loop']:.2f} of the bare loop")


if __name__ == "__main__":
    report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
