"""Keys that wander between partitions are noticed, also after a restart, as long as any table knows them, in bounded memory."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cmdlog.node.placing.key_owners import SLICES, KeyOwners, look_up
from cmdlog.node.placing.session_owners import EVERYWHERE, EXPIRED, FULL, SessionOwners
from procedures.idempotency.key_table import Figures, KeyRow, stored_keys
from procedures.idempotency.known_outcome import HOLDER_BYTES, time_mark
from procedures.storage.state import PartitionState

WINDOW_S = 160.0


def key(n: int) -> bytes:
    """An opaque fingerprint."""
    return n.to_bytes(8, "little") + bytes(8)


def timed(n: int, milliseconds: int) -> bytes:
    """A fingerprint that bears a time."""
    return n.to_bytes(8, "little") + time_mark(milliseconds)


class Ticks:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Tables:
    """What the partitions' tables hold, as the index may look it up; two rows at a time."""

    def __init__(self, partitions: int) -> None:
        self.rows: list[dict[int, KeyRow]] = [{} for _ in range(partitions)]
        self.figures = [Figures() for _ in range(partitions)]
        self.looks = 0

    def store(self, partition: int, *keys: bytes, shared: bool = False) -> None:
        """A batch of these keys."""
        idx = max(self.rows[partition], default=0) + 1
        self.rows[partition][idx] = KeyRow(idx, 0, -1 if shared else 0, 1, b"".join(keys))

    def forget(self, partition: int, *keys: bytes) -> None:
        """The table has dropped them."""
        for idx, row in list(self.rows[partition].items()):
            if row.keys in keys:
                del self.rows[partition][idx]

    def look(self, partition: int, after: int) -> tuple[Figures, Sequence[KeyRow]] | None:
        """See `keys.Look`."""
        self.looks += 1
        return self.figures[partition], [row for idx, row in sorted(self.rows[partition].items()) if idx > after][:2]


class Index(KeyOwners):
    """The index with its clock and tables; `use` is a call from its placing to its answer."""

    def __init__(self, *, keys_max: int = 1000, partitions: int = 3) -> None:
        self.ticks, self.tables = Ticks(), Tables(partitions)
        sessions = SessionOwners(WINDOW_S, sessions_max=keys_max, clock=self.ticks)
        super().__init__(WINDOW_S, keys_max=keys_max, partitions=partitions, sessions=sessions, clock=self.ticks)

    def use(self, fingerprint: bytes, partition: int) -> int:
        """Claims; what gets its key is stored in the table and settled."""
        owner = self.claim(fingerprint, partition)
        if owner == partition:
            if fingerprint not in {row.keys for row in self.tables.rows[partition].values()}:
                self.tables.store(partition, fingerprint)
            self.release_key(fingerprint, stored=True)
        return owner

    def pass_s(self, seconds: float) -> None:
        """Time passes, with as many steps of the look-up as it wants."""
        end = self.ticks.now + seconds
        while self.ticks.now < end:
            self.ticks.now = min(end, self.ticks.now + WINDOW_S / SLICES)
            for _ in range(500):
                self.tidy(self.tables.look)


def test_the_first_partition_keeps_a_key() -> None:
    """A claim by another partition, or by a multi-partition call, names the first owner; one of its own is let through."""
    index = Index()
    assert index.use(key(1), 2) == 2
    assert index.use(key(1), 2) == 2
    assert index.claim(key(1), 0) == 2
    assert index.claim(key(1), EVERYWHERE) == 2
    assert index.claim(key(2), EVERYWHERE) == EVERYWHERE
    assert index.claim(key(2), 1) == EVERYWHERE


def test_a_key_under_way_belongs_to_its_first_caller() -> None:
    """Of two calls that race with one key to two partitions one is told where the key is, before either is answered."""
    index = Index()
    assert index.claim(key(1), 0) == 0
    assert index.claim(key(1), 1) == 0
    index.release_key(key(1), stored=True)
    assert index.claim(key(1), 1) == 0


def test_a_refused_call_gives_its_key_back() -> None:
    """A flood of calls that nothing was stored of leaves nothing behind; one of two with the same key that ran does."""
    index = Index()
    for n in range(100):
        assert index.claim(key(n), 0) == 0
        index.release_key(key(n), stored=False)
    assert len(index) == 0
    assert index.claim(key(1), 1) == 1
    for outcomes in ((True, False), (False, True)):
        index = Index()
        assert [index.claim(key(1), 0), index.claim(key(1), 0)] == [0, 0]
        for stored in outcomes:
            index.release_key(key(1), stored=stored)
        assert index.claim(key(1), 1) == 0


def test_a_refused_repetition_does_not_free_a_key_that_is_stored() -> None:
    """A key that a table knows stays its partition's when a repetition is refused, young or old."""
    index = Index()
    index.use(key(1), 0)
    for _ in range(3):
        assert index.claim(key(1), 0) == 0
        index.release_key(key(1), stored=False)
        assert index.claim(key(1), 1) == 0
        index.pass_s(WINDOW_S)


def test_a_key_is_known_as_long_as_a_table_knows_it() -> None:
    """However long an idle partition keeps a key: time alone frees none; what its table forgot is free."""
    index = Index()
    for n in range(10):
        index.use(key(n), n % 3)
    index.pass_s(50 * WINDOW_S)
    assert [index.claim(key(n), (n + 1) % 3) for n in range(10)] == [n % 3 for n in range(10)]
    index.tables.forget(1, key(4))
    index.pass_s(WINDOW_S / SLICES * 2)
    assert len(index) == 9
    assert index.claim(key(4), 0) == 0


def test_young_keys_are_not_looked_up() -> None:
    """Within its window a key is known without reading any table."""
    index = Index()
    index.use(key(1), 0)
    index.tables.forget(0, key(1))
    index.pass_s(WINDOW_S * 0.9)
    assert index.tables.looks == 0
    assert index.claim(key(1), 1) == 0


def test_a_key_that_is_used_during_a_look_up_is_not_lost() -> None:
    """Its table has forgotten it and is about to know it again, while the look-up has passed that table."""
    index = Index()
    index.use(key(1), 0)
    index.tables.forget(0, key(1))
    index.ticks.now += WINDOW_S * 1.2
    index.tidy(index.tables.look)  # partition 0 is looked up and has nothing
    assert index.claim(key(1), 0) == 0
    for _ in range(10):
        index.tidy(index.tables.look)
    assert index.claim(key(1), 1) == 0
    index.release_key(key(1), stored=True)
    assert index.claim(key(1), 1) == 0


def test_a_call_that_takes_longer_than_the_window_keeps_its_key() -> None:
    """What is under way is in no table yet, and not forgotten."""
    index = Index()
    assert index.claim(key(1), 0) == 0
    index.use(key(2), 0)
    index.pass_s(5 * WINDOW_S)
    assert index.claim(key(1), 1) == 0


def test_a_state_that_is_being_restored_is_waited_for() -> None:
    """While a table cannot be looked up nothing is forgotten."""
    index = Index()
    index.use(key(1), 0)
    index.ticks.now += 2 * WINDOW_S
    for _ in range(10):
        index.tidy(lambda _partition, _after: None)
    assert index.claim(key(1), 1) == 0


def state_of(path: Path, rows: Sequence[KeyRow], figures: Figures | None = None) -> PartitionState:
    """A state file with these rows."""
    state = PartitionState.open(path, partition=0)
    with state.connection:
        state.connection.executemany(
            "INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, NULL)", [(row.idx, row.due, row.clock, row.keys) for row in rows]
        )
        if figures is not None:
            state.connection.execute("INSERT INTO _cmdlog_keys VALUES (0, 0, 0, x'', ?)", (figures.pack(),))
    return state


def load(index: Index, path: Path, partition: int, figures: Figures | None = None) -> None:
    """A start: what the partition's table holds comes from its file."""
    state = state_of(path, list(index.tables.rows[partition].values()), figures)
    index.load(state.connection, partition)
    state.close()


def test_a_restart_knows_every_key_and_whose_it_is(tmp_path: Path) -> None:
    """State files say which keys they know, and which of them are of calls on all partitions."""
    index = Index()
    for partition in range(3):
        index.tables.store(partition, key(7), shared=True)
        index.tables.store(partition, *(key(100 * (partition + 1) + n) for n in range(50)))
        load(index, tmp_path / f"{partition}.db", partition)
    assert index.claim(key(7), EVERYWHERE) == EVERYWHERE
    assert index.claim(key(7), 0) == EVERYWHERE
    assert index.claim(key(149), 0) == 0
    assert index.claim(key(349), 0) == 2
    assert len(index) == 151
    assert [table.total for table in index.shares] == [51, 51, 51]


def test_one_partition_tells_both_kinds_of_calls_apart(tmp_path: Path) -> None:
    """With one partition, too, a key of a call on all partitions is none of another call's, before and after a restart."""
    index = Index(partitions=1)
    assert index.claim(key(1), EVERYWHERE) == index.claim(key(1), 0) == EVERYWHERE
    assert index.claim(key(2), 0) == index.claim(key(2), EVERYWHERE) == 0
    again = Index(partitions=1)
    again.tables.store(0, key(1), shared=True)
    again.tables.store(0, key(2))
    load(again, tmp_path / "state.db", 0)
    assert again.claim(key(1), EVERYWHERE) == again.claim(key(1), 0) == EVERYWHERE
    assert again.claim(key(2), 0) == again.claim(key(2), EVERYWHERE) == 0


def test_copies_of_a_key_have_several_homes(tmp_path: Path) -> None:
    """What several tables know is claimed on each of them and nowhere else, counts in each, and is forgotten with the last."""
    index = Index(partitions=4)
    for partition, known in enumerate(([1, 2], [1, 2, 3], [3], [4])):
        index.tables.store(partition, *map(key, known))
        load(index, tmp_path / f"{partition}.db", partition)
    places = {n: [p for p in range(4) if index.claim(key(n), p) == p] for n in range(1, 5)}
    assert places == {1: [0, 1], 2: [0, 1], 3: [1, 2], 4: [3]}
    assert all(index.claim(key(n), EVERYWHERE) != EVERYWHERE for n in range(1, 5))
    assert [table.total for table in index.shares] == [2, 3, 1, 1]
    for n, homes in places.items():
        for _ in homes:
            index.release_key(key(n), stored=True)
    index.tables.rows[1] = index.tables.rows[3] = {}
    index.pass_s(2 * WINDOW_S)
    assert [n for n in range(1, 5) if index.claim(key(n), 0) == 0] == [1, 2, 4]  # the first two by their copy, the last anew
    index.release_key(key(1), stored=True)
    index.release_key(key(2), stored=True)
    index.release_key(key(4), stored=True)
    index.tables.rows = [{} for _ in range(4)]
    index.pass_s(2 * WINDOW_S)
    assert not any(table.held for table in index.shares)
    assert index.claim(key(3), 3) == 3


def of(n: int, caller: int) -> bytes:
    """A key of one of several callers."""
    return key(n)[:-HOLDER_BYTES] + bytes((0, caller))


def fill(index: Index, caller: int, partition: int) -> int:
    """How many new keys the caller gets into the tables before one is refused."""
    keys = (of((caller + 1 << 4 | partition) << 32 | n, caller) for n in itertools.count())
    first = next(keys)
    assert index.use(first, partition) == partition
    held = next(n for n, fingerprint in enumerate(keys, 1) if index.use(fingerprint, partition) == FULL)
    assert index.use(first, partition) == partition, "what is known stays known"
    return held


def test_a_caller_gets_its_share_of_a_table_and_leaves_one_to_others() -> None:
    """Four fifths alone, and of what is left the next one gets as much. Keys that are forgotten make room."""
    index = Index(keys_max=1000, partitions=2)
    assert [fill(index, caller, 0) for caller in range(4)] == [800, 160, 32, 6]
    assert fill(index, 0, 1) == 800, "each partition has a table of its own"
    index.tables.rows = [{}, {}]
    index.pass_s(2 * WINDOW_S)
    assert len(index) == 0
    assert fill(index, 5, 0) == 801, "and one that is admitted beyond them"


def test_a_call_a_minute_is_let_in_where_a_share_is_taken() -> None:
    """A table forgets as batches come: if all that want to call are refused before it, none would come."""
    index = Index(keys_max=10, partitions=1)
    fill(index, 1, 0)
    for minute in range(3):
        index.ticks.now += 60
        for place in (0, EVERYWHERE):
            new = (of(1000 * (minute + 1) + 10 * place + n, 1) for n in itertools.count())
            assert [index.use(next(new), place) for _ in range(5)] == [place] + [FULL] * 4


def test_callers_that_want_all_get_the_same() -> None:
    """Two that take turns until both are refused hold four ninths each."""
    index = Index(keys_max=900, partitions=1)
    held = Counter(caller for n in range(1000) for caller in (1, 2) if index.use(of(n << 8 | caller, caller), 0) == 0)
    assert held == {1: 400, 2: 400}


def test_calls_on_all_partitions_take_their_callers_share_of_each_table() -> None:
    """A caller that has taken it on one partition makes no such call there or elsewhere; what it makes leaves room to others."""
    index = Index(keys_max=1000, partitions=3)
    assert fill(index, 1, 1) == 800
    assert index.use(of(9 << 8, 1), EVERYWHERE) == FULL
    assert fill(index, 1, 0) == 800
    alone = Index(keys_max=1000, partitions=3)
    for n in range(800):
        assert alone.claim(of(n, 1), EVERYWHERE) == EVERYWHERE
        alone.release_key(of(n, 1), stored=True)
    assert {alone.claim(of(9000 + place, 1), place) for place in (EVERYWHERE, 0, 1, 2)} == {FULL}
    assert alone.claim(of(3, 1), EVERYWHERE) == EVERYWHERE, "a repetition needs no room"
    assert fill(alone, 2, 2) == 160


def test_shares_are_counted_from_the_states_at_a_start(tmp_path: Path) -> None:
    """Of one caller or several in a row, of calls on all and of copies: a restart gives nobody a second share."""
    index = Index(keys_max=1000, partitions=2)
    for partition in range(2):
        index.tables.store(partition, *(of(n, 1) for n in range(300)), shared=True)
        index.tables.store(partition, *(of(1000 * (1 + partition) + n, 1 + n % 2) for n in range(400)))
        load(index, tmp_path / f"{partition}.db", partition)
    assert [table.held for table in index.shares] == [{"0001": 500, "0002": 200}] * 2
    assert index.largest_shares() == {"idempotency_keys": 0.5, "sessions": 0}
    assert fill(index, 1, 0) == 140, "500 of 1000 are its own, and 300 are free"


def test_a_key_below_the_floor_of_any_partition_is_expired_on_all(tmp_path: Path) -> None:
    """A key that bears a time which one table has forgotten is run by no other table either."""
    index = Index()
    load(index, tmp_path / "state.db", 1, Figures(floor=5000))
    assert index.claim(timed(1, 4999), 0) == EXPIRED
    assert index.claim(timed(1, 4999), EVERYWHERE) == EXPIRED
    assert index.use(timed(2, 5000), 0) == 0
    index.tables.figures[2] = Figures(shared_floor=9000)
    index.pass_s(2 * WINDOW_S)
    assert index.claim(timed(3, 8999), 0) == EXPIRED
    assert index.claim(timed(2, 5000), 0) == 0
    assert index.claim(key(9), 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_key_of_a_table_is_ever_another_partitions(seed: int) -> None:
    """Whatever is used, refused and forgotten in any order: a key that a table knows, or will know, is let in nowhere else."""
    chance = random.Random(seed)
    index = Index(keys_max=200, partitions=3)
    under_way: list[tuple[bytes, int]] = []
    for _ in range(2000):
        act = chance.random()
        fingerprint, partition = key(chance.randrange(60)), chance.randrange(3)
        if act < 0.4:
            known = {p for p in range(3) if any(row.keys == fingerprint for row in index.tables.rows[p].values())}
            known |= {p for waiting, p in under_way if waiting == fingerprint}
            owner = index.claim(fingerprint, partition)
            assert owner == partition or partition not in known
            assert not known - {owner}
            if owner == partition:
                under_way.append((fingerprint, partition))
        elif act < 0.7 and under_way:
            fingerprint, partition = under_way.pop(chance.randrange(len(under_way)))
            stored = chance.random() < 0.7
            if stored and not any(row.keys == fingerprint for row in index.tables.rows[partition].values()):
                index.tables.store(partition, fingerprint)
            index.release_key(fingerprint, stored=stored)
        elif act < 0.8 and (rows := list(index.tables.rows[partition].values())):
            index.tables.forget(partition, chance.choice(rows).keys)
        elif act < 0.85:
            index.ticks.now += chance.random() * WINDOW_S / 4
        else:
            index.tidy(index.tables.look)
    assert sum(table.total for table in index.shares) == len(index)


def test_threads_that_race_for_keys_agree_on_the_owner() -> None:
    """However claims interleave, each key has one owner, which all are told."""
    index = Index(keys_max=10_000, partitions=4)
    told: list[list[int]] = [[] for _ in range(4)]
    gate = threading.Barrier(4)

    def race(partition: int) -> None:
        gate.wait()
        for n in range(2000):
            told[partition].append(index.claim(key(n), partition))

    threads = [threading.Thread(target=race, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[0] == told[1] == told[2] == told[3]


def test_a_state_file_is_looked_up_in_steps(tmp_path: Path) -> None:
    """All rows come, few at a time, from a file that another connection may write; what it holds beside rows is no row."""
    path = tmp_path / "state.db"
    rows = [KeyRow(idx, 1, 0, 0, b"".join(key(idx << 20 | n) for n in range(300))) for idx in range(1, 60)]
    state = state_of(path, rows, Figures(floor=77))
    found: list[KeyRow] = []
    steps = 0
    while (step := look_up(str(path), after=found[-1].idx if found else 0, answered=0)) is not None and step[1]:
        assert step[0].floor == 77
        found += step[1]
        steps += 1
    assert steps == 5
    assert found == list(stored_keys(state.connection)) == rows
    state.close()


def test_a_state_file_that_lags_or_is_missing_is_not_looked_up(tmp_path: Path) -> None:
    """A site that is being restored may lack rows that its callers were told of."""
    path = tmp_path / "state.db"
    assert look_up(str(path), after=0, answered=0) is None
    state_of(path, [KeyRow(1, 1, 0, 0, key(1))]).close()
    assert look_up(str(path), after=0, answered=1) is None
    assert look_up(str(path), after=0, answered=0) is not None
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    assert look_up(str(path), after=0, answered=0) is None
