"""Every option of a client, checked once. `Client` and `AsyncClient` take the same."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import httpx

from cmdlog.client.retry import RetryPolicy
from cmdlog.client.session import WINDOW
from cmdlog.procedure_calls import Consistency, Durability, NewKey

if TYPE_CHECKING:
    from procedures import Database

TOKEN_VARIABLE: Final = "CMDLOG_TOKEN"  # noqa: S105 - the name of a variable
CERT_VARIABLE: Final = "CMDLOG_CERT_FILE"  # certificate and key that are shown to a server which asks for them
IDLE_S: Final = 30.0  # shorter than the server's 75, so that we close first and no request meets a closing connection


@dataclass(frozen=True, slots=True)
class AutoBatch:
    """How calls that are made at the same time share requests."""

    calls_max: int = 1024  # of one request
    bytes_max: int = 1 << 20  # of one request's body
    linger_ms: float = 0.0  # a request waits so long for company; 0: only while another one is under way
    streams: int = 1  # requests under way at a time

    def __post_init__(self) -> None:
        if self.calls_max < 1 or self.bytes_max < 1 or self.streams < 1 or not 0 <= self.linger_ms <= 1000:
            raise ValueError("auto_batch: calls_max, bytes_max and streams are at least 1, linger_ms is 0 to 1000")


class ClientArguments(TypedDict, total=False):
    """What a client may be given, by name."""

    token: str | Callable[[str], str] | None  # bearer token, or what gives that of a URL; else token_file, else CMDLOG_TOKEN
    token_file: str | os.PathLike[str] | None
    timeout_s: float  # for one call with all its attempts
    retry: RetryPolicy
    keys: Literal["new", "single", "none"]  # of calls without one: numbers in sessions; a key each; none, then less is retried
    session_window: int  # at most the server's setting of this name
    causality: Literal[
        "echo", "off"
    ]  # whether the highest transaction id seen is sent along, so that later calls get a greater one
    auto_batch: bool | AutoBatch
    db: Database | None  # results are decoded by its return annotations
    connections_max: int  # to each server
    verify: bool | str | os.PathLike[str] | ssl.SSLContext  # certificates: usual ones, none, a file of authorities, a context
    trust_env: bool  # whether proxies of the environment are used


class InvokeOptions(TypedDict, total=False):
    """What one call may be given by name, see `Client.invoke`."""

    idempotency_key: str | NewKey | None
    returns: Any
    timeout_s: float | None
    durability: Durability | None
    consistency: Consistency | None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options, complete."""

    token_of: Callable[[str], str]  # bearer token of the server at a URL, "" for none
    timeout_s: float = 60.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    keys: Literal["new", "single", "none"] = "new"
    session_window: int = WINDOW
    causality: Literal["echo", "off"] = "echo"
    auto_batch: AutoBatch | None = None
    db: Database | None = None
    connections_max: int = 100
    verify: bool | ssl.SSLContext = True
    trust_env: bool = False

    def http(self, url: httpx.URL) -> dict[str, Any]:
        """Arguments of httpx's clients, of which there is one for each connection."""
        return {
            "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_S),
            "verify": self._certificates(url),
            "trust_env": self.trust_env,
            "timeout": None,  # each request brings its own
        }

    def _certificates(self, url: httpx.URL) -> ssl.SSLContext:
        """One for all connections: reading the authorities takes longer than a call."""
        if isinstance(self.verify, ssl.SSLContext):
            return self.verify
        if url.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and is not asked
        return httpx.create_ssl_context(verify=self.verify, trust_env=self.trust_env)

    def headers(self) -> list[tuple[str, str]]:
        """Headers of every request, beside those of its server."""
        return [("User-Agent", "cmdlog"), ("Accept-Encoding", "identity")]

    def credential(self, url: httpx.URL) -> list[tuple[str, str]]:
        """The header that admits to one server. Raises: ValueError."""
        token = self.token_of(str(url))
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("a token may contain only visible ASCII characters")
        return [("Authorization", f"Bearer {token}")] if token else []


def make_options(given: ClientArguments) -> ClientOptions:
    """Raises: ValueError, OSError (of files)."""
    own: dict[str, Any] = {
        name: value for name, value in given.items() if name not in ("token", "token_file", "auto_batch", "verify")
    }
    own["token_of"] = _token_of(given.get("token"), given.get("token_file"))
    auto_batch, verify = given.get("auto_batch", False), given.get("verify", True)
    own["auto_batch"] = auto_batch if isinstance(auto_batch, AutoBatch) else AutoBatch() if auto_batch else None
    if not isinstance(verify, ssl.SSLContext):
        verify = _own_context(verify, trust_env=own.get("trust_env", False))
    options = ClientOptions(**own, verify=verify)
    if not options.timeout_s > 0 or options.connections_max < 1 or options.session_window < 1:
        raise ValueError("timeout_s must be more than 0, connections_max and session_window at least 1")
    if options.keys not in ("new", "single", "none") or options.causality not in ("echo", "off"):
        raise ValueError('keys is "new", "single" or "none", causality is "echo" or "off"')
    return options


def _own_context(verify: bool | str | os.PathLike[str], *, trust_env: bool) -> bool | ssl.SSLContext:
    """With the certificate of CMDLOG_CERT_FILE, if there is one. Raises: ValueError, OSError."""
    cert = own_certificate()
    if isinstance(verify, bool) and not cert:
        return verify
    if isinstance(verify, bool):
        context = httpx.create_ssl_context(verify=verify, trust_env=trust_env)
    else:
        context = ssl.create_default_context(cafile=os.fspath(verify))
    if cert:
        show_certificate(context, cert)
    return context


def own_certificate() -> str:
    """The file of CMDLOG_CERT_FILE, "" where it is not set. Raises: ValueError, where it is empty."""
    path = os.environ.get(CERT_VARIABLE)
    if path is not None and not path.strip():
        raise ValueError(f"{CERT_VARIABLE} is empty; unset it to show no certificate")
    return path or ""


def show_certificate(context: ssl.SSLContext, path: str) -> None:
    """To servers that ask for one. Raises: ValueError, naming the file."""
    try:
        context.load_cert_chain(path, password=b"")
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"{CERT_VARIABLE}: {path} with a certificate and its unencrypted key cannot be used: {error}") from None


def _token_of(token: str | Callable[[str], str] | None, token_file: str | os.PathLike[str] | None) -> Callable[[str], str]:
    if callable(token):
        return token
    if token is not None and token_file is not None:
        raise ValueError("give either token or token_file")
    if token_file is not None:
        token = Path(token_file).read_text(encoding="ascii").strip()
    known = os.environ.get(TOKEN_VARIABLE, "").strip() if token is None else token
    return lambda _: known
