"""Which server is asked next: each once between two waits, names only of the list, and always the one that serves in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.client.response import Attempt, Lost, Response
from cmdlog.client.server_set import WHY_CHARS_MAX, ServerSet, base_url, base_urls
from cmdlog.errors import Aborted, OutcomeUnknown, Unavailable

URLS = [f"http://node{number}:8642" for number in range(3)]
OK = Response(200, {"result": 1})
SILENT = Lost(reached=True, reason="no answer for 3 s")


def follows(leader: str = "") -> Response:
    """What a follower says."""
    return Response(503, {"code": "not_ready", "status": 503, **({"leader": leader} if leader else {})})


def servers_of(*urls: str) -> ServerSet:
    """Of these addresses, or of three."""
    return ServerSet(base_urls(urls or URLS))


def ask(servers: ServerSet, attempt: Attempt) -> int:
    """The preferred server gives this attempt; where the next request goes."""
    servers.note_attempt(servers.preferred, attempt)
    return servers.preferred.at


def test_first_of_the_list_is_asked_until_it_fails() -> None:
    """Answers that another server would give too change nothing."""
    servers = servers_of()
    for attempt in (OK, Response(503, {"code": "log_full"}), Response(409, {"code": "aborted"}), Response(422, None)):
        assert ask(servers, attempt) == 0
    assert not servers.preferred.failed


@pytest.mark.parametrize("attempt", [SILENT, Lost(reached=False, reason="refused"), follows(), Response(502, None)])
def test_failure_moves_on_in_the_order_of_the_list(attempt: Attempt) -> None:
    """Round and round, from wherever."""
    servers = servers_of()
    assert [ask(servers, attempt) for _ in range(4)] == [1, 2, 0, 1]


def test_callers_who_fail_together_move_on_once() -> None:
    """The failure of a server that is not preferred any more changes nothing."""
    servers = servers_of()
    for _ in range(3):
        ask(servers, SILENT)
    first = servers.preferred
    servers.note_attempt(first, OK)
    assert ask(servers, follows(URLS[2])) == 2
    for _ in range(100):
        servers.note_attempt(first, SILENT)
        assert servers.preferred.at == 2


def test_named_leader_is_next() -> None:
    """However its address is written."""
    for name in (URLS[2], URLS[2] + "/", URLS[2].upper().replace("HTTP", "http")):
        assert ask(servers_of(), follows(name)) == 2


@pytest.mark.parametrize("name", ["http://elsewhere:8642", "https://node2:8642", "http://node2", "2", "\n"])
def test_name_that_is_not_listed_chooses_nobody(name: str) -> None:
    """Neither another address nor what is none: the next of the list is asked."""
    servers = servers_of()
    assert ask(servers, follows(name)) == 1
    assert [str(server.url) for server in servers.servers] == URLS


def test_name_of_a_server_that_failed_is_believed_after_a_success() -> None:
    """Until then the one that has not failed for longest is next: two that name each other are no circle."""
    servers = servers_of()
    assert ask(servers, SILENT) == 1
    assert ask(servers, follows(URLS[0])) == 2, "it has just failed"
    assert ask(servers, follows(URLS[1])) == 0
    servers.note_attempt(servers.preferred, OK)
    assert ask(servers, SILENT) == 1
    servers.note_attempt(servers.preferred, OK)
    assert ask(servers, follows(URLS[0])) == 0, "it failed before the last success"


def test_each_server_is_fresh_once_after_a_mark() -> None:
    """So a call asks each of them between two waits, and one server alone is never fresh."""
    servers = servers_of()
    for _ in range(3):
        mark = servers.mark()
        told = []
        for _ in range(3):
            ask(servers, follows())
            told.append(servers.has_fresh(mark))
        assert told == [True, True, False]
    alone = servers_of(URLS[0])
    ask(alone, SILENT)
    assert not alone.has_fresh(alone.mark())


def test_success_of_another_kind_makes_nobody_fresh() -> None:
    """A follower that answers reads and refuses calls is not asked again without a wait, however often it answers."""
    servers = servers_of()
    mark = servers.mark()
    for _ in range(3):
        ask(servers, follows())
        servers.note_attempt(servers.servers[0], OK)
    assert not servers.has_fresh(mark)


@given(
    count=st.integers(2, 6),
    serving=st.integers(0, 5),
    names=st.lists(st.integers(-1, 5), min_size=6, max_size=6),
    before=st.lists(st.booleans(), max_size=8),
)
def test_server_that_serves_is_found_in_one_round(count: int, serving: int, names: list[int], before: list[bool]) -> None:
    """Whatever the others name, and whatever happened before: each is asked once at most until the one that serves is."""
    urls = [f"http://node{number}:8642" for number in range(count)]
    servers, serving = servers_of(*urls), serving % count
    for works in before:
        ask(servers, OK if works else SILENT)
    mark, asked = servers.mark(), list[int]()
    while servers.preferred.at != serving:
        asked.append(servers.preferred.at)
        name = names[servers.preferred.at]
        ask(servers, SILENT if name < 0 else follows(urls[name % count]))
        assert servers.has_fresh(mark)
    assert len(asked) == len(set(asked))


def test_error_names_every_server_that_failed_since_the_mark() -> None:
    """In the order in which they failed, each with its last reason; an outcome, and one server alone, need none."""
    servers = servers_of()
    ask(servers, follows())
    mark = servers.mark()
    ask(servers, Lost(reached=False, reason="x" * 1000))
    ask(servers, SILENT)
    told = str(servers.name_failures(Unavailable("not ready"), mark))
    assert told == f"not ready (asked: {URLS[1]}: {'x' * WHY_CHARS_MAX}; {URLS[2]}: no answer: no answer for 3 s)"
    assert str(servers.name_failures(OutcomeUnknown("lost"), servers.mark())) == "lost"
    assert str(servers.name_failures(Aborted("no"), 0)) == "no"
    alone = servers_of(URLS[0])
    ask(alone, SILENT)
    assert str(alone.name_failures(Unavailable("not ready"), 0)) == "not ready"


def test_list_of_addresses_is_checked() -> None:
    """Each once, whatever way it is written; none, or one that is no address, is refused."""
    assert base_urls(["http://a:1/", "http://a:1", "http://b"]) == [base_url("http://a:1"), base_url("http://b")]
    for bad in ([], ["http://a", "b"], [""]):
        with pytest.raises(ValueError, match="address"):
            base_urls(bad)
