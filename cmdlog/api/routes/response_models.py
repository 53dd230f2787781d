"""What the routes take and answer with, as models of pydantic. Calls are described by the schemas of their procedures.

One rule: a body passes its model, which converts nothing. Answers are written by the handlers; tests hold them to their models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from cmdlog.api.gate.problem import CODES

TXN_ID: Final = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
"""Schema of a transaction id: a decimal string of 63 bits."""
TxnIdText = Annotated[
    str, Field(pattern=TXN_ID["pattern"], description="transaction id: a decimal string of 63 bits", title="Txn Id")
]
Count = Annotated[int, Field(ge=0)]
SentNumber = Annotated[int, Field(ge=1, lt=1 << 63)]  # integers of JSON end there
SentFloor = Annotated[int, Field(ge=0, lt=1 << 63)]
AnyObject = dict[str, Any]
AS_OF: Final = "of a stale read, per partition: the transaction up to which the state that was read holds everything"
AS_OF_TIME: Final = "of a stale read: the time of the oldest `as_of`"


def absent(description: str | None = None) -> Any:
    """A member that may be missing, and is not null then."""
    return Field(default_factory=lambda: None, description=description)


class ClosedObject(BaseModel):
    """An object without further members, whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class OpenObject(BaseModel):
    """An object with further members."""

    model_config = ConfigDict(extra="allow")


class FieldProblem(ClosedObject):
    """What is wrong with one field."""

    field: str
    problem: str


class ProblemDetails(ClosedObject):
    """An error, by RFC 9457."""

    type: str = Field(pattern="^urn:cmdlog:problem:[a-z_]+$")
    title: str
    status: int = Field(ge=300, le=599)
    detail: str
    code: str = Field(json_schema_extra={"enum": list(CODES)}, description="stable; programs should decide by this field")
    request_id: str = absent("as in the header X-Request-Id and in the server's log")
    txn_id: TxnIdText = absent(
        "transaction that decided this outcome; none did where the key or number was used on another partition"
    )
    abort_code: str | None = absent("the procedure's own code, with code=aborted")
    error: str | None = absent("the kind of error, with code=procedure_failed")
    procedure: str = absent("that raised, with code=procedure_failed, while the server knows where")
    file: str = absent("of the application's code that raised")
    line: Count = absent()
    hint: str = absent("what to do instead, where that is known")
    needs: list[str] = absent("roles, one of which is required")
    allow: str = absent("the methods that the route supports")
    limit_bytes: Count = absent()
    retry_after_s: float = absent("as in the header Retry-After, which is rounded up and not there in a batch")
    leader: str = absent("URL of the node that takes calls, with code=not_ready of a node that does not lead")
    location: str = absent("as in the header Location, with code=redirected")
    progress: AnyObject = absent("progress of the running recovery")
    stalled: list[AnyObject] = absent("calls that hang, when no partition makes progress")
    state: str = absent(
        "of a node that does not serve: `bootstrapping` while it recovers, `configuring` while it knows no leader"
    )
    role: str = absent("of a member of a cluster that does not serve")
    disk_full: AnyObject = absent("the volume without room, with code=disk_full of `/readyz`")
    problems: list[FieldProblem] = absent("every invalid field")


Scalar = str | int | float | bool | None


def encode_params(params: Any) -> orjson.Fragment:
    """Parameters of a query, encoded again for its process: while it waits, their values would take ten times as much."""
    values = list(params.values()) if type(params) is dict else params
    if params is not None and not (type(values) is list and all(map(_is_scalar, values))):
        raise ValueError("must be an array, or an object by name, of numbers, strings, booleans and nulls")
    return orjson.Fragment(orjson.dumps(params or []))


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)


class QueryRequest(ClosedObject):
    """The body of `POST /v1/query`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    sql: str = Field(min_length=1, pattern=r"\S", description="one SELECT; parameters as ?, or as :name")
    params: Annotated[
        orjson.Fragment, PlainValidator(encode_params, json_schema_input_type=list[Scalar] | dict[str, Scalar] | None)
    ] = Field(default_factory=lambda: encode_params(None), description="a value for each ?, or an object with one for each :name")
    partition: Count | None = absent("null: the rows of all partitions")


class QueryRows(ClosedObject):
    """The rows of a query."""

    columns: list[str]
    rows: list[list[str | float | None]] = Field(description="values as SQLite stores them; bytes are base64")
    as_of: dict[str, TxnIdText] = Field(description="per partition: the state that was read")
    as_of_time: str = absent(AS_OF_TIME)


class SnapshotRequest(ClosedObject):
    """The body of `POST /v1/snapshots`, which may be empty."""

    consistent: bool = absent("one transaction id at which all partitions can be restored together")


class BatchCall(ClosedObject):
    """One call of a batch."""

    procedure: str
    params: AnyObject | None = absent()
    key: str | None = absent("idempotency key; not with `number`")
    session: str = absent("UUID of the session; without it that of the header Cmdlog-Session")
    number: SentNumber = absent("of this call in its session; a retry with it gets the first outcome")
    floor: SentFloor = absent("the client has seen all outcomes up to this number")
    durability: Literal["sync", "async"] | None = absent("of this call")


class BatchResult(ClosedObject):
    """The answer to a line whose call has a result."""

    txn_id: TxnIdText
    partition: Count | None
    result: Any


class BatchRefusal(ClosedObject):
    """The answer to every other line."""

    error: ProblemDetails


class DescribedProcedure(ClosedObject):
    """One procedure of the catalog."""

    name: str
    partition_by: str | None = Field(description="a parameter; null: all partitions; each: once on each partition")
    read_only: bool
    parameters: AnyObject = Field(description="JSON schema")
    result: AnyObject = Field(description="JSON schema")
    description: str


class ProcedureCatalog(ClosedObject):
    """Every procedure."""

    procedures: list[DescribedProcedure]


class NodeStatus(OpenObject):
    """The node."""

    ready: bool
    partitions: AnyObject


class SnapshotList(ClosedObject):
    """The snapshots, by partition and age, and the recovery points, by transaction id."""

    snapshots: list[AnyObject]
    points: list[AnyObject]


class SnapshotsTaken(ClosedObject):
    """The new snapshots; with `consistent` the recovery point as well."""

    snapshots: list[AnyObject]
    point: AnyObject = absent()


class ProcessAlive(ClosedObject):
    """The process is alive."""

    alive: Literal[True]


class NodeServing(ClosedObject):
    """Calls are being served."""

    ready: Literal[True]
    state: str = absent("of a member of a cluster")
    role: Literal["leader", "follower"] = absent("of a member of a cluster")
    leader: str = absent("URL of the node that leads the cluster")
    stalled: list[AnyObject] = absent("calls that hang, while other partitions make progress")


class ApiDocument(OpenObject):
    """A description by OpenAPI."""

    openapi: str
    paths: AnyObject
