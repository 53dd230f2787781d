"""An application for replays: chance, time, upserts, deletes, keys that are no integers, swallowed errors, late aborts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, DateTime, Float, Integer, String, Uuid, bindparam, delete, func, insert, select, text, update

from procedures import Database, IntegrityError, Transaction

LAST_NUMBER = (1 << 63) - 1
NAMES = ("a", "b", "c", "ä")
TAGS = ("x", "y", "z")

db = Database("everything")
draws = db.table(
    "draws",
    Column("id", Integer, primary_key=True),
    Column("owner", String, nullable=False, index=True),
    Column("mark", Uuid, unique=True),
    Column("amount", Float),
    Column("at", DateTime),
    partition_by="owner",
)
pairs = db.table(
    "pairs",
    Column("owner", String, primary_key=True),
    Column("tag", String, primary_key=True),
    Column("seat", Integer, unique=True),
    Column("amount", Float, nullable=False),
    partition_by="owner",
)
db.table("shared", Column("id", Integer, primary_key=True), Column("luck", Float), replicated=True)
DRAW = (
    insert(draws)
    .values(owner=bindparam("who"), mark=bindparam("mark"), amount=bindparam("amount"), at=bindparam("at"))
    .returning(draws.c.id)
)
UPSERT = text(
    "INSERT INTO pairs (owner, tag, seat, amount) VALUES (:who, :tag, :seat, :amount) "
    "ON CONFLICT (owner, tag) DO UPDATE SET amount = amount + excluded.amount"
)
UNSEAT = text("INSERT OR REPLACE INTO pairs (owner, tag, seat, amount) VALUES (:who, :tag, :seat, :amount)")
FILL = text(
    "INSERT OR FAIL INTO pairs (owner, tag, seat, amount) "
    "VALUES (:who, 'f1', :seat, 1), (:who, 'f2', :seat + 1, 2), (:who, 'f3', :seat, 3)"
)
SHIFT = update(pairs).where(pairs.c.owner == bindparam("who")).values(seat=pairs.c.seat + 1)
DROP = delete(pairs).where(pairs.c.owner == bindparam("who"), pairs.c.tag == bindparam("tag")).returning(pairs.c.seat)
THIN = delete(draws).where(draws.c.owner == bindparam("who"), draws.c.amount < bindparam("limit"))
LAST = insert(draws).values(id=LAST_NUMBER, owner=bindparam("who"))
UNLAST = delete(draws).where(draws.c.id == LAST_NUMBER)
SOME = select(pairs.c.tag, pairs.c.seat).limit(3)
TOTAL = select(func.sum(pairs.c.amount), func.group_concat(pairs.c.tag), func.count())
LUCK = text("INSERT INTO shared (id, luck) VALUES (:number, :luck) ON CONFLICT (id) DO UPDATE SET luck = excluded.luck")


def drawn(tx: Transaction, who: str) -> Any:
    """A row of chance and time; its number is given by the state."""
    amount = tx.random.random()
    return tx.execute(DRAW, who=who, mark=tx.uuid(), amount=amount, at=tx.now).scalar()


@db.procedure(partition_by="who")
def take(tx: Transaction, who: str) -> list[str]:
    """Everything that `tx` gives."""
    number = drawn(tx, who)
    return [str(number), str(tx.uuid()), tx.now.isoformat(), str(tx.txn_id), str(tx.random.sample(TAGS, 2))]


@db.procedure(partition_by="who")
def put(tx: Transaction, who: str, tag: str, amount: float) -> object:
    """An upsert; the seat may be taken, and then another one is."""
    for _ in range(3):
        try:
            count = tx.execute(UPSERT, who=who, tag=tag, seat=tx.random.randrange(12), amount=amount).rowcount
            return [count, tx.execute(TOTAL).one()]
        except IntegrityError as error:
            drawn(tx, str(error))
    return tx.abort("no_seat", str(tx.uuid()))


@db.procedure(partition_by="who")
def replace_seat(tx: Transaction, who: str, tag: str) -> object:
    """Takes a seat from whoever has it; rows come back without an order."""
    count = tx.execute(UNSEAT, who=who, tag=tag, seat=tx.random.randrange(6), amount=tx.random.gauss(0, 1)).rowcount
    return [count, tx.execute(SOME).all()]


@db.procedure(partition_by="who")
def partly(tx: Transaction, who: str) -> object:
    """Statements that fail half-way: one keeps what it did, one takes it back; both errors are swallowed."""
    told = []
    for statement, values in ((FILL, {"seat": tx.random.randrange(9)}), (SHIFT, {})):
        try:
            told.append(str(tx.execute(statement, who=who, **values).rowcount))
        except IntegrityError as error:
            told.append(str(error))
    return [*told, drawn(tx, who)]


@db.procedure(partition_by="who")
def remove(tx: Transaction, who: str, tag: str) -> object:
    """Deletes, and tells what was deleted."""
    return [tx.execute(DROP, who=who, tag=tag).all(), tx.execute(THIN, who=who, limit=tx.random.random() / 2).rowcount]


@db.procedure(partition_by="who")
def spoil(tx: Transaction, who: str) -> None:
    """Ends badly after a change."""
    number = drawn(tx, who)
    if tx.random.random() < 0.5:
        tx.abort("spoilt", f"{number} {tx.uuid()}")
    raise ValueError(f"{number} {tx.random.random()} {object()!r}")


@db.procedure(partition_by="who")
def refuse(tx: Transaction, who: str) -> None:
    """Ends badly before any change."""
    tx.execute(TOTAL)
    tx.abort("refused", f"{who} {tx.random.random()}")


@db.procedure(partition_by="who")
def close_numbers(tx: Transaction, who: str) -> object:
    """The last number is taken, or free again."""
    return tx.execute(UNLAST).rowcount or tx.execute(LAST, who=who).rowcount


@db.procedure(partition_by="who")
def long_answer(tx: Transaction, who: str) -> str:
    """Answers too long at times to be kept under a key."""
    drawn(tx, who)
    return str(tx.uuid()) * tx.random.randrange(10)


@db.procedure(partition_by=None)
def everywhere(tx: Transaction, number: int) -> float:
    """Changes a replicated table, the same on all partitions."""
    tx.execute(LUCK, number=number, luck=tx.random.random())
    if number == 0:
        tx.abort("none", str(tx.uuid()))
    return tx.random.random()
