"""Options of the source."""

from __future__ import annotations

import contextlib

import pytest

from cmdlog.wal.ids import MILLIS_SHIFT
from replay.spark.base.options import CALLS, NAMES, TABLES, TXN_MAX, BadOption, ReadOptions, parse_options


def parse(**given: str) -> ReadOptions:
    """Options with some path."""
    return parse_options({"path": "/data", **given})


def test_names_are_case_insensitive() -> None:
    """Spark hands options over in lower case, and SQL users write them as they like."""
    assert parse(STARTINGTXN="5").starting.of(0) == parse(startingtxn="5").starting.of(0) == 5


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startTxn", "startingTxn"),
        ("partition", "partitions"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("maxTxns", "maxTxnsPerTrigger"),
    ],
)
def test_unknown_option_names_the_near_one(name: str, near: str) -> None:
    """A misspelt option is never ignored: a read without its bound would be a wrong answer."""
    with pytest.raises(BadOption, match=f"cmdlog has no option {name}; did you mean {near}"):
        parse(**{name: "1"})


def test_option_unlike_any_lists_all() -> None:
    """Nothing is guessed from a name that is like none."""
    with pytest.raises(BadOption, match="there are path, paths, table"):
        parse(zzz="1")


def test_bounds_per_partition() -> None:
    """A partition that is not named is read from its first to its last transaction."""
    found = parse(startingTxn='{"0": 7, "1": "earliest"}', endingTxn='{"1": 9}')
    assert [found.starting.of(p) for p in (0, 1, 2)] == [7, None, None]
    assert [found.ending.of(p) for p in (0, 1, 2)] == [None, 9, None]


def test_batch_read_that_starts_at_latest_is_refused() -> None:
    """It would have to be empty, and must never be the whole log; only a stream can start there."""
    for latest in ("latest", " Latest "):
        with pytest.raises(BadOption, match="startingTxn=latest is for streams"):
            parse(startingTxn=latest).check_batch()
    for other in ({"startingTxn": "earliest"}, {"startingTxn": "7", "endingTxn": "latest"}, {"endingTxn": '{"0": "latest"}'}):
        parse(**other).check_batch()


def test_limit_per_trigger_is_refused_in_a_batch() -> None:
    """It would not limit anything."""
    with pytest.raises(BadOption, match="maxTxnsPerTrigger is for streams"):
        parse(maxTxnsPerTrigger="5").check_batch()


@pytest.mark.parametrize("table", [table for table in TABLES if table != CALLS])
def test_every_option_fits_a_table_about_the_log_or_is_refused(table: str) -> None:
    """None is taken and ignored: what stays are the paths, and partitions where rows have them."""
    values = {"partitions": "0", "failOnDataLoss": "true", "dedupe": "true", "includeMetadata": "true", "paramsFormat": "array"}
    taken = set()
    for name in set(NAMES) - {"path", "paths", "table"}:
        with contextlib.suppress(BadOption):
            parse(table=table, **{name: values.get(name, "5")})
            taken.add(name)
    assert taken == ({"partitions"} if table != "faults" else set())


def test_times_far_away_are_bounds_like_others() -> None:
    """A TxnId has 64 bits; a time beyond them is the end, as a number of milliseconds is."""
    far = parse(endingTimestamp="9999-01-01T00:00:00Z").ending.of(0)
    assert far == parse(endingTimestamp=str(1 << 70)).ending.of(0) == TXN_MAX


def test_times_take_whole_milliseconds_on_both_sides() -> None:
    """A bound in time includes every transaction of its millisecond, as RFC 3339 or in milliseconds."""
    found = parse(startingTimestamp="1700000000000", endingTimestamp="2023-11-14T22:13:20Z")
    millis = 1_700_000_000_000
    assert found.starting.of(0) == millis << MILLIS_SHIFT
    assert found.ending.of(0) == (millis + 1 << MILLIS_SHIFT) - 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"startingTxn": "latst"}, "startingTxn is a transaction id"),
        ({"startingTxn": "-5"}, "startingTxn is a transaction id"),
        ({"startingTxn": str(1 << 63)}, "startingTxn is a transaction id"),
        ({"startingTxn": "{"}, "startingTxn is not JSON"),
        ({"startingTxn": '{"x": 1}'}, "'x' is not a partition"),
        ({"startingTxn": "1", "startingTimestamp": "2"}, "exclude each other"),
        ({"endingTxn": "1", "endingTimestamp": "2"}, "exclude each other"),
        ({"startingTxn": '{"0": "latest"}'}, "not 'latest': a partition alone cannot start there"),
        ({"startingTxn": '{"0": 5, "1": "LATEST"}'}, "a partition alone cannot start there"),
        ({"endingTxn": "earliest"}, "endingTxn is a transaction id, latest.*not 'earliest': a read that ends before it begins"),
        ({"endingTxn": '{"0": "earliest"}'}, "a read that ends before it begins has no rows"),
        ({"startingTimestamp": "2023-11-14 22:13"}, "has no time zone"),
        ({"partitions": "0,1000"}, "'1000' is not a partition"),
        ({"procedures": " , "}, "procedures is empty"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "number from 1"),
        ({"maxTxnsPerTrigger": "many"}, "number from 1"),
        ({"paramsFormat": "xml"}, "one of object, array, binary"),
        ({"table": "segment"}, "did you mean segments"),
        ({"table": "accounts"}, "a table of the application is state.<name>"),
        ({"table": "state."}, "or state.<name>, not 'state.'"),
        ({"table": "state.a", "asOfTxn": "1", "asOfTimestamp": "2"}, "exclude each other"),
        ({"table": "state.a", "asOfTxn": "newest"}, "asOfTxn is a transaction id, latest or latestPoint"),
        ({"table": "state.a", "asOfTimestamp": "2023-11-14 22:13"}, "has no time zone"),
        ({"table": "state.a", "endingTxn": "5"}, "the table state.a has no option endingTxn: write asOfTxn"),
        ({"table": "state.a", "procedures": "deposit"}, "the table state.a has no option procedures"),
        ({"table": "state.a", "dedupe": "false"}, "the table state.a has no option dedupe"),
        ({"table": "state.a", "minPartitions": "8"}, "one task for each partition of the log"),
        ({"asOfTxn": "5"}, "asOfTxn is an option of the tables state.<name>, not of calls: write endingTxn"),
        ({"asOfTimestamp": "5"}, "write endingTimestamp"),
        ({"table": "segments", "asOfTxn": "5"}, "not of segments: it is read as it is now"),
        ({"table": "segments", "startingTxn": "5"}, "the table segments has no option startingTxn: it covers the whole log"),
        ({"table": "snapshots", "procedures": "deposit"}, "the table snapshots has no option procedures"),
        ({"table": "gaps", "dedupe": "true"}, "the table gaps has no option dedupe"),
        ({"table": "gaps", "failOnDataLoss": "true"}, "it lists what is wrong, and never fails because of it"),
        ({"table": "faults", "partitions": "1"}, "the table faults has no option partitions"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is a time such as .*, or milliseconds since 1970; not 'noon'$"),
        ({"table": "state.a", "asOfTimestamp": "soon"}, "asOfTimestamp is a time such as .* not 'soon'$"),
        ({"paths": '{"a": 1}'}, "JSON array of strings"),
        ({"startingTxn": "9", "endingTxn": "8"}, "startingTxn 9 is after endingTxn 8: no transaction is in that range"),
        ({"startingTxn": '{"0": 9}', "endingTxn": "8"}, 'startingTxn {"0": 9} is after endingTxn 8 of partition 0'),
        ({"startingTxn": "9", "endingTxn": '{"1": 8, "2": "latest"}'}, "after endingTxn .* of partition 1: no transaction"),
        ({"startingTimestamp": "2000", "endingTimestamp": "1999"}, "startingTimestamp 2000 is after endingTimestamp 1999"),
        ({"startingTimestamp": "2023-11-14T22:13:20Z", "endingTxn": "8"}, "startingTimestamp .* is after endingTxn 8"),
        ({"endingTxn": ""}, "endingTxn is empty; omit"),
        ({"startingTxn": " "}, "startingTxn is empty; omit"),
        ({"table": "state.a", "asOfTxn": ""}, "asOfTxn is empty; omit"),
        ({"path": ""}, "path is empty; omit"),
    ],
)
def test_bad_value_is_refused_with_the_reason(given: dict[str, str], why: str) -> None:
    """Every refusal names the option and what it may be."""
    with pytest.raises(BadOption, match=why):
        parse(**given)


def test_range_of_one_transaction_or_one_millisecond_is_a_range() -> None:
    """Bounds are inclusive; where one side is open for a partition nothing is compared."""
    parse(startingTxn="9", endingTxn="9")
    parse(startingTimestamp="2000", endingTimestamp="2000")
    parse(startingTxn='{"0": 9, "1": "earliest"}', endingTxn='{"0": "latest", "1": 3}')


def test_read_without_a_path_says_so() -> None:
    """The commonest slip."""
    with pytest.raises(BadOption, match="which node directories"):
        parse_options({})


def test_paths_are_taken_once_each() -> None:
    """load([a, b]) arrives as JSON; a directory given twice would be two copies of one node."""
    assert parse_options({"path": "/a", "paths": '["/a", "/b"]'}).paths == ("/a", "/b")


def test_procedures_as_list_or_json() -> None:
    """Names with commas cannot be, so both forms are safe."""
    assert parse(procedures="a, b").procedures == parse(procedures='["b","a"]').procedures == frozenset({"a", "b"})


def test_state_of_a_table_keeps_the_name_as_it_is_written() -> None:
    """Tables are the application's; only our own words are free in upper and lower case."""
    found = parse(table="STATE.Accounts", asOfTxn="7", partitions="0", failOnDataLoss="false", includeMetadata="true")
    assert (found.state_table, found.as_of, found.partitions) == ("Accounts", 7, frozenset({0}))
    assert (found.fail_on_data_loss, found.include_metadata) == (False, True)
    assert parse(table="segments").state_table is None


def test_moments_of_a_state() -> None:
    """A time takes its whole millisecond, as `--until` does; no moment is the end."""
    at = parse(table="state.a", asOfTimestamp="2023-11-14T22:13:20.005Z").as_of
    assert at == parse(table="state.a", asOfTimestamp="1700000000005").as_of == (1700000000006 << MILLIS_SHIFT) - 1
    assert parse(table="state.a").as_of is parse(table="state.a", asOfTxn="Latest").as_of is None
    assert parse(table="state.a", asOfTxn="LATESTPOINT").as_of == "latestPoint"
