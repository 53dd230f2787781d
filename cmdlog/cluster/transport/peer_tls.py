"""TLS between nodes: one certificate for both directions, and one authority that signs those of the cluster.

One rule: both ends show a certificate of the authority. Which node an end is, is not in it: the handshake's MAC and the pinned
incarnation say that, so certificates need no host names and one may serve several nodes.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmdlog.operator_error import OperatorError


class BadPeerCertificate(OperatorError):
    """The files for TLS between nodes cannot be used."""

    exit_code = 2
    hint = (
        "give a certificate and its key without a password in PEM, and the authority's certificate that signed those of all nodes"
    )


@dataclass(frozen=True, slots=True)
class PeerTls:
    """A context for each role of a connection. Both verify the other end."""

    called: ssl.SSLContext
    caller: ssl.SSLContext


def options_to_call(tls: PeerTls | None, host: str, *, handshake_s: float) -> dict[str, Any]:
    """Arguments of the event loop for a connection that this node makes; none without TLS."""
    return {} if tls is None else {"ssl": tls.caller, "server_hostname": host, "ssl_handshake_timeout": handshake_s}


def options_when_called(tls: PeerTls | None, *, handshake_s: float) -> dict[str, Any]:
    """The same for a connection that came in."""
    return {} if tls is None else {"ssl": tls.called, "ssl_handshake_timeout": handshake_s}


def make_peer_tls(certificate: Path, key: Path, authority: Path) -> PeerTls:
    """TLS 1.3 with these files. Raises: BadPeerCertificate."""
    called, caller = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    for context in (called, caller):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(certificate, key, password=b"")
            context.load_verify_locations(authority)
        except (ssl.SSLError, OSError) as error:
            raise BadPeerCertificate(f"TLS between nodes with {certificate}, {key} and {authority}: {error}") from None
    return PeerTls(called, caller)
