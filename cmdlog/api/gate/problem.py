"""Errors on the wire: `application/problem+json` (RFC 9457) with a stable `code`.

One rule: a code has one meaning and one status, listed here; clients switch on the code, people read the detail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import orjson

from cmdlog.node.outcome import CallOutcome, CallRefused, Durability
from procedures.execution.failure_trace import FailureTrace, hint_of
from procedures.execution.outcome_bodies import SKIPPED
from procedures.idempotency.known_outcome import Status

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "redirected": (307, "Another node takes the calls of this cluster"),
    "bad_request": (400, "Malformed HTTP request"),
    "unauthenticated": (401, "A bearer token is required"),
    "forbidden": (403, "This caller is not allowed to do this"),
    "not_found": (404, "No such route"),
    "unknown_procedure": (404, "No such procedure"),
    "method_not_allowed": (405, "The route does not support this method"),
    "header_timeout": (408, "The request's head did not arrive in time"),
    "body_timeout": (408, "The request's body did not arrive in time"),
    "aborted": (409, "The procedure aborted; nothing changed"),
    "key_reused": (409, "The idempotency key, or the number of the session, belongs to another call"),
    "session_expired": (409, "The idempotency key or the session is too old, or has ended; the call was not executed"),
    "unknown_node": (404, "The cluster has no such node"),
    "not_clustered": (409, "The node is alone, and no member of a cluster"),
    "stale_base": (409, "The cluster has changed since the version that `base` names"),
    "operation_under_way": (409, "Another change of the cluster's members is under way"),
    "deploy_under_way": (409, "Another deploy is under way"),
    "migration_needed": (409, "The code's tables need a migration, which pauses calls"),
    "migration_failed": (409, "The migration failed; nothing changed"),
    "bundle_refused": (409, "The code cannot be deployed; nothing changed"),
    "no_former_code": (409, "The log has no earlier version of the code that could run"),
    "other_address": (409, "The node is a member at another address"),
    "address_taken": (409, "Another node has this address"),
    "too_many_nodes": (409, "The cluster has as many nodes as are allowed"),
    "last_voter": (409, "No voter would remain"),
    "quorum_at_risk": (409, "The remaining live voters would not be a majority"),
    "last_copy": (409, "No remaining live voter is known to have all data"),
    "not_heard": (409, "The node must take part, and does not respond"),
    "no_successor": (409, "The node cannot lead at present"),
    "no_copy": (409, "No copy to this node is under way"),
    "not_confirmed": (409, "A recovery without a majority may lose calls, and must be confirmed"),
    "leader_alive": (409, "A leader is known: a majority is alive"),
    "no_such_voter": (409, "The node does not vote, and may lack acknowledged calls"),
    "quorum_reachable": (409, "The nodes that are connected can elect a leader"),
    "lesser_survivor": (409, "Another survivor holds more"),
    "too_large": (413, "The request is too large"),
    "url_too_long": (414, "The request target is too long"),
    "unsupported_encoding": (415, "Compressed requests are not accepted"),
    "unsupported_media_type": (415, "The request's body must be JSON"),
    "invalid_parameters": (422, "Invalid request; nothing was logged"),
    "query_limit": (422, "The query needs more time, rows or memory than one query may have"),
    "headers_too_large": (431, "The request's head is too large"),
    "internal_error": (500, "Internal server error"),
    "snapshot_failed": (500, "The snapshot could not be made; those before it are unchanged"),
    "procedure_failed": (500, "The procedure raised an error; nothing changed, and a retry with its key gets this answer"),
    "log_full": (503, "The log has no room until a snapshot frees a segment"),
    "disk_full": (503, "The volume of the data directory is full"),
    "not_ready": (503, "Not ready yet; retrying is safe"),
    "no_quorum": (503, "No node of the cluster takes calls at present; retrying is safe"),
    "code_changed": (503, "A deploy has changed the procedure; nothing was logged, and retrying is safe"),
    "migrating": (503, "The tables change; nothing was logged, and retrying is safe"),
    "too_many_connections": (503, "Too many connections; all are busy"),
    "sessions_full": (503, "No room for another idempotency key or session"),
    "outcome_unknown": (504, "The call may have been executed; retry with the same idempotency key to find out"),
}
"""Code -> (status, title). RFC 9457's `title` is the same for every problem of a type."""

PLACE_FORGOTTEN: Final = (
    "file and line are not part of the outcome, and this server no longer knows them; see event procedure_failed with this "
    "txn_id in the log of the server that ran the call"
)
SKIP_FORGOTTEN: Final = (
    "why it was skipped is not part of the outcome, and this server no longer knows it; see event call_skipped in the log of the "
    "server at that time, the SKIP that `cmdlog log dump` shows, or the report of the recovery that skipped it"
)
OUTCOME_CODES: Final[Mapping[int, str]] = {
    Status.ABORTED: "aborted",
    Status.FAILED: "procedure_failed",
    Status.KEY_REUSED: "key_reused",
    Status.SESSION_EXPIRED: "session_expired",
    Status.SESSIONS_FULL: "sessions_full",
}
FIELD_CHARS_MAX: Final = 200  # of a name that a caller sent, which may be a MiB long
LISTED_MAX: Final = 32  # problems of one request that are listed: a body of a MiB can have 100,000, which no one reads
SESSIONS_FULL_RETRY_S: Final = 60  # keys expire by the hour, not by the second

Headers = list[tuple[bytes, bytes]]
Paths = Sequence[tuple[bytes, bytes]]
"""Where the node's files are, as JSON has it, and what stands for that."""
REDIRECT_APPLIED: Final = (b"preference-applied", b"redirect=leader")


class Problem(Exception):
    """An error answer: raised where it is found, sent at the edge."""

    def __init__(self, code: str, detail: str, *, retry_after_s: float | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.code, self.detail, self.more = code, detail, more
        self.status, self.title = CODES[code]
        self.retry_after_s = retry_after_s
        self.procedure = ""  # of a batch's line that calls one of the catalog
        self.applied: Durability | None = None  # of a decided outcome: the preference that it was answered by
        self.trace: FailureTrace | None = None  # of a procedure that raised
        self._paths: Paths = ()

    def of_procedure(self, name: str) -> Problem:
        """This problem, of a call of a procedure of the catalog."""
        self.procedure = name
        return self

    def answered_by(self, preference: Durability | None) -> Problem:
        """This problem, of a decided outcome that followed the preference."""
        self.applied = preference
        return self

    def without(self, paths: Paths) -> Problem:
        """This problem, as callers may see it."""
        self._paths = paths
        return self

    def members(self) -> dict[str, Any]:
        """The members of the problem object."""
        return {
            "type": f"urn:cmdlog:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            **({} if self.retry_after_s is None else {"retry_after_s": self.retry_after_s}),
            **self.more,
        }

    def body(self) -> bytes:
        """The problem object as JSON."""
        return conceal(orjson.dumps(self.members()), self._paths)

    def headers(self, body: bytes) -> Headers:
        """Headers of an answer with this problem."""
        headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if "allow" in self.more:
            headers.append((b"allow", self.more["allow"].encode()))
        if "location" in self.more:
            headers += [(b"location", self.more["location"].encode()), REDIRECT_APPLIED]
        if self.applied is not None:
            headers.append(preference_applied(self.applied))
        if "txn_id" in self.more:
            headers.append((b"cmdlog-txn", self.more["txn_id"].encode()))
        return headers


def codes_of(status: int) -> str:
    """The codes of problems with this status."""
    return ", ".join(code for code, (of, _) in CODES.items() if of == status)


def conceal(data: bytes, paths: Paths) -> bytes:
    """JSON without these paths: where the node's files are is for `admin`, since it helps who gets at the machine."""
    for path, name in paths:
        data = data.replace(path, name)
    return data


def preference_applied(durability: Durability) -> tuple[bytes, bytes]:
    """The header that states which `Prefer` an answer followed (RFC 7240, section 3)."""
    return b"preference-applied", b"durability=" + durability.encode()


def invalid(problems: Sequence[tuple[str, str]]) -> Problem:
    """422 with the fields at fault, at least the first of them: `(field, problem)`."""
    if len(problems) > LISTED_MAX:
        problems = [*problems[:LISTED_MAX], ("…", f"and {len(problems) - LISTED_MAX} more problems")]
    shown = [(field if len(field) <= FIELD_CHARS_MAX else f"{field[:FIELD_CHARS_MAX]}…", problem) for field, problem in problems]
    listed = [{"field": field, "problem": problem} for field, problem in shown]
    return Problem("invalid_parameters", "; ".join(f"{field}: {problem}" for field, problem in shown), problems=listed)


def body_too_large(limit_bytes: int) -> Problem:
    """For a body over the limit."""
    return Problem("too_large", f"the body has more than {limit_bytes} bytes", limit_bytes=limit_bytes)


def unknown_procedure(name: str) -> Problem:
    """For a call of none that there is."""
    return Problem("unknown_procedure", f"there is no procedure {name[:80]!r}; GET /v1/procedures lists them")


def line_too_long(limit_bytes: int) -> Problem:
    """For a line of a batch that is longer than a call can make it."""
    what = f"the line is too long: a call's parameters may take {limit_bytes} bytes (call_bytes_max)"
    return Problem("too_large", what, limit_bytes=limit_bytes)


def redirected(leader: str, path: str) -> Problem:
    """307 to the same route of the node that leads. `path` is quoted again: it may hold what a header must not."""
    return Problem("redirected", f"the node at {leader} leads the cluster", location=leader.rstrip("/") + quote(path))


def forbidden(*roles: str) -> Problem:
    """403 for a caller that has none of these roles."""
    listed = " or ".join(f"`{role}`" for role in roles)
    return Problem("forbidden", f"the credential lacks the role {listed}", needs=list(roles))


def of_refused(refused: CallRefused) -> Problem:
    """What the node refused, under the code that the refusal names."""
    return Problem(refused.code, str(refused), retry_after_s=refused.retry_after_s, **refused.more())


def of_outcome(outcome: CallOutcome, trace: FailureTrace | None) -> Problem:
    """An outcome other than a result: decided, logged and the same at every repetition under its key.

    `trace` adds where the procedure raised, or why the call was skipped, as long as the node knows it; after a restart it does
    not, and says so.
    """
    code = OUTCOME_CODES[outcome.status]
    held = orjson.loads(outcome.body) if outcome.body else None
    told = held if isinstance(held, dict) else {}
    detail = str(told.get("message") or CODES[code][1])
    more: dict[str, Any] = {"txn_id": str(outcome.txn_id)} if outcome.txn_id else {}  # a name that another partition knows
    if code == "aborted":
        more["abort_code"] = told.get("code")
    if code == "procedure_failed":
        more["error"] = told.get("type")
        if trace is None:
            forgotten = SKIP_FORGOTTEN if outcome.body == SKIPPED else PLACE_FORGOTTEN
            more["hint"] = hint_of(f"{told.get('type')}: {detail}") or forgotten
    if trace is not None:
        more |= {"procedure": trace.procedure, **({"file": trace.file, "line": trace.line} if trace.file else {})}
        more |= {"hint": trace.hint} if trace.hint else {}
    problem = Problem(code, detail, retry_after_s=SESSIONS_FULL_RETRY_S if code == "sessions_full" else None, **more)
    problem.trace = trace
    return problem
