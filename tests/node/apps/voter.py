"""Voter: phone calls vote for contestants, at most so many each; VoltDB's classic.

Contestants are replicated, so that every partition can check a vote by itself; votes and counts live on the partition of the
phone number. `totals` adds up over all partitions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Integer, String, bindparam, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from procedures import Database, Transaction

db = Database("voter")

contestants = db.table(
    "contestants",
    Column("number", Integer, primary_key=True),
    Column("name", String, nullable=False),
    replicated=True,
)
phones = db.table(
    "phones",
    Column("phone", Integer, primary_key=True),
    Column("votes", Integer, nullable=False),
    partition_by="phone",
)
votes = db.table(
    "votes",
    Column("phone", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", String(2), nullable=False),
    Column("contestant", Integer, nullable=False),
    partition_by="phone",
)

NAME = select(contestants.c.name).where(contestants.c.number == bindparam("contestant_"))
ADD_CONTESTANT = insert(contestants).values(number=bindparam("number_"), name=bindparam("name_"))
RENAME = update(contestants).where(contestants.c.number == bindparam("number_")).values(name=bindparam("name_"))
COUNT = select(phones.c.votes).where(phones.c.phone == bindparam("phone_"))
COUNT_UP = (
    upsert(phones)
    .values(phone=bindparam("phone_"), votes=1)
    .on_conflict_do_update(index_elements=["phone"], set_={"votes": phones.c.votes + 1})
)
ADD_VOTE = insert(votes).values(
    phone=bindparam("phone_"), number=bindparam("number_"), state=bindparam("state_"), contestant=bindparam("contestant_")
)
TOTALS = (
    select(contestants.c.name, func.count(votes.c.phone))
    .select_from(contestants.outerjoin(votes, votes.c.contestant == contestants.c.number))
    .group_by(contestants.c.number, contestants.c.name)
    .order_by(contestants.c.number)
)

VOTES_PER_PHONE_MAX = 10
STATES = ("AK", "CA", "FL", "MA", "NY", "OR", "TX", "WA")


@db.procedure(partition_by=None)
def add_contestants(tx: Transaction, names: list[str]) -> int:
    """Numbers the contestants 1, 2, 3, … in the order given; known numbers get the new name."""
    if not names:
        tx.abort("no_names", "give at least one")
    for number, name in enumerate(names, start=1):
        if tx.execute(RENAME, number_=number, name_=name).rowcount == 0:
            tx.execute(ADD_CONTESTANT, number_=number, name_=name)
    return len(names)


@db.procedure(partition_by="phone")
def vote(tx: Transaction, phone: int, contestant: int, state: str) -> int:
    """One vote; returns how many the phone has given."""
    if tx.execute(NAME, contestant_=contestant).scalar() is None:
        tx.abort("invalid_contestant", f"no contestant {contestant}")
    given: int = tx.execute(COUNT, phone_=phone).scalar() or 0
    if given >= VOTES_PER_PHONE_MAX:
        tx.abort("over_limit", f"{given} votes given")
    tx.execute(COUNT_UP, phone_=phone)
    tx.execute(ADD_VOTE, phone_=phone, number_=given + 1, state_=state, contestant_=contestant)
    return given + 1


@db.procedure(partition_by="phone", read_only=True)
def votes_of(tx: Transaction, phone: int) -> int:
    """How many votes the phone has given."""
    given: int = tx.execute(COUNT, phone_=phone).scalar() or 0
    return given


@db.procedure(partition_by=None, read_only=True)
def totals(tx: Transaction) -> list[tuple[str, int]]:
    """Votes by contestant on each partition."""
    return [(name, count) for name, count in tx.execute(TOTALS)]


Call = tuple[str, dict[str, Any]]
NAMES = ("Edwina Burnam", "Tabatha Gehling", "Kelly Clauss", "Jessie Alloway", "Alana Bregman", "Jessie Eichman")


def loader() -> Iterator[Call]:
    """Calls that prepare an empty state."""
    yield "add_contestants", {"names": list(NAMES)}


def workload(seed: int, *, calls: int, phones: int = 500) -> Iterator[Call]:
    """Seeded votes; one in fifty is for a contestant that does not exist, and busy phones run into their limit."""
    chance = random.Random(seed)
    for _ in range(calls):
        contestant = chance.randrange(1, len(NAMES) + 1) if chance.random() < 0.98 else 99
        # The square makes some phones busy.
        phone = 5_550_000 + int(phones * chance.random() ** 2)
        yield "vote", {"phone": phone, "contestant": contestant, "state": chance.choice(STATES)}


@dataclass(slots=True)
class VoterModel:
    """The same in plain Python."""

    contestants: dict[int, str] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)  # phone -> votes
    counts: dict[int, int] = field(default_factory=dict)  # contestant -> votes

    def apply(self, procedure: str, params: dict[str, Any]) -> tuple[str, Any]:
        """Applies a call; returns ("ok", result) or ("aborted", code)."""
        if procedure == "add_contestants":
            return self._add_contestants(**params)
        return self._vote(**params)

    def _add_contestants(self, names: list[str]) -> tuple[str, Any]:
        if not names:
            return "aborted", "no_names"
        self.contestants.update(enumerate(names, start=1))
        return "ok", len(names)

    def _vote(self, phone: int, contestant: int, state: str) -> tuple[str, Any]:
        if contestant not in self.contestants:
            return "aborted", "invalid_contestant"
        given = self.given.get(phone, 0)
        if given >= VOTES_PER_PHONE_MAX:
            return "aborted", "over_limit"
        self.given[phone] = given + 1
        self.counts[contestant] = self.counts.get(contestant, 0) + 1
        return "ok", given + 1
