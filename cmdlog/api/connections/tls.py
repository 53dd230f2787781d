"""The server's certificate: loaded, checked and explained at start, loaded again when its files change.

One rule: what cannot serve is refused at start, naming setting and file; what cannot serve later is logged, and the certificate
that works stays in use: a renewal that is half written must not close the door.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from cmdlog.node.settings import BadSetting, Settings

CHECK_EVERY_S: Final = 1.0
EXPIRES_SOON_S: Final = 14 * 86_400
PROTOCOLS: Final = ("http/1.1",)
BEGIN_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
KEY_ENDS: Final = b"PRIVATE KEY-----"
ENCRYPTED: Final = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")
EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED
NOT_YET_VALID: Final = 9  # X509_V_ERR_CERT_NOT_YET_VALID

Stamp = tuple[int, int, int]

logger = structlog.get_logger("cmdlog.api")


class Certificate:
    """The TLS context of new connections; those that exist keep theirs."""

    def __init__(self, settings: Settings, *, now: Callable[[], float] = time.monotonic) -> None:
        """Raises: BadSetting."""
        self._settings, self._now = settings, now
        self._stamps = _stamps(settings)
        self._context = make_context(settings)
        self._checked_at = now()
        self._problem = ""  # why the files that are there now are not used
        self._warn()

    def context(self) -> ssl.SSLContext:
        """The context for a connection that begins now."""
        now = self._now()
        if now - self._checked_at >= CHECK_EVERY_S:
            self._checked_at = now
            stamps = _stamps(self._settings)
            if stamps != self._stamps:
                self._reload(stamps)
        return self._context

    def _reload(self, stamps: tuple[Stamp | None, ...]) -> None:
        """A failure is tried again, and reported once: of two files one may have been replaced so far."""
        try:
            self._context = make_context(self._settings)
        except BadSetting as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("certificate_not_reloaded", problem=self._problem)
            return
        self._stamps, self._problem = stamps, ""
        logger.info("certificate_reloaded", file=str(self._settings.tls_cert_file))
        self._warn()

    def _warn(self) -> None:
        told = validity(self._settings)
        if told:
            logger.warning("certificate_validity", file=str(self._settings.tls_cert_file), problem=told)


def make_context(settings: Settings) -> ssl.SSLContext:
    """TLS 1.2 or newer with the certificate of the settings. Raises: BadSetting."""
    cert, key = settings.tls_cert_file, settings.tls_key_file
    assert cert is not None
    key_setting = "tls_key_file" if key is not None else "tls_cert_file"
    _check_text("tls_cert_file", cert, BEGIN_CERTIFICATE, "certificate")
    private = _check_text(key_setting, key or cert, KEY_ENDS, "private key")
    if any(mark in private for mark in ENCRYPTED):
        raise BadSetting(key_setting, f"{key or cert}: the private key is encrypted; use one without a password")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(PROTOCOLS))
    try:
        context.load_cert_chain(cert, key, password=b"")
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise BadSetting(
                key_setting, f"{key or cert}: the private key does not belong to the certificate in {cert}"
            ) from None
        raise BadSetting("tls_cert_file", f"{cert} with the key in {key or cert} cannot be used: {error}") from None
    if settings.tls_ca_file is not None:
        _trust(context, settings.tls_ca_file, required=settings.tls_client == "required")
    return context


def _trust(context: ssl.SSLContext, path: Path, *, required: bool) -> None:
    _check_text("tls_ca_file", path, BEGIN_CERTIFICATE, "certificate")
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise BadSetting("tls_ca_file", f"{path} cannot be used: {error}") from None
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _check_text(setting: str, path: Path, mark: bytes, what: str) -> bytes:
    """The file's bytes. Raises: BadSetting."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadSetting(setting, f"{path} cannot be read: {error.strerror}") from None
    if mark not in text:
        raise BadSetting(setting, f"{path} contains no {what} in PEM")
    return text


def validity(settings: Settings, *, soon_s: float = EXPIRES_SOON_S, now: Callable[[], float] = time.time) -> str:
    """What is wrong with the time in which the certificate is valid; "" when nothing is.

    A handshake with ourselves in memory, which trusts this very certificate: the only way to its dates in the standard library.
    """
    cert, key = settings.tls_cert_file, settings.tls_key_file
    assert cert is not None
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key, password=b"")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        ends_at = ssl.cert_time_to_seconds(str(_shake_hands(client, server)["notAfter"]))
    except ssl.SSLCertVerificationError as error:
        return {EXPIRED: "has expired", NOT_YET_VALID: "is not valid yet"}.get(error.verify_code, "")
    left_s = ends_at - now()
    return f"expires in {left_s / 86_400:.1f} days" if left_s < soon_s else ""


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> Mapping[str, object]:
    """The server's certificate as the client sees it. Raises: ssl.SSLCertVerificationError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True))
    for _ in range(8):  # messages of a handshake: four are usual
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[0].getpeercert() or {"notAfter": "Dec 31 23:59:59 9999 GMT"}


def _stamps(settings: Settings) -> tuple[Stamp | None, ...]:
    """What shows that a file was replaced; None for one that is missing or not wanted."""
    return tuple(_stamp(path) for path in (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file))


def _stamp(path: Path | None) -> Stamp | None:
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def feed_protocol(protocol: Any, data: bytes) -> None:
    """Gives bytes to a buffered protocol (as asyncio.BufferedProtocol, but uvloop's is no subclass) as if they had just come."""
    while data:
        room = protocol.get_buffer(len(data))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
