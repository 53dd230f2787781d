"""An application that misbehaves in every way a procedure can."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Column, Integer, LargeBinary, String, bindparam, func, insert, select, update

from procedures import Database, Transaction

if os.environ.get("FAULTY_AT_EXIT") == "hang":  # in processes that load the module while it is set
    atexit.register(time.sleep, 60)

db = Database("faulty")

counters = db.table("counters", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
payloads = db.table(
    "payloads",
    Column("id", Integer, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    partition_by="id",
)
rates = db.table("rates", Column("name", String, primary_key=True), Column("value", Integer, nullable=False), replicated=True)

ADD = update(counters).where(counters.c.id == bindparam("id_")).values(n=counters.c.n + bindparam("amount"))
NEW = insert(counters).values(id=bindparam("id_"), n=bindparam("amount"))
READ = select(counters.c.n).where(counters.c.id == bindparam("id_"))
SUM = select(func.coalesce(func.sum(counters.c.n), 0))
STORE = insert(payloads).values(id=bindparam("id_"), seq=bindparam("seq_"), data=bindparam("data_"))
RATE = select(rates.c.value).where(rates.c.name == bindparam("name_"))
CHANGE_RATE = update(rates).where(rates.c.name == bindparam("name_")).values(value=bindparam("value_"))
ADD_RATE = insert(rates).values(name=bindparam("name_"), value=bindparam("value_"))


def _add(tx: Transaction, id_: int, amount: int) -> int:
    if tx.execute(ADD, id_=id_, amount=amount).rowcount == 0:
        tx.execute(NEW, id_=id_, amount=amount)
    return int(tx.execute(READ, id_=id_).scalar() or 0)


@db.procedure(partition_by="id")
def bump(tx: Transaction, id: int, amount: int) -> int:  # noqa: A002 - a column's name
    """The plain one: adds, and answers with the sum."""
    return _add(tx, id, amount)


@db.procedure(partition_by="id")
def abort_after_write(tx: Transaction, id: int, amount: int) -> int:  # noqa: A002
    """Writes, then aborts."""
    _add(tx, id, amount)
    tx.abort("no_luck", "it had written")


@db.procedure(partition_by="id")
def raise_after_write(tx: Transaction, id: int, amount: int) -> int:  # noqa: A002
    """Writes, then raises."""
    _add(tx, id, amount)
    raise LookupError("it had written")


@db.procedure(partition_by="id")
def hang(tx: Transaction, id: int) -> int:  # noqa: A002
    """Never returns, after a write."""
    _add(tx, id, 1000)
    while True:
        pass


@db.procedure(partition_by="id")
def nap(tx: Transaction, id: int, seconds: float) -> int:  # noqa: A002
    """Takes its time."""
    time.sleep(seconds)
    return _add(tx, id, 1)


@db.procedure(partition_by="id")
def stay(tx: Transaction, id: int, path: str) -> int:  # noqa: A002
    """Takes its time, as long as the file is there; the file holds something once it runs."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        file.write(b"runs")
    while os.path.exists(path):
        time.sleep(0.005)
    return _add(tx, id, 1)


@db.procedure(partition_by="id")
def crash(tx: Transaction, id: int) -> int:  # noqa: A002
    """Ends the process, always."""
    _add(tx, id, 1000)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@db.procedure(partition_by="id")
def fork(tx: Transaction, id: int) -> int:  # noqa: A002
    """Writes, then makes a second process of this one."""
    _add(tx, id, 1000)
    return os.fork()


@db.procedure(partition_by="id")
def interrupt(tx: Transaction, id: int) -> int:  # noqa: A002
    """Raises what Ctrl-C raises, always."""
    _add(tx, id, 1000)
    raise KeyboardInterrupt


@db.procedure(partition_by="id")
def crash_while(tx: Transaction, id: int, path: str, amount: int) -> int:  # noqa: A002
    """Ends the process as long as the file exists, which it removes."""
    if os.path.exists(path):
        os.unlink(path)
        os._exit(3)
    return _add(tx, id, amount)


@db.procedure(partition_by="id")
def recurse(tx: Transaction, id: int) -> int:  # noqa: A002
    """Has no end."""
    return recurse(tx, id)


@db.procedure(partition_by="id")
def exhaust(tx: Transaction, id: int) -> int:  # noqa: A002
    """Writes, then runs out of memory."""
    _add(tx, id, 1000)
    raise MemoryError


@db.procedure(partition_by="id")
def big(tx: Transaction, id: int, size: int) -> str:  # noqa: A002
    """A long answer."""
    return "x" * size


@db.procedure(partition_by="id")
def store(tx: Transaction, id: int, seq: int, data: bytes) -> int:  # noqa: A002
    """Fills the disk."""
    tx.execute(STORE, id_=id, seq_=seq, data_=data)
    return len(data)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Every type that JSON does not have."""

    amount: Decimal
    at: datetime
    raw: bytes
    many: list[Decimal]


@db.procedure(partition_by="id")
def mixed(tx: Transaction, id: int, amount: Decimal, at: datetime, raw: bytes) -> Mixed:  # noqa: A002
    """Gives back what it got."""
    return Mixed(amount, at, raw, [amount, amount])


@db.procedure(partition_by="id", read_only=True)
def peek(tx: Transaction, id: int) -> int:  # noqa: A002
    """Reads a counter."""
    return int(tx.execute(READ, id_=id).scalar() or 0)


@db.procedure(partition_by="id", read_only=True)
def hang_reading(tx: Transaction, id: int) -> int:  # noqa: A002
    """Never returns, and holds nothing but the processor."""
    while True:
        pass


@db.procedure(partition_by="id", read_only=True)
def end_reading(tx: Transaction, id: int, how: str) -> int:  # noqa: A002
    """Ends the process: by `exit`, by the signal of that name, or by SIGKILL as long as the file exists, which it removes."""
    if how == "exit":
        os._exit(3)
    if how.startswith("/"):
        if os.path.exists(how):
            os.unlink(how)
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.Signals[how])
    return id


@db.procedure(partition_by=None, read_only=True)
def hang_somewhere(tx: Transaction, total: int) -> int:
    """Never returns where the counters have this sum."""
    while (found := int(tx.execute(SUM).scalar() or 0)) == total:
        pass
    return found


@db.procedure(partition_by=None)
def set_rate(tx: Transaction, name: str, value: int) -> int:
    """Writes the replicated table on every partition; answers with the value before."""
    before = tx.execute(RATE, name_=name).scalar()
    if tx.execute(CHANGE_RATE, name_=name, value_=value).rowcount == 0:
        tx.execute(ADD_RATE, name_=name, value_=value)
    return int(before or 0)


@db.procedure(partition_by=None)
def spin_everywhere(tx: Transaction, name: str) -> None:
    """Changes the replicated table, and never returns."""
    tx.execute(ADD_RATE, name_=name, value_=1)
    while True:
        pass


@db.procedure(partition_by=None, read_only=True)
def look_everywhere(tx: Transaction, name: str) -> list[int]:
    """The replicated value, and the sum of this partition's counters."""
    return [int(tx.execute(RATE, name_=name).scalar() or 0), int(tx.execute(SUM).scalar() or 0)]
