"""What a call can raise, in this process and over HTTP alike: one root, one class per thing that a caller does differently.

One rule: this module imports nothing of ours, so that a client needs no server and a server no client. Every error has the stable
`code` of the wire; a code that is newer than this program gets the class that its HTTP status implies.

The branch of the tree says what was done:

    CallError        it was decided: the call has this outcome, for ever, and nothing changed
    RequestRefused   the request is at fault; nothing was logged, and repeating it changes nothing
    Unavailable      nothing was logged; the same request may succeed later
    OutcomeUnknown   it may have been executed, or not
    ServerFault      the server is at fault; what it did is not known either
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SKIP_TYPE: Final = "Skipped"  # of the outcome of a call that was skipped; logs hold it


class CmdlogError(Exception):
    """The root. `code` is the stable code; `retry_after_s` what the server asked for; `txn_id` the transaction that decided.

    `idempotency_key` is the one that a client sent the call under: with it the call can be repeated later, in another program.
    `request_id` is what the server's log calls the request; `hint` what to do, where the server says so.
    """

    code: str = "error"
    retry_after_s: float | None = None
    txn_id: int = 0  # 0: none did
    idempotency_key: str | None = None
    request_id: str = ""
    hint: str = ""

    def __init__(
        self, message: str = "", *, code: str | None = None, retry_after_s: float | None = None, txn_id: int | None = None
    ) -> None:
        Exception.__init__(self, message)  # not super(): a subclass may have a second parent with other arguments
        if code is not None:
            self.code = code
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        if txn_id is not None:
            self.txn_id = txn_id


class CallError(CmdlogError):
    """The call has an outcome, and it is not a result."""


class Aborted(CallError):
    """The procedure called `tx.abort`: `code`, which is `abort_code` too, and `message` are what it gave."""

    code = "aborted"

    def __init__(self, message: str = "", *, abort_code: str = "", txn_id: int = 0) -> None:
        text = f"{abort_code}: {message}" if abort_code and message else abort_code or message
        super().__init__(text, code=abort_code or None, txn_id=txn_id)
        self.abort_code, self.message = abort_code, message


class ProcedureFailed(CallError):
    """The procedure raised, or was skipped: a defect of the application, and an outcome like any other.

    `error_type` and `message` are the exception's class and text; `procedure`, `file` and `line` say where it was raised, ""
    and 0 where that is not known any more; `hint` is what to do instead, where that is known. In the process that ran the call
    the exception itself is `__cause__`. A call that was skipped raised nothing: its `error_type` is "Skipped", `hint` says why.
    """

    code = "procedure_failed"

    def __init__(
        self,
        message: str = "",
        *,
        error_type: str = "",
        procedure: str = "",
        file: str = "",
        line: int = 0,
        hint: str = "",
        txn_id: int = 0,
    ) -> None:
        is_skip = error_type == SKIP_TYPE and not file  # an exception of the application has a place
        raised = message if is_skip else ": ".join(filter(None, (error_type, message)))
        place = f" ({file}, line {line})" if file else ""
        if is_skip:
            text = f"{f'procedure {procedure}' if procedure else 'the call'} was skipped: {raised}"
        else:
            text = f"procedure {procedure} raised {raised}{place}" if procedure else f"{raised}{place}"
        super().__init__(f"{text}; {hint}" if hint else text, txn_id=txn_id)
        self.error_type, self.message = error_type, message
        self.procedure, self.file, self.line, self.hint = procedure, file, line, hint


class KeyReused(CallError):
    """The idempotency key belongs to a call with other parameters, or on another partition."""

    code = "key_reused"


class SessionExpired(CallError):
    """The idempotency key is too old to tell whether its call was executed; it was not executed now."""

    code = "session_expired"


class RequestRefused(CmdlogError):
    """The request itself is at fault; nothing was logged."""

    code = "request_refused"


class InvalidParameters(RequestRefused):
    """The parameters do not fit: `problems` holds `(field, problem)` for every field at fault."""

    code = "invalid_parameters"

    def __init__(self, message: str = "", *, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message or "; ".join(f"{field}: {problem}" for field, problem in problems))
        self.problems = list(problems)


class UnknownProcedure(RequestRefused, LookupError):
    """No procedure of that name is registered."""

    code = "unknown_procedure"


class Unauthenticated(RequestRefused):
    """The credential is missing, wrong or expired."""

    code = "unauthenticated"


class Forbidden(RequestRefused):
    """The credential does not allow this."""

    code = "forbidden"


class TooLarge(RequestRefused):
    """The request is larger than the server takes."""

    code = "too_large"


class Unavailable(CmdlogError):
    """Not now: log_full, disk_full, not_ready, no_quorum, sessions_full and their like. Nothing was logged."""

    code = "not_ready"


class Unreachable(Unavailable):
    """No connection to the server came about, or a request that changes nothing was not answered."""

    code = "unreachable"


class OutcomeUnknown(CmdlogError):
    """The call may have been executed, or not. The same call under the same key shows which, within the key's window."""

    code = "outcome_unknown"


class ServerFault(CmdlogError):
    """A defect of the server; its log says where. Whether the call was executed is not known."""

    code = "internal_error"


class BadAnswer(ServerFault):
    """What answered does not speak this protocol, or its result is not of the expected type."""

    code = "bad_answer"
