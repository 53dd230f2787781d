"""The routes of operators: what reaches the member's desk, what is refused before, and under which code its refusals leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.problem import CODES, Problem
from cmdlog.api.gate.route_table import CHANGES
from cmdlog.api.routes.cluster_routes import CODE_OF, bundle_in
from cmdlog.cluster.membership.operator_desk import RefusedBecause
from cmdlog.node.outcome import NoLeader, NotLeading
from cmdlog.operator_error import OperatorError
from tests.api.conftest import local_token
from tests.api.fake_desk import COPY, FAULTS, FakeDesk, clustered, refused
from tests.node.deployed import make_version

Post = Callable[..., Any]
LEADER = "http://10.0.0.2:8642"


@pytest.fixture
def fake(node: Any) -> FakeDesk:
    """The desk of the fake node."""
    return clustered(node)


def test_members_say_version_states_failure_sets_and_copies(fake: FakeDesk, fetch: Post) -> None:
    """One answer holds what an operator asks before a change; any node gives it."""
    fake.membership.members_now[2]["state"] = "leaving"
    told = fetch("/v1/cluster/members").json()
    assert (told["version"], told["leader"], [member["state"] for member in told["members"]]) == (
        41,
        1,
        ["member", "member", "leaving"],
    )
    assert told["failure_set"] == {"sequence": 2, "nodes": [], "history": list(FAULTS)}
    assert told["copies"] == [COPY]


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_change_reaches_the_desk_as_it_was_asked(fake: FakeDesk, post: Post, kind: str) -> None:
    """With its options, and without any; what is left out is the desk's default."""
    options = {"peer": "h:7644", "client": "http://node4", "base": 41, "force": True, "plan": True}
    answer = post(f"/v1/cluster/members/4/{kind}", orjson.dumps(options))
    assert (answer.status, answer.json()["kind"], answer.json()["plan"]["stages"][1]["quorum"]) == (200, kind, 3)
    assert post(f"/v1/cluster/members/4/{kind}").status == 200
    assert fake.membership.asked == [(kind, 4, options), (kind, 4, {})]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"peer": 1}', "peer"), (b'{"client": []}', "client"), (b'{"base": -1}', "base"), (b'{"base": true}', "base"),
        (b'{"base": 9223372036854775808}', "body"), (b'{"force": 1}', "force"), (b'{"plan": "yes"}', "plan"),
        (b'{"node": 4}', "node"), (b"[]", "body"), (b"{", "body"),
    ],
)  # fmt: skip
def test_body_that_does_not_fit_names_the_field(fake: FakeDesk, post: Post, body: bytes, field: str) -> None:
    """422, and the desk is not asked."""
    answer = post("/v1/cluster/members/4/add", body)
    assert (answer.status, answer.json()["problems"][0]["field"]) == (422, field)
    assert fake.membership.asked == []


@pytest.mark.parametrize("number", ["0", "x", "-1", "1.0", "2147483648", "9" * 30, "%C2%B2", "²"])
def test_node_is_a_number(fake: FakeDesk, post: Post, number: str) -> None:
    """Whatever else is in its place is refused by name, also what other languages take for digits."""
    answer = post(f"/v1/cluster/members/{number}/add")
    assert (answer.status, answer.json()["problems"][0]["field"]) == (422, "node")
    assert fake.membership.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/cluster/members//add",
        "/v1/cluster/members/1/2/add",
        "/v1/cluster/members/add",
        "/v1/cluster/members/1",
        "/v1/cluster",
    ],
)
def test_other_paths_are_not_served(fake: FakeDesk, post: Post, path: str) -> None:
    """A node is one part of a path; the gate knows it, so the answer has a code."""
    answer = post(path)
    assert (answer.status, answer.json()["code"], fake.membership.asked) == (404, "not_found", [])


@pytest.mark.parametrize("because", RefusedBecause)
def test_every_refusal_has_its_code_and_status(fake: FakeDesk, post: Post, because: RefusedBecause) -> None:
    """The desk's own code, except where calls have one that means the same to a caller."""
    fake.membership.refusal = refused(because)
    answer = post("/v1/cluster/members/3/remove")
    told = answer.json()
    assert told["code"] == CODE_OF.get(because.value, because.value)
    if because is not RefusedBecause.UNKNOWN_OUTCOME:  # as a call: 504, and repeating it does no harm
        assert answer.status == fake.membership.refusal.status
    assert (told["detail"], told["hint"]) == ("it cannot be", fake.membership.refusal.hint)


def test_plan_holds_what_would_refuse_it(fake: FakeDesk, post: Post) -> None:
    """A plan is an answer, not an error."""
    fake.membership.refusal = refused(RefusedBecause.QUORUM_AT_RISK)
    answer = post("/v1/cluster/members/3/remove", b'{"plan": true}')
    assert (answer.status, answer.json()["plan"]["refusal"]["code"]) == (200, "quorum_at_risk")


@pytest.mark.parametrize("refusal", [NotLeading("node 2 leads", LEADER, 2), NoLeader("no leader")])
def test_node_that_does_not_lead_names_the_leader(fake: FakeDesk, node: Any, post: Post, refusal: Any) -> None:
    """As for calls; where the caller asks for it, as a redirect to the same route."""
    node.sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=refusal))
    leader = refusal.more().get("leader")
    answer = post("/v1/cluster/members/3/retire")
    assert (answer.status, answer.json()["code"], answer.json().get("leader")) == (503, refusal.code, leader)
    assert fake.membership.asked == []
    redirected = post("/v1/cluster/members/3/retire", headers=[("Prefer", "redirect=leader")])
    assert redirected.headers.get("location") == (None if leader is None else f"{LEADER}/v1/cluster/members/3/retire")


def test_lost_leadership_names_the_leader_too(fake: FakeDesk, post: Post) -> None:
    """The desk itself may find out that another node leads."""
    fake.membership.refusal = refused(RefusedBecause.NOT_LEADING)
    fake.membership.refusal.leader = LEADER
    answer = post("/v1/cluster/members/3/retire")
    assert (answer.status, answer.json()["leader"], answer.headers["retry-after"]) == (503, LEADER, "1")


def test_full_log_does_not_hide_the_desk(fake: FakeDesk, node: Any, post: Post) -> None:
    """Members change also where calls are refused for want of room: that may be the way out."""
    from cmdlog.node.outcome import LogFullRefusal

    node.sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=LogFullRefusal("full")))
    assert post("/v1/cluster/members/3/transfer").status == 200


def test_copy_is_cancelled_once(fake: FakeDesk, app: Any, ask_app: Any, fetch: Post) -> None:
    """Then there is none, and the answer says so."""
    assert fetch("/v1/cluster/copies").json() == {"rate_max": 64 << 20, "copies_max": 2, "copies": [COPY]}
    owner = [("Authorization", f"Bearer {local_token(app)}")]
    assert asyncio.run(ask_app(app, "DELETE", "/v1/cluster/copies/4", headers=owner)).json() == {"node": 4, "cancelled": 1}
    answer = asyncio.run(ask_app(app, "DELETE", "/v1/cluster/copies/4", headers=owner))
    assert (answer.status, answer.json()["code"]) == (409, "no_copy")
    assert fetch("/v1/cluster/copies").json()["copies"] == []


SURVIVOR = {"node": 2, "ends": {"0": [3, 17], "1022": [4, 9]}}


def test_recovery_without_a_majority_is_asked_of_this_node(fake: FakeDesk, node: Any, post: Post) -> None:
    """Without a leader, which is what it is for."""
    node.sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=NoLeader("none")))
    answer = post("/v1/cluster/unsafe-recover", orjson.dumps({"yes_lose": True, "survivors": [SURVIVOR]}))
    assert (answer.status, answer.json()["lost"]) == (200, [2, 3])
    assert fake.recovery.asked == [{"yes_lose": True, "survivors": [SURVIVOR], "force": False}]


@pytest.mark.parametrize("code", ["not_confirmed", "leader_alive", "no_such_voter", "quorum_reachable", "lesser_survivor"])
def test_refused_recovery_has_a_code(fake: FakeDesk, post: Post, code: str) -> None:
    """409 with the hint of the refusal."""
    fake.recovery.refusal = OperatorError("no", kind=code, hint="wait")
    answer = post("/v1/cluster/unsafe-recover", b"{}")
    assert (answer.status, answer.json()["code"], answer.json()["hint"]) == (409, code, "wait")


@pytest.mark.parametrize(
    "survivors",
    [1, [1], [{}], [{"node": 1}], [{**SURVIVOR, "more": 1}], [{"node": 2, "ends": {"x": [1, 2]}}],
     [{"node": 2, "ends": {"0": [1]}}], [{"node": True, "ends": {}}], [{"node": 2, "ends": {"0": [1, "2"]}}]],
)  # fmt: skip
def test_survivors_are_read_strictly(fake: FakeDesk, post: Post, survivors: Any) -> None:
    """A lesser survivor must not win by a spelling."""
    answer = post("/v1/cluster/unsafe-recover", orjson.dumps({"yes_lose": True, "survivors": survivors}))
    field = answer.json()["problems"][0]["field"]
    assert (answer.status, field.partition(".")[0], fake.recovery.asked) == (422, "survivors", [])


def test_defect_of_the_desk_is_no_refusal(fake: FakeDesk, post: Post) -> None:
    """An error of another kind is the server's, and its text stays in the log."""
    fake.recovery.refusal = OperatorError("secret text", kind="Surprise")
    answer = post("/v1/cluster/unsafe-recover", b'{"yes_lose": true}')
    assert (answer.status, answer.json()["code"], b"secret" in answer.body) == (500, "internal_error", False)


def test_node_alone_has_no_members(node: Any, post: Post, fetch: Post) -> None:
    """409, after the body was found to fit."""
    node.overview = SimpleNamespace(operator_desk=None)
    answers = [fetch("/v1/cluster/members"), fetch("/v1/cluster/copies"), post("/v1/cluster/members/2/add")]
    assert [(answer.status, answer.json()["code"]) for answer in answers] == [(409, "not_clustered")] * 3
    assert post("/v1/cluster/members/2/add", b'{"base": "x"}').status == 422


def test_codes_of_refusals_are_listed() -> None:
    """The routes need each of them."""
    for because in RefusedBecause:
        assert CODE_OF.get(refused(because).kind, refused(because).kind) in CODES


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "bundle"),
        ({"rollback": False}, "bundle"),
        ({"rollback": True, "bundle": {}}, "bundle"),
        ({"rollback": 1}, "rollback"),
        ({"rollback": True, "to": 0}, "to"),
        ({"rollback": True, "to": True}, "to"),
        ({"bundle": {}, "to": 1}, "to"),
        ({"bundle": "x"}, "bundle"),
        ({"rollback": True, "plan": "yes"}, "plan"),
        ({"rollback": True, "migrate": None}, "migrate"),
        ({"rollback": True, "force": True}, "force"),
    ],
)
def test_a_body_at_fault_names_its_fields(app: Api, post: Post, given: dict[str, Any], field: str) -> None:
    """And nothing is deployed: the fake node has no deployer."""
    answer = post("/v1/deploy", orjson.dumps(given), headers=[("Authorization", f"Bearer {local_token(app)}")])
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")
    assert field in [problem["field"] for problem in answer.json()["problems"]]


def test_a_bundle_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    """One whose content is not what its hash names is refused as what it is."""
    bundle = make_version(tmp_path, 1)[1]
    value = orjson.loads(bundle.to_bytes())
    assert bundle_in(value) == bundle
    with pytest.raises(Problem) as refused:
        bundle_in({**value, "target": "other:db"})
    assert refused.value.code == "bundle_refused"
