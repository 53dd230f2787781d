"""What the routes of operators take and answer with, as models for FastAPI to describe."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Body, Path
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from cmdlog.api.routes.response_models import AnyObject, ClosedObject, Count, OpenObject, absent

NodeNumber = Annotated[int, Field(ge=1, lt=1 << 31, description="number of a node")]
EntryNumber = Annotated[int, Field(ge=0, lt=1 << 53, description="a term or an index")]
MemberState = Literal["member", "expected", "leaving_old", "joining", "admitted", "leaving", "removed"]


class ChangeRequest(ClosedObject):
    """The body of a change of the members, which may be empty."""

    peer: str | None = absent("host:port for the other nodes; of a node that is added")
    client: str | None = absent("URL for clients; of a node that is added")
    base: Annotated[int, Field(ge=0, lt=1 << 63)] | None = absent("the version that was seen: refused if it is another one now")
    force: bool = absent("also where acknowledged calls may be lost; recorded for ever")
    plan: bool = absent("says what it would mean, and changes nothing")


class SurvivingNode(ClosedObject):
    """Another node that is left, and where its logs end."""

    node: NodeNumber
    ends: dict[Annotated[str, Field(pattern="^[0-9]{1,5}$")], tuple[EntryNumber, EntryNumber]] = Field(
        description="group -> term and index of its last entry, as `end` of `cluster.groups` in its status",
        json_schema_extra={"additionalProperties": False},
    )


class RecoveryRequest(ClosedObject):
    """The body of a recovery without a majority."""

    yes_lose: bool = absent("confirms that acknowledged calls may be lost; refused without it")
    survivors: list[SurvivingNode] = absent("other nodes that are left: refused where one of them holds more")
    force: bool = absent("also from a lesser survivor, and where a majority is connected")


class QuorumStage(OpenObject):
    """The voters in one stage of a change."""

    what: str
    voters: list[int]
    learners: list[int]
    quorum: int
    live: list[int]
    survives: int = Field(description="so many live voters may be lost until nothing is committed")


class ChangePlan(OpenObject):
    """What a change means."""

    stages: list[QuorumStage]
    warnings: list[str]


class ChangeAnswer(OpenObject):
    """What was begun, is under way or done already, or would be."""

    kind: str
    node: int
    state: str = Field(description="of the node; empty: the cluster has none such")
    version: Count
    already: bool = Field(description="it is done, or under way")
    plan: ChangePlan


class RecoveryAnswer(OpenObject):
    """What was done, or done already."""

    node: int
    already: bool


class CopyStatus(OpenObject):
    """One copy of this node's data to another."""

    node: int
    percent: float
    rate: int = Field(description="bytes per second")
    left_s: float | None


class CopyList(OpenObject):
    """The copies under way, and what they may cost."""

    copies: list[CopyStatus]


class CopyCancelled(ClosedObject):
    """How many copies to the node were ended."""

    node: int
    cancelled: int


class MemberStatus(OpenObject):
    """One member, as the log states it."""

    node: int
    state: MemberState
    peer: str
    client: str
    incarnation: str = Field(description="of its disk, in hexadecimal; empty: not known")
    former: list[str] = Field(description="lives of its disk that are over")
    forced: bool = Field(description="an operator has overruled a check once")


class FailureSetStatus(OpenObject):
    """Which nodes are declared failed, and which were."""

    sequence: Count | None
    nodes: list[int]
    history: list[AnyObject] = Field(description="every set that this node knows, oldest first")


class MemberList(OpenObject):
    """The members and what happens to them."""

    version: Count = Field(description="for `base` of a change")
    leader: int | None
    operation: AnyObject | None = Field(description="the change that is under way")
    waits: str = Field(description="why the leader does nothing about it at present; empty: it does")
    members: list[MemberStatus]
    failure_set: FailureSetStatus
    copies: list[CopyStatus]


def take_change(
    node: Annotated[NodeNumber, Path()],
    body: Annotated[
        ChangeRequest | SkipJsonSchema[None], Body(openapi_examples={"only a plan": {"value": {"plan": True}}})
    ] = None,
) -> None:
    """Done once: a repetition gets `already`."""


def take_recovery(
    body: Annotated[RecoveryRequest, Body(openapi_examples={"confirmed": {"value": {"yes_lose": True}}})],
) -> None:
    """Asked of the very node that has the newest data: nothing is forwarded."""


def take_node(node: Annotated[NodeNumber, Path()]) -> None:
    """One node."""
