"""Why a request about members is refused: one code per case.

One rule: a refused request has changed nothing, so the same one may be made again.
"""

from __future__ import annotations

import enum

from cmdlog.operator_error import OperatorError


class RefusedBecause(enum.Enum):
    """The code of a refusal, for machines; names of the surface, for ever."""

    BAD_REQUEST = "bad_request"  # an address is missing or is none
    UNKNOWN_NODE = "unknown_node"  # the cluster has no such node
    NOT_LEADING = "not_leading"  # another node decides; `leader` names its URL
    STALE_BASE = "stale_base"  # the cluster is another one than the request was made for
    OPERATION_UNDER_WAY = "operation_under_way"  # one change at a time; the text names the first
    OTHER_ADDRESS = "other_address"  # the node is a member at another address
    ADDRESS_TAKEN = "address_taken"  # another node has this address
    TOO_MANY_NODES = "too_many_nodes"
    LAST_VOTER = "last_voter"  # no voter would be left
    QUORUM_AT_RISK = "quorum_at_risk"  # the live voters that stay are no majority
    LAST_COPY = "last_copy"  # no live voter that stays is known to hold everything
    NOT_HEARD = "not_heard"  # the node has to take part, and says nothing
    NO_SUCCESSOR = "no_successor"  # the node cannot lead: no voter, silent, lagging or unfit
    UNKNOWN_OUTCOME = "unknown_outcome"  # leadership was lost meanwhile: make the request again


HTTP_STATUS: dict[RefusedBecause, int] = {
    RefusedBecause.BAD_REQUEST: 422,
    RefusedBecause.UNKNOWN_NODE: 404,
    RefusedBecause.NOT_LEADING: 503,
    RefusedBecause.UNKNOWN_OUTCOME: 503,
}
"""Of the others it is 409."""


class MembershipRefused(OperatorError):
    """The request was not taken. `code` is stable; `leader` is the URL of the node that decides, where that is another one."""

    hint = "`cmdlog cluster status` shows the members; `--plan` shows what a request would mean"

    def __init__(self, code: RefusedBecause, why: str, *, leader: str = "") -> None:
        self.code, self.leader = code, leader
        super().__init__(why, kind=code.value)

    @property
    def status(self) -> int:
        """Of an HTTP answer."""
        return HTTP_STATUS.get(self.code, 409)
