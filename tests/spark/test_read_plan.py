"""What a read plans, and the rows that its tasks give: held against models of what was logged."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MILLIS_SHIFT
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.idempotency.session_calls import sent_name
from replay.errors import ReplayError
from replay.history.history import history
from replay.plan.authority import ClusterVerdict
from replay.spark.base.options import BadOption, parse_options
from replay.spark.base.parallelism import VARIABLE
from replay.spark.reading.chosen_logs import SegmentRun
from replay.spark.reading.read_plan import TASK_BYTES_MIN, check_named, choose
from replay.spark.reading.read_task import DataLoss
from tests.procedures.sites import START_MS, uuid7
from tests.replay.archiverig import ArchiveRig
from tests.replay.histories import random_history
from tests.replay.historycheck import notes_of_chosen
from tests.replay.historycluster import Cluster
from tests.replay.historymembers import History
from tests.replay.rig import DEPOSIT
from tests.spark.reading import made, made_large, plan_of, read, rows_of, txns

SEEDS = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stopped node with 96 calls in three segments; nobody changes it."""
    return made(tmp_path_factory.mktemp("node")).directory


def test_rows_are_what_was_logged(directory: str) -> None:
    """Each call once, in the order of its partition, its parameters under their names."""
    rows = read(directory)
    assert len(rows) == len(set(txns(rows))) == 96
    for partition in (0, 1):
        of = [row[1] for row in rows if row[0] == partition]
        assert of == sorted(of)
    deposits = [orjson.loads(row[3]) for row in rows if row[2] == "deposit"]
    assert deposits[:3] == [{"account": 0, "amount": 1}, {"account": 1, "amount": 2}, {"account": 2, "amount": 3}]
    assert {row[2] for row in rows} == {"begin", "deposit"}


def test_bounds_are_inclusive(directory: str) -> None:
    """startingTxn and endingTxn are part of what is read, per partition when they are given so."""
    rows = read(directory)
    every = txns(rows)
    assert txns(read(directory, startingTxn=str(every[10]), endingTxn=str(every[20]))) == every[10:21]
    ones = txns([row for row in rows if row[0] == 1])
    found = read(directory, startingTxn={"0": (1 << 63) - 1, "1": ones[5]}, endingTxn={"1": ones[7]})
    assert txns(found) == ones[5:8]
    millis = every[30] >> MILLIS_SHIFT
    assert txns(read(directory, startingTimestamp=str(millis), endingTimestamp=str(millis))) == [every[30]]


def test_partitions_and_procedures_leave_the_rest_out(directory: str) -> None:
    """Both are resolved when the read is planned; a name that nobody has gives no rows, a partition that is none an error."""
    rows = read(directory)
    assert read(directory, partitions="1") == [row for row in rows if row[0] == 1]
    assert read(directory, procedures="begin,mirror") == [row for row in rows if row[2] == "begin"]
    with pytest.raises(BadOption, match="there is no 7; the log has 0, 1"):
        plan_of(directory, partitions="7")


def test_only_the_columns_that_are_asked_for_are_made(directory: str) -> None:
    """Any columns in any order; times are the transaction's own, metadata says where a call lies."""
    columns = ("_segment", "ts", "_block_offset", "txn_id", "_node", "_crc")
    rows = rows_of(plan_of(directory), columns)
    assert len(rows) == 96
    for segment, moment, offset, txn, node, crc in rows:
        assert moment.timestamp() * 1000 == pytest.approx(txn >> MILLIS_SHIFT)
        assert os.path.exists(os.path.join(directory, "log", segment))
        assert (offset % 4096, node, crc > 0) == (0, 1, True)


def test_key_of_a_call_tells_its_retries(tmp_path: Path) -> None:
    """`_key` is what was logged, null without one: in batches with and without keys, compressed or with a column of ids, and of
    chosen rows as well; a retry is a row of its own under the same key."""
    rig = made(tmp_path, 0)
    rig.restart()
    one, two = bytes(range(16)), bytes([*range(15), 0])
    rig.batch(0, [(DEPOSIT, [1, 5]), (DEPOSIT, [1, 6]), (DEPOSIT, [2, 7])], keys=[one, NO_KEY, two])
    rig.batch(0, [(DEPOSIT, [1, 5]), (DEPOSIT, [2, 8])], keys=[one, NO_KEY])
    index, ids = rig.next_index[1], rig.tick(6, 1)[::2]
    rig.next_index[1] += 1
    calls = [orjson.dumps([10, amount]) for amount in (1, 2, 3)]
    rig.log(
        encode_batch(
            partition=1, term=rig.term, index=index, catalog=1, txn_ids=ids, procedures=[DEPOSIT] * 3, params=calls,
            keys=[NO_KEY, two, one], compress=True,
        )
    )  # fmt: skip
    rig.stop()
    columns = ("_key", "txn_id", "procedure")
    rows = rows_of(plan_of(rig.directory), columns)
    assert {row[0] for row in rows if row[2] == "begin"} == {None}
    deposits = [row[0] for row in rows_of(plan_of(rig.directory, procedures="deposit", partitions="0"), columns)]
    assert deposits == [one, None, two, one, None]
    assert [row[0] for row in rows_of(plan_of(rig.directory, startingTxn=str(ids[1]), partitions="1"), columns)] == [two, one]
    told = list(history(RealFiles(), [rig.directory]).calls)
    assert {(int(call["txn_id"]), call["key"]) for call in told} == {(txn, key.hex() if key else None) for key, txn, _ in rows}


def test_name_in_a_session_tells_its_retries(tmp_path: Path) -> None:
    """`_key` is session and number, beside keys and calls without a name, of chosen rows as well; each call counts once."""
    rig = made(tmp_path, 0)
    rig.restart()
    session, other, key = key_fingerprint("me", uuid7(START_MS)), key_fingerprint("me", uuid7(START_MS, 2)), bytes(range(16))

    def sent(*numbers: int, of: bytes = session) -> list[bytes]:
        return [sent_name(of, number, 0) for number in numbers]

    rig.batch(0, [(DEPOSIT, [1, 5])] * 3, keys=sent(1, 2, 3))
    rig.batch(0, [(DEPOSIT, [1, 6])] * 4, keys=[*sent(2), NO_KEY, key, *sent(70_000, of=other)])
    rig.batch(0, [(DEPOSIT, [2, 7])] * 2, keys=[NO_KEY, key])
    rig.batch(0, [(DEPOSIT, [2, 8])] * 2)
    index, ids = rig.next_index[1], rig.tick(6, 1)[::2]
    rig.next_index[1] += 1
    rig.log(
        encode_batch(
            partition=1, term=rig.term, index=index, catalog=1, txn_ids=ids, procedures=[DEPOSIT] * 3, params=[b"[10,1]"] * 3,
            keys=sent(5, 9, 5), ended=[other], compress=True,
        )
    )  # fmt: skip
    rig.stop()
    columns = ("_key", "txn_id", "procedure")
    first, second, third, far = [*(session + struct.pack("<Q", n) for n in (1, 2, 3)), other + struct.pack("<Q", 70_000)]
    deposits = rows_of(plan_of(rig.directory, procedures="deposit", partitions="0"), columns)
    assert [row[0] for row in deposits] == [first, second, third, second, None, key, far, None, key, None, None]
    assert len({row[0] or row[1] for row in deposits}) == 9  # of 11 rows two are retries
    late = plan_of(rig.directory, startingTxn=str(ids[1]), partitions="1")
    assert [row[0] for row in rows_of(late, columns)] == [session + struct.pack("<Q", n) for n in (9, 5)]
    listed = list(history(RealFiles(), [rig.directory]).calls)
    rows = rows_of(plan_of(rig.directory), columns)
    assert {(int(call["txn_id"]), call["key"]) for call in listed} == {(txn, key.hex() if key else None) for key, txn, _ in rows}


def test_params_may_stay_lists(directory: str) -> None:
    """paramsFormat=array gives what the log holds as text, binary its bytes."""
    assert {row[3] for row in read(directory, paramsFormat="array", procedures="begin")} == {
        f"[{n}]" for n in (0, 1, 2, 10, 11, 12)
    }
    assert {row[3] for row in read(directory, paramsFormat="binary", procedures="begin")} == {
        b"[%d]" % n for n in (0, 1, 2, 10, 11, 12)
    }


def test_large_log_is_split_and_no_call_is_lost_at_the_seams(tmp_path: Path) -> None:
    """minPartitions makes more tasks, which begin in the middle of segments; together they give the same rows."""
    rig = made_large(tmp_path)
    one, many = plan_of(rig.directory), plan_of(rig.directory, minPartitions="100")
    assert len(one.tasks) == 1
    assert len(many.tasks) >= sum(task.bytes for task in one.tasks) // (2 * TASK_BYTES_MIN)
    assert sum(1 for task in many.tasks if task.stretches[0].start.offset > 4096) >= 1
    assert rows_of(many) == rows_of(one)
    assert len(rows_of(one)) == len(rig.history) + 16 * 6000


def test_read_has_as_many_tasks_as_spark_runs_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without minPartitions the session's number counts; what is too small to be worth it stays in one task."""
    large, small = made_large(tmp_path / "large"), made(tmp_path / "small")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "number"))
    (tmp_path / "number").write_text("3")
    assert len(plan_of(large.directory).tasks) == 3
    assert len(plan_of(small.directory).tasks) == 1
    (tmp_path / "number").write_text("half a num")
    assert len(plan_of(large.directory).tasks) == 1


def test_calls_taken_out_are_left_out(tmp_path: Path) -> None:
    """A SKIP stands behind the batch that it concerns, segments later maybe; dedupe=false shows the call all the same."""
    rig = made(tmp_path, 4)
    rig.restart()
    index = rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [0, 6]), (DEPOSIT, [0, 7])], skips=frozenset({1}))
    gone = rig.history[-2][0]
    rig.deposits(20)
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 1, "txn_id": rig.tick(1, 0)[0]}, live=False)
    rig.close()
    rows = txns(read(rig.directory))
    assert gone not in rows
    assert len(rows) == len(rig.history) - 1
    assert gone in txns(read(rig.directory, dedupe="false"))


def committed_rows(history: History, partition: int, upto: int) -> list[tuple[int, int]]:
    """(TxnId, entry) of all committed calls up to the entry."""
    done = history.truth.committed[partition][:upto]
    return [(call[0], entry.index) for entry in done for call in entry.calls]


def dropped_calls(history: History, verdict: ClusterVerdict) -> set[int]:
    """Multi-partition calls that a recovery drops: some chosen log lacks them, and nothing acknowledged is missing."""
    if not all(of.proved for of in verdict.groups.values()):
        return set()
    kept = notes_of_chosen(history, {group: of.chosen for group, of in verdict.groups.items()})
    return {entry.multi for p in range(history.partitions) for entry in history.truth.committed[p]} - kept.keys()


@pytest.mark.slow
def test_any_history_gives_its_committed_calls_once(tmp_path: Path) -> None:
    """Random clusters with elections, lost disks, lagging and superseded logs: what is read is a prefix of what was committed.

    It goes as far as any log at hand knows, and begins where no log reaches further back.
    """
    for seed in range(SEEDS):
        history = random_history(tmp_path / str(seed), seed)
        options = parse_options({"paths": orjson.dumps(history.directories).decode()})
        try:
            chosen = choose(options)
        except ReplayError:
            if history.is_settled:  # else nobody can tell any more what was committed
                raise
            continue
        rows = read(*history.directories)
        dropped = dropped_calls(history, chosen.logs.verdict)
        for partition in range(history.partitions):
            of = chosen.logs.verdict.groups[partition]
            upto = chosen.logs.upto(of)
            found = txns([row for row in rows if row[0] == partition])
            if chosen.logs.by_directory(of.chosen).alone:  # a start would commit what is durable and was not answered yet
                last = history.truth.last_txn(partition)
                found, upto = [txn for txn in found if txn <= last], min(upto, history.truth.last(partition))
            wanted = [txn for txn, _ in committed_rows(history, partition, upto) if txn not in dropped]
            assert found == wanted[len(wanted) - len(found) :], f"seed {seed}, partition {partition}"
            runs = chosen.logs.by_directory(of.chosen).runs
            if runs and runs[0].base(partition)[0] == 0:
                assert len(found) == len(wanted), f"seed {seed}, partition {partition}"


def test_three_replicas_give_each_call_once(tmp_path: Path) -> None:
    """Several nodes' directories are one table; dedupe=false shows every copy; one directory gives what it knows committed."""
    cluster = Cluster(tmp_path / "c")
    for n in range(12):
        cluster.deposits(n % 2)
        cluster.spread(n % 2)
    directories = cluster.finish()
    rows = read(*directories)
    assert txns(rows) == sorted(txn for _, _, txn in cluster.acknowledged)
    assert txns(read(*directories, dedupe="false")) == sorted(3 * txns(rows))
    assert txns(read(directories[1])) == txns(rows)


def test_superseded_entries_are_left_out(tmp_path: Path) -> None:
    """What a deposed leader logged for itself is no history, in its own log or in another's, though it has TxnIds like all."""
    cluster = Cluster(tmp_path / "c")
    cluster.deposits(0)
    cluster.spread(0)
    stale = cluster.deposits(0, by=1)
    assert cluster.elect(0, 2, [2, 3])
    cluster.deposits(0)
    cluster.spread(0)
    directories = cluster.finish()
    assert stale is not None
    lost = {call[0] for call in stale.calls}
    assert lost <= set(txns(read(directories[0], dedupe="false")))
    for given in (directories, directories[:1], directories[1:]):
        rows = set(txns(read(*given)))
        assert not lost & rows
        assert {txn for _, _, txn in cluster.acknowledged} == rows


def test_uncommitted_tail_of_a_cluster_is_left_out(tmp_path: Path) -> None:
    """An entry that no log knows committed may still be replaced."""
    cluster = Cluster(tmp_path / "c")
    cluster.deposits(0)
    cluster.spread(0)
    tail = cluster.deposits(0)
    directories = cluster.finish()
    assert tail is not None
    assert not {call[0] for call in tail.calls} & set(txns(read(*directories)))


def test_same_plan_gives_the_same_rows_while_the_node_writes_on(tmp_path: Path) -> None:
    """The end is fixed when the read is planned."""
    rig = made(tmp_path, 10)
    plan = plan_of(rig.directory)
    before = rows_of(plan)
    rig.restart()
    rig.deposits(10)
    rig.close()
    assert rows_of(plan) == before
    assert len(read(rig.directory)) == len(before) + 30


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used up several times over, with an archive of what went; nobody changes it."""
    rig = ArchiveRig(tmp_path_factory.mktemp("rotated"))
    rig.rotate(6)
    rig.close()
    return rig


def test_archive_and_live_log_are_one_table(rotated: ArchiveRig) -> None:
    """What the ring has let go of is read from the archive, each call once."""
    rows = txns(read(rotated.directory))
    assert rows == sorted(txn for txn, _ in rotated.history)
    plan = plan_of(rotated.directory)
    paths = {os.path.basename(stretch.segment.path)[:3] for task in plan.tasks for stretch in task.stretches}
    assert paths == {"log", "seg"}


def test_start_bound_leaves_early_segments_unread(rotated: ArchiveRig) -> None:
    """Heads say up to which transaction everything stands before them, so a late start opens late segments only."""
    every = sorted(txn for txn, _ in rotated.history)
    plan = plan_of(rotated.directory, startingTxn=str(every[-5]))
    assert txns(rows_of(plan)) == every[-5:]
    assert len({stretch.segment.path for task in plan.tasks for stretch in task.stretches}) <= 2
    log = choose(parse_options({"path": rotated.directory, "startingTxn": str(every[-5])})).logs.logs[0]
    assert len(log.looks) < len(log.segments) // 2


def test_start_in_front_of_the_log_is_data_loss(rotated: ArchiveRig, tmp_path: Path) -> None:
    """Without the archive the log begins late: earliest is what there is, an earlier transaction is said to be gone."""
    copy = rotated.copy(tmp_path / "copy")
    shutil.rmtree(os.path.join(copy, "archive"))
    every = sorted(txn for txn, _ in rotated.history)
    found = txns(read(copy))
    assert found == every[len(every) - len(found) :]
    assert len(found) < len(every)
    with pytest.raises(DataLoss, match=r"what came before was truncated.*\n.*failOnDataLoss=false"):
        plan_of(copy, startingTxn=str(every[3]))
    assert txns(read(copy, startingTxn=str(every[3]), failOnDataLoss="false")) == found


def test_path_that_is_not_there_says_so(tmp_path: Path) -> None:
    """A typo is no empty table."""
    with pytest.raises(BadOption, match="does not exist"):
        plan_of(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_path_without_a_node_is_told_at_once(tmp_path: Path, options: dict[str, str]) -> None:
    """An empty directory and a plain file are no lost data, and no option makes them a log; a log without an identity is one."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("empty", "file"):
        with pytest.raises(BadOption, match=rf"{name} is not a node directory \(instance.json is missing\)$"):
            plan_of(str(tmp_path / name), **options)
    rig = made(tmp_path / "node", 3)
    os.unlink(os.path.join(rig.directory, "instance.json"))
    with pytest.raises(ReplayError, match=r"holds a log but instance\.json is missing"):
        plan_of(rig.directory, **options)


def test_procedure_that_no_code_has_is_refused_by_the_near_name(tmp_path: Path) -> None:
    """A misspelt name gives no empty answer; one that is known and was not called does."""
    rig = made(tmp_path, 3)
    with pytest.raises(
        BadOption, match=r"no code in the log has depositt; did you mean deposit\? There are begin, clock, deposit"
    ):
        plan_of(rig.directory, procedures="deposit,depositt")
    with pytest.raises(BadOption, match="no code in the log has Deposit; did you mean deposit"):
        plan_of(rig.directory, procedures="Deposit", endingTxn="1")
    assert read(rig.directory, procedures="mirror") == []


def test_procedure_of_code_before_the_bound_is_known(tmp_path: Path) -> None:
    """What the log at hand knows counts, also where the read begins behind it."""
    rig = made(tmp_path, 40)
    every = txns(read(rig.directory))
    plan = plan_of(rig.directory, procedures="begin", startingTxn=str(every[-1]))
    assert rows_of(plan) == []
    chosen = choose(parse_options({"path": rig.directory, "startingTxn": str(every[-1]), "procedures": "begin"}))
    later = [replace(one, names={}) for one in chosen.logs.logs[0].looks]
    chosen.logs.logs[0].runs = [SegmentRun(later, True)]
    check_named(parse_options({"path": rig.directory, "procedures": "begin"}), chosen)


@pytest.mark.parametrize("option", ["startingTxn", "endingTxn"])
def test_bound_of_a_partition_that_is_none_is_refused(tmp_path: Path, option: str) -> None:
    """It would be ignored, and with it what was meant."""
    rig = made(tmp_path, 3)
    with pytest.raises(BadOption, match=rf"{option}: there is no partition 7; the log has 0, 1"):
        plan_of(rig.directory, **{option: '{"7": 5}'})


def test_marks_of_a_group_of_one_are_not_waited_for(tmp_path: Path) -> None:
    """A node that votes alone has committed whatever is durable: a kill before the next mark hides nothing."""
    rig = made(tmp_path, 3)
    rig.restart()
    rig.deposits(5)
    rig.stop()  # without marks
    assert len(read(rig.directory)) == len(rig.history)
