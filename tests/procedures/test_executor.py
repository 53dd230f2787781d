"""The executor: outcomes, rollback of single calls, digests, positions, agreement with a plain model."""

from __future__ import annotations

import itertools
import random
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, String, bindparam, insert, select

from procedures import Database, Transaction
from procedures.errors import BatchRefused
from procedures.execution.executor import Status
from procedures.execution.outcome_bodies import outcome_of
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState, Position
from tests.procedures.sites import Site, counters, txn_at

MakeSite = Callable[..., Site]
OPS = st.lists(
    st.tuples(
        st.sampled_from(["count", "count_then_raise", "count_then_abort", "refuse"]),
        st.sampled_from("abc"),
        st.integers(-3, 3),
    ),
    min_size=1,
    max_size=12,
)


def as_call(op: tuple[str, str, int]) -> tuple[str, dict[str, Any]]:
    """A call of the counters application."""
    kind, name, by = op
    return kind, {"name": name} if kind == "refuse" else {"name": name, "by": by}


def test_result_abort_and_failure_are_outcomes(make_site: MakeSite) -> None:
    """A result, an abort and an exception each come back with their status and body, and only the first leaves a trace."""
    site = make_site(counters())
    applied = site.apply(
        ("count", {"name": "a", "by": 2}),
        ("count_then_abort", {"name": "a", "by": 5}),
        ("count_then_raise", {"name": "a", "by": 7}),
        ("count", {"name": "a", "by": 1}),
    )
    assert list(applied.statuses) == [Status.OK, Status.ABORTED, Status.FAILED, Status.OK]
    assert [orjson.loads(body) for body in applied.bodies] == [
        2,
        {"code": "no", "message": "not today"},
        {"type": "ValueError", "message": "changed my mind"},
        3,
    ]
    assert site.rows("SELECT * FROM counters") == [("a", 3)]


def test_result_hash_is_crc_of_status_and_body(make_site: MakeSite) -> None:
    """The hash of a result covers its status byte and its body, as replicas compare both."""
    applied = make_site(counters()).apply(("count", {"name": "a", "by": 1}), ("refuse", {"name": "a"}))
    expected = [
        google_crc32c.value(bytes([status]) + body) for status, body in zip(applied.statuses, applied.bodies, strict=True)
    ]
    assert applied.result_hashes == expected


def test_position_moves_with_the_batch_and_survives_reopening(make_site: MakeSite) -> None:
    """Index, term, checksum and last transaction id are in the file as soon as the batch is."""
    site = make_site(counters(), name="one.db")
    site.apply(("count", {"name": "a", "by": 1}), ("count", {"name": "b", "by": 1}))
    expected = Position(2, 1, 7, txn_at(site.milliseconds, 1))
    assert site.state.position == expected
    site.state.close()
    assert PartitionState.open(site.path, partition=0).position == expected


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_batch_that_does_not_follow_is_refused(make_site: MakeSite, offset: int) -> None:
    """A batch whose index is not the next one changes nothing."""
    site = make_site(counters())
    batch = site.batch([("count", {"name": "a", "by": 1})])
    wrong = batch._replace(index=batch.index + offset - (offset == 0))
    before = site.dump()
    with pytest.raises(BatchRefused, match="does not follow"):
        site.executor.apply(wrong)
    assert site.dump() == before


@pytest.mark.parametrize(
    "change",
    [
        {"procedures": [99]},
        {"procedures": [-1]},
        {"params": []},
        {"txn_ids": [5]},
        {"keys": []},
        {"txn_ids": [], "params": [], "procedures": []},
    ],
)
def test_batch_that_contradicts_itself_is_refused(make_site: MakeSite, change: dict[str, Any]) -> None:
    """Columns of different lengths, unknown numbers and transaction ids that go back are refused before anything runs."""
    site = make_site(counters())
    batch = site.batch([("count", {"name": "a", "by": 1})])
    wrong = batch._replace(**change)
    before = site.dump()
    with pytest.raises(BatchRefused):
        site.executor.apply(wrong)
    assert site.dump() == before


def test_advance_moves_the_index_alone(make_site: MakeSite) -> None:
    """An entry without rows moves the index, and the transaction id stays."""
    site = make_site(counters())
    site.apply(("count", {"name": "a", "by": 1}))
    before = site.state.position
    site.executor.advance(index=before.index + 1, term=3, checksum=9)
    assert site.state.position == Position(before.index + 1, 3, 9, before.txn_id)
    with pytest.raises(BatchRefused):
        site.executor.advance(index=before.index + 1, term=3, checksum=9)


def test_schema_record_may_not_touch_the_framework_or_rows(make_site: MakeSite) -> None:
    """A schema record creates and drops the application's tables; anything else rolls all of it back."""
    site = make_site(counters())
    before = site.dump()
    for statement in (
        "DROP TABLE _cmdlog_meta",
        "UPDATE _cmdlog_meta SET idx = 99",
        "ALTER TABLE _cmdlog_keys ADD COLUMN x",
        "PRAGMA journal_mode = delete",
        "ATTACH 'x' AS y",
        "COMMIT",
        "CREATE TRIGGER t AFTER INSERT ON counters BEGIN SELECT 1; END",
        "CREATE TABLE z(a INTEGER PRIMARY KEY, b DEFAULT CURRENT_TIMESTAMP) nonsense",
    ):
        with pytest.raises(BatchRefused):
            site.executor.apply_schema(
                index=2,
                term=1,
                checksum=0,
                txn_id=txn_at(site.milliseconds + 1),
                change=StatedChange(("CREATE TABLE y(a)", statement)),
            )
    assert site.dump() == before


def test_skipped_call_does_not_run(make_site: MakeSite) -> None:
    """A position in `skips` fails as stopped, and the others run."""
    site = make_site(counters())
    applied = site.apply(("count", {"name": "a", "by": 1}), ("count", {"name": "b", "by": 1}), skips=[0])
    assert list(applied.statuses) == [Status.FAILED, Status.OK]
    assert orjson.loads(applied.bodies[0])["type"] == "Skipped"
    assert orjson.loads(applied.bodies[0])["message"].startswith("taken out of its batch")
    assert site.rows("SELECT * FROM counters") == [("b", 1)]


def test_progress_is_told_before_each_call(make_site: MakeSite) -> None:
    """A watchdog learns which call of the batch is running."""
    seen: list[int] = []
    site = make_site(counters(), progress=seen.append)
    site.apply(("count", {"name": "a", "by": 1}), ("refuse", {"name": "a"}))
    assert seen == [0, 1]


def test_abort_before_any_change_needs_no_second_run(make_site: MakeSite) -> None:
    """A call that aborts before it changed rows does not make the batch run twice."""
    seen: list[int] = []
    site = make_site(counters(), progress=seen.append)
    site.apply(("count", {"name": "a", "by": 1}), ("refuse", {"name": "a"}), ("count", {"name": "a", "by": 1}))
    assert seen == [0, 1, 2]


def test_read_answers_as_of_the_last_batch(make_site: MakeSite) -> None:
    """A read sees the state after the last batch and says which transaction that was."""
    site = make_site(counters())
    site.apply(("count", {"name": "a", "by": 4}))
    as_of, answers = site.executor.read([(site.numbers["peek"], ["a"]), (site.numbers["peek"], ["zz"])], catalog=1)
    assert as_of == site.state.position.txn_id
    assert answers == [(Status.OK, b"4"), (Status.OK, b"null")]


def test_read_of_a_writing_procedure_is_refused(make_site: MakeSite) -> None:
    """Only procedures declared read-only run as reads."""
    site = make_site(counters())
    with pytest.raises(BatchRefused, match="no read-only"):
        site.executor.read([(site.numbers["count"], ["a", 1])], catalog=1)


def test_read_only_procedure_in_the_log_fails(make_site: MakeSite) -> None:
    """A read-only procedure that gets into a batch fails there, on every replica alike."""
    assert make_site(counters()).call("peek", name="a")[1]["type"] == "ReadOnlyProcedure"


def test_kept_transaction_refuses_after_its_call(make_site: MakeSite) -> None:
    """`tx` that was kept and used after the batch says so, and so does every part of it."""
    db = Database("keeper")
    table = db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
    kept: list[Transaction] = []

    @db.procedure(partition_by="number")
    def keep(tx: Transaction, number: int) -> None:
        kept.append(tx)

    make_site(db).call("keep", number=1)
    uses: list[Callable[[Transaction], Any]] = [
        lambda tx: tx.execute(select(table)),
        lambda tx: tx.txn_id,
        lambda tx: tx.now,
        lambda tx: tx.random,
    ]
    for use in uses:
        with pytest.raises(Exception, match="used outside of its call"):
            use(kept[0])


def test_unencodable_results_are_failures(make_site: MakeSite) -> None:
    """NaN, sets, objects, integers over 64 bits and results against their annotation fail, and their changes are undone."""
    db = Database("results")
    table = db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
    put = insert(table).values(id=bindparam("number"))
    values: dict[str, Any] = {
        "nan": float("nan"),
        "inf": [float("inf")],
        "set": {1},
        "object": object(),
        "long": 1 << 63,
        "key": {1: 2},
        "surrogate": "\ud800",
        "bytes_in_set": {"a": {b"x"}},
        "generator": (n for n in [1]),
    }

    @db.procedure(partition_by="number")
    def give(tx: Transaction, number: int, what: str) -> Any:
        tx.execute(put, number=number)
        return values[what]

    @db.procedure(partition_by="number")
    def lie(tx: Transaction, number: int) -> int:
        tx.execute(put, number=number)
        return "text"  # type: ignore[return-value]

    site = make_site(db)
    for number, what in enumerate(values):
        status, body = site.call("give", number=number, what=what)
        assert status == Status.FAILED, (what, body)
    assert site.call("lie", number=77)[0] == Status.FAILED
    assert site.rows("SELECT * FROM t") == []


def test_failure_names_a_class_of_the_main_module_as_it_was_live() -> None:
    """A replay loads the program's main module under another name, which no outcome may show."""
    live = outcome_of(ValueError("<__main__.Order object at 0x7f0000000001> is late " + "x" * 2000))
    assert live == outcome_of(ValueError("<cmdlog_bundled_main.Order object at 0x7f0000000002> is late " + "x" * 2000))


def test_failure_bodies_hold_no_addresses_and_are_bounded(make_site: MakeSite) -> None:
    """What an exception says is cleaned of memory addresses, cut, and always valid text."""
    db = Database("shouter")

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @db.procedure(partition_by="number")
    def shout(tx: Transaction, number: int) -> None:
        raise [ValueError(object()), ValueError("x" * 10_000), ValueError("\ud800"), Silent()][number]

    site = make_site(db)
    bodies = [site.call("shout", number=number)[1] for number in range(4)]
    assert bodies[0]["message"] == "<object object>"
    assert len(bodies[1]["message"]) == 1000
    assert bodies[2]["message"] == "?"
    assert bodies[3] == {"type": "Silent", "message": "(the exception has no text)"}


def test_digest_is_zero_when_switched_off(make_site: MakeSite) -> None:
    """Zero means that no digest was computed, and no computed digest is zero."""
    assert make_site(counters(), digest_rows=False).apply(("count", {"name": "a", "by": 1})).rows_digest == 0
    site = make_site(counters())
    assert site.apply(("refuse", {"name": "a"})).rows_digest != 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(OPS, min_size=1, max_size=4))
def test_both_ways_to_run_agree_with_the_model(batches: list[list[tuple[str, str, int]]]) -> None:
    """With and without savepoints: same outcomes, same rows as a plain dict, same digests."""
    with tempfile.TemporaryDirectory() as folder:
        straight = Site(Path(folder) / "a.db", counters())
        guarded = Site(Path(folder) / "b.db", counters())
        model: dict[str, int] = {}
        for ops in batches:
            calls = [as_call(op) for op in ops]
            straight.executor._savepoint_batches = 0
            guarded.executor._savepoint_batches = 5
            one, other = straight.apply(*calls), guarded.apply(*calls)
            expected = [model_outcome(model, op) for op in ops]
            assert [(status, orjson.loads(body)) for status, body in zip(one.statuses, one.bodies, strict=True)] == expected
            assert (one.statuses, one.bodies, one.rows_digest) == (other.statuses, other.bodies, other.rows_digest)
        assert dict(straight.rows("SELECT * FROM counters")) == model
        straight.close()
        guarded.close()


@pytest.mark.parametrize("savepoints", [0, 5])
@pytest.mark.parametrize("names", list(itertools.product(["draw", "draw_then_abort"], repeat=2)))
def test_every_run_of_a_call_draws_the_same(make_site: MakeSite, savepoints: int, names: tuple[str, str]) -> None:
    """A batch that is taken back and run again with savepoints answers as one that began with them, and as its ids say."""
    db = Database("draws")
    rows = db.table("rows", Column("id", Integer, primary_key=True), Column("drawn", String), partition_by="id")
    add = insert(rows).values(id=bindparam("number"), drawn=bindparam("text"))

    @db.procedure(partition_by="number")
    def draw(tx: Transaction, number: int) -> str:
        drawn = str(tx.uuid())
        tx.execute(add, number=number, text=drawn)
        return drawn

    @db.procedure(partition_by="number")
    def draw_then_abort(tx: Transaction, number: int) -> None:
        tx.abort("drawn", draw(tx, number))

    site = make_site(db)
    site.executor._savepoint_batches = savepoints
    applied = site.apply(*((name, {"number": number}) for number, name in enumerate(names)))
    drawn = [str(uuid.UUID(int=random.Random(txn << 32 | 1).getrandbits(128), version=4)) for txn in applied.txn_ids]
    found = [orjson.loads(body) for body in applied.bodies]
    assert [body if name == "draw" else body["message"] for name, body in zip(names, found, strict=True)] == drawn
    assert [text for (text,) in site.rows("SELECT drawn FROM rows ORDER BY id")] == [
        text for name, text in zip(names, drawn, strict=True) if name == "draw"
    ]


def test_reads_draw_alike_wherever_they_stand(make_site: MakeSite) -> None:
    """Reads share the id of the transaction that they see; none goes on with the numbers of the one before."""
    db = Database("reads")

    @db.procedure(partition_by="n", read_only=True)
    def draw(tx: Transaction, n: int) -> str:
        return str(tx.uuid())

    _, answers = make_site(db).executor.read([(0, [1]), (0, [1])], catalog=1)
    assert answers[0] == answers[1]


def model_outcome(model: dict[str, int], op: tuple[str, str, int]) -> tuple[int, Any]:
    """What a call does to a dict."""
    kind, name, by = op
    if kind == "count":
        model[name] = model.get(name, 0) + by
        return Status.OK, model[name]
    if kind == "count_then_raise":
        return Status.FAILED, {"type": "ValueError", "message": "changed my mind"}
    return Status.ABORTED, {"code": "no", "message": "not today"} if kind == "count_then_abort" else {
        "code": "refused",
        "message": "",
    }


def test_digest_ignores_rolled_back_calls(make_site: MakeSite) -> None:
    """The digest of a batch is that of the calls that stayed."""
    with_failures, without = make_site(counters()), make_site(counters())
    good = [("count", {"name": name, "by": 1}) for name in "abcdefghij"]
    bad = [("count_then_raise", {"name": name, "by": 1}) for name in "zyxwv"]
    one = with_failures.apply(*bad, *good, *bad)
    assert one.rows_digest == without.apply(*good).rows_digest
    assert [row.key for row in with_failures.executor.changed_rows()] == [(name,) for name in "abcdefghij"]


def test_other_rows_give_another_digest(make_site: MakeSite) -> None:
    """One different value changes the digest, and `changed_rows` shows the row."""
    one, other = make_site(counters()), make_site(counters())
    left = one.apply(("count", {"name": "a", "by": 1}), ("count", {"name": "b", "by": 1}))
    right = other.apply(("count", {"name": "a", "by": 1}), ("count", {"name": "b", "by": 2}))
    assert left.rows_digest != right.rows_digest
    differing = set(one.executor.changed_rows()) ^ set(other.executor.changed_rows())
    assert {(row.table, row.key) for row in differing} == {("counters", ("b",))}
