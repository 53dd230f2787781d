"""What the commands that talk to a running server share: its address, the token, patience, and errors in words.

One rule: the client retries and tells the truth; here its errors become messages, hints and exit codes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import out
from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME, find_local_token

if TYPE_CHECKING:
    from cmdlog.client import Client
    from cmdlog.errors import CmdlogError

DEFAULT_URL: Final = "http://127.0.0.1:8642"
TIMEOUT_S: Final = 30.0
REFUSED_S: Final = 5.0  # at an address where nothing listens: as long as a restarting server takes, and no longer
NOTICE_S: Final = 1.0  # without an answer, before a user sees why

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL[,URL]...",
        help="Address of the server, or comma-separated addresses of a cluster's nodes, tried in turn.",
        envvar="CMDLOG_URL",
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="File with the bearer token; by default CMDLOG_TOKEN, else the local token."
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Longest wait, including all retries.")
]

CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="CA certificates to verify the server with; by default those of the system.",
        envvar="CMDLOG_CA_FILE",
    ),
]

HINTS: Final = {
    "unauthenticated": "give the token by --token-file or CMDLOG_TOKEN; of a server without a token file run the command "
    f"as the server's user on its machine, or give {LOCAL_TOKEN_NAME} of its directory",
    "unreachable": "start the server with `cmdlog serve APP`, or name its address by --url or CMDLOG_URL; "
    "check whether it takes http or https; --ca-file is for a private CA, CMDLOG_CERT_FILE for a server that wants a certificate",
    "bad_answer": "check that cmdlog is listening there",
    "session_expired": "the outcome is no longer known; check the data before you call again with a new key",
    "log_full": "reads continue; writes resume as soon as a snapshot frees a segment",
    "internal_error": "see the server's log",
}


def listed_urls(text: str) -> list[str]:
    """The addresses that an option holds."""
    return [url.strip() for url in text.split(",")]


def local_token(token_file: Path | None) -> Callable[[str], str] | None:
    """What finds the token of a server of ours on this machine; None where one is given, which then counts."""
    from cmdlog.client.options import TOKEN_VARIABLE

    return None if token_file is not None or os.environ.get(TOKEN_VARIABLE) else find_local_token


@contextlib.contextmanager
def server(url: str, token_file: Path | None, timeout_s: float, ca_file: Path | None) -> Iterator[Client]:
    """A client of the server, or of the nodes of a cluster. Its errors leave as CommandFailed."""
    from cmdlog.client import Client, RetryPolicy
    from cmdlog.errors import CmdlogError

    check_certificates(ca_file)
    try:
        verify, retry = str(ca_file) if ca_file else True, RetryPolicy(refused_s=REFUSED_S)
        token = local_token(token_file)
        client = Client(
            listed_urls(url), token=token, token_file=token_file, timeout_s=timeout_s, retry=retry, verify=verify, keys="single"
        )
    except ValueError as error:
        raise CommandFailed(str(error), hint="such as http://127.0.0.1:8642", exit_code=2) from None
    with client:
        try:
            yield client
        except CmdlogError as error:
            raise failure_of(error, url) from None


@contextlib.contextmanager
def patience(
    client: Client,
    url: str,
    timeout_s: float,
    *,
    doing: str = "waiting for its answer",
    timer: Callable[..., Any] = Timer,
) -> Iterator[None]:
    """Around one request: reports once, on standard error, that it takes long, why, and how long it may take.

    Also off a terminal: a script that is silent for half a minute looks as if it hung. A server that has the request and answers
    others names the calls and sites that it waits for itself.
    """
    if timeout_s <= NOTICE_S:
        yield
        return
    began, answered = time.time(), Event()

    def notify() -> None:
        has_sent = client.has_sent and not client.newest_failure
        out.print_note(_why_it_takes_long(client, url, began, timeout_s, doing))
        stalls = _stalls_of(client) if has_sent else ""
        if stalls and not answered.is_set():
            out.print_note(stalls)

    notice = timer(NOTICE_S, notify)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        answered.set()
        notice.cancel()


def _why_it_takes_long(client: Client, url: str, began: float, timeout_s: float, doing: str) -> str:
    """One of three: an attempt failed and is repeated, the server has the request, or there is no connection yet."""
    longest_s = min(timeout_s, REFUSED_S) if client.nobody_listens else timeout_s
    until = f"until {time.strftime('%H:%M:%S', time.localtime(began + longest_s))}, {longest_s:g} s in all"
    if why := client.newest_failure:
        return f"no answer from {url} yet: {why}; retrying {until}"
    if client.has_sent:
        return f"the request is sent, and {url} has not answered yet; {doing} {until}"
    return f"no connection to {url} yet; trying {until}"


def _stalls_of(client: Client) -> str:
    """What the server's sites are doing, in its words; "" if they make progress, or it does not report it."""
    from cmdlog.errors import CmdlogError

    try:
        stalled = client.status().get("stalled")
    except (CmdlogError, RuntimeError):  # RuntimeError: the command has ended meanwhile, and its client is closed
        return ""
    return "; ".join(str(stall.get("message")) for stall in stalled) if isinstance(stalled, list) else ""


@contextlib.contextmanager
def understood(source: str) -> Iterator[None]:
    """Around what takes an answer apart: one in an unknown form is no defect of this program. Raises: CommandFailed."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CommandFailed(
            f"{source} answered in an unknown form: {type(error).__name__}: {error}", hint=HINTS["bad_answer"]
        ) from None


def check_certificates(ca_file: Path | None) -> None:
    """Those that verify the server, and the one that is shown to it. Raises: CommandFailed, naming the file."""
    import ssl

    from cmdlog.client.options import own_certificate, show_certificate

    try:
        if ca_file is not None:
            ssl.create_default_context(cafile=str(ca_file))
        if cert := own_certificate():
            show_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert)
    except OSError as error:  # ssl.SSLError is one
        raise CommandFailed(f"{ca_file} cannot be read as certificates: {error.strerror or error}", exit_code=2) from None
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=2) from None


def failure_of(error: CmdlogError, url: str) -> CommandFailed:
    """The error as an operator needs it: exit code 2 when the request is at fault, else 1."""
    from cmdlog.errors import Aborted, InvalidParameters, OutcomeUnknown, ProcedureFailed, UnknownProcedure, Unreachable

    if isinstance(error, Unreachable):
        told = f"no answer from {url}: {str(error).removeprefix('no answer: ')}"
    elif isinstance(error, Aborted):
        told = f"aborted: {error}"
    else:
        told = f"{error.code}: {error}"
    hint = HINTS.get(error.code, "")
    if error.hint and not isinstance(error, ProcedureFailed):  # whose text ends with it
        hint = error.hint
    if isinstance(error, OutcomeUnknown) and error.idempotency_key is not None:
        hint = f"repeat it with --key {error.idempotency_key}: if it was executed, you get its outcome and nothing runs again"
    return CommandFailed(told, hint=hint, exit_code=2 if isinstance(error, InvalidParameters | UnknownProcedure) else 1)
