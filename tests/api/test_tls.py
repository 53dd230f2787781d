"""TLS: who is let in, what is refused at start and how it is explained, certificates that change and clients that dawdle."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from cmdlog.api.connections import tls as tls_module
from cmdlog.api.connections.tls import CHECK_EVERY_S, Certificate, make_context, validity
from cmdlog.node.settings import BadSetting, Settings
from tests.api.echo import Application, echoes, one_answer, post
from tests.api.served import Served, descriptors, read_all, served, status_of
from tests.waiting import PATIENCE_S, eventually

UTC = datetime.UTC
Files = dict[str, Any]  # settings by name


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whom clients and servers of these tests trust."""
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> Files:
    """The settings of a server with a certificate for localhost."""
    return write(authority.issue_cert("localhost", "127.0.0.1"), tmp_path)


def write(leaf: trustme.LeafCert, folder: Path, prefix: str = "") -> Files:
    """Certificate and key as two files, named as settings."""
    cert, key = folder / f"{prefix}cert.pem", folder / f"{prefix}key.pem"
    cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return {"tls_cert_file": cert, "tls_key_file": key}


def context_of(authority: trustme.CA, **more: Any) -> ssl.SSLContext:
    """A client that trusts it."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for name, value in more.items():
        setattr(context, name, value)
    return context


def greet(server: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A client's connection. Raises: OSError."""
    return context.wrap_socket(server.connect(), server_hostname="localhost")


# -- serving -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_served_over_tls(authority: trustme.CA, files: Files, version: ssl.TLSVersion) -> None:
    """Small and large bodies, one after another, pipelined, and to the end of the connection."""
    with served(Application(), **files) as server, greet(server, context_of(authority, maximum_version=version)) as client:
        assert client.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
        for body in (b"small", b"x" * 1_000_000):
            echoes(client, body)
        client.sendall(post("/echo", b"1") + post("/echo", b"2"))
        assert [one_answer(client)[1] for _ in range(2)] == [b"1", b"2"]
        client.sendall(post("/echo", b"last", "Connection: close\r\n"))
        assert read_all(client).endswith(b"connection: close\r\n\r\nlast")
        client.close()
        assert server.settled()


def test_application_is_told_that_it_is_https(authority: trustme.CA, files: Files) -> None:
    """The scheme is that of the connection."""
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["scheme"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    with served(application, **files) as server, greet(server, context_of(authority)) as client:
        client.sendall(post("/"))
        assert one_answer(client)[0] == 200
    assert seen == ["https"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [post("/echo", b"x"), b"\x16\x03\x01\x00\xff" + b"\xff" * 300, b"\0" * 100], ids=["plain", "broken", "zeros"]
)
def test_whoever_speaks_no_tls_is_ended(files: Files, sent: bytes) -> None:
    """Plain HTTP and garbage on the port of TLS get no answer in clear, and are no defect."""
    application = Application()
    with served(application, **files) as server, capture_logs() as logs:
        assert status_of(server.ask(sent)) == 0
        assert server.settled()
        assert server.registry.counts["tls_handshake"] == 1
    assert application.begun == []
    assert logs == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_tls_is_refused(authority: trustme.CA, files: Files) -> None:
    """Nothing below TLS 1.2."""
    old = context_of(authority, minimum_version=ssl.TLSVersion.TLSv1_1, maximum_version=ssl.TLSVersion.TLSv1_1)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with served(Application(), **files) as server:
        with pytest.raises(OSError, match=r"(?i)protocol|alert|reset|EOF"):
            greet(server, old)
        assert server.settled()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["silent", "half"])
def test_handshake_has_the_deadline_of_the_head(files: Files, sent: bytes) -> None:
    """Who connects and does not finish the handshake is let go at header_timeout_s, and not before."""
    with served(Application(), header_timeout_s=300, **files) as server:
        before = descriptors()
        with server.connect() as client:
            client.sendall(sent)
            assert eventually(lambda: len(server.registry.open) == 1)
            server.pass_time(290)
            assert len(server.registry.open) == 1
            server.pass_time(20)
            assert read_all(client) == b""
        assert server.settled()
        assert eventually(lambda: descriptors() == before)


@pytest.mark.slow
def test_handshakes_that_dawdle_make_room(authority: trustme.CA, files: Files) -> None:
    """They count as connections, and are the first to go when there are too many."""
    with served(Application(), connections_max=5, **files) as server, greet(server, context_of(authority)) as good:
        echoes(good, b"x")
        idle = [server.connect() for _ in range(30)]
        assert eventually(lambda: server.registry.counts["evicted"] == 26)
        echoes(good, b"still")
        with greet(server, context_of(authority)) as fresh:
            echoes(fresh, b"served")
        for client in idle:
            client.close()


# -- certificates of clients -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tls_client", ["required", "optional"])
def test_certificates_of_clients(authority: trustme.CA, files: Files, tmp_path: Path, tls_client: str) -> None:
    """With tls_ca_file a client must, or may, show a certificate of that authority; another one never passes."""
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    for issuer, passes in ((authority, True), (None, tls_client == "optional"), (trustme.CA(), False)):
        context = context_of(authority)
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        with served(Application(), tls_ca_file=ca_file, tls_client=tls_client, **files) as server:
            try:
                with greet(server, context) as client:
                    client.sendall(post("/echo", b"let in"))
                    answered = one_answer(client) == (200, b"let in")
            except (OSError, AssertionError):  # TLS 1.3 tells a client only when it reads
                answered = False
            assert answered is passes
            assert server.settled()


# -- what is refused at start ------------------------------------------------------------------------------------------


def refused(**settings: Any) -> str:
    """The problem of these settings."""
    with pytest.raises(BadSetting) as caught:
        make_context(Settings(**settings))
    return str(caught.value)


def test_files_that_are_missing_or_none_are_named(files: Files, tmp_path: Path) -> None:
    """Each mistake names the setting and the file."""
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.write_bytes(b"nothing")
    cert, key = files["tls_cert_file"], files["tls_key_file"]
    assert refused(tls_cert_file=missing) == f"tls_cert_file: {missing} cannot be read: No such file or directory"
    assert refused(tls_cert_file=cert, tls_key_file=missing).startswith(f"tls_key_file: {missing} cannot be read")
    assert refused(tls_cert_file=tmp_path).startswith(f"tls_cert_file: {tmp_path} cannot be read")
    assert refused(tls_cert_file=empty, tls_key_file=key) == f"tls_cert_file: {empty} contains no certificate in PEM"
    assert refused(tls_cert_file=cert, tls_key_file=empty) == f"tls_key_file: {empty} contains no private key in PEM"
    assert refused(tls_cert_file=cert) == f"tls_cert_file: {cert} contains no private key in PEM"
    assert refused(tls_ca_file=empty, **files) == f"tls_ca_file: {empty} contains no certificate in PEM"
    broken = tmp_path / "broken.pem"
    broken.write_bytes(cert.read_bytes().replace(b"M", b"N"))
    assert refused(tls_cert_file=broken, tls_key_file=key).startswith(
        f"tls_cert_file: {broken} with the key in {key} cannot be used"
    )
    assert refused(tls_ca_file=broken, **files).startswith(f"tls_ca_file: {broken} cannot be used")


def test_key_of_another_certificate_is_refused(authority: trustme.CA, files: Files, tmp_path: Path) -> None:
    """A key that does not belong to the certificate is named as such."""
    other = write(authority.issue_cert("localhost"), tmp_path, "other-")["tls_key_file"]
    cert = files["tls_cert_file"]
    told = refused(tls_cert_file=cert, tls_key_file=other)
    assert told == f"tls_key_file: {other}: the private key does not belong to the certificate in {cert}"


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
def test_encrypted_key_is_refused(files: Files, tmp_path: Path, form: str) -> None:
    """A server has nobody to ask for a password: it says so and does not wait at a terminal."""
    key = serialization.load_pem_private_key(files["tls_key_file"].read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            getattr(serialization.PrivateFormat, form),
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    told = refused(tls_cert_file=files["tls_cert_file"], tls_key_file=locked)
    assert told.startswith(f"tls_key_file: {locked}: the private key is encrypted")


def test_settings_of_tls_without_a_certificate_are_refused() -> None:
    """A key or an authority alone would encrypt nothing."""
    for name in ("tls_key_file", "tls_ca_file"):
        alone: Files = {name: Path("x.pem")}
        with pytest.raises(BadSetting, match=f"{name}: needs tls_cert_file"):
            Settings(**alone)


def test_one_file_may_hold_certificate_and_key(authority: trustme.CA, tmp_path: Path) -> None:
    """As many tools write it."""
    both = tmp_path / "both.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(both))
    assert make_context(Settings(tls_cert_file=both)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_certificate_that_is_no_longer_or_not_yet_valid_is_warned_of(authority: trustme.CA, tmp_path: Path) -> None:
    """It is served, since clients decide, but the log says so; also when it ends soon."""
    now = datetime.datetime.now(UTC)
    day = datetime.timedelta(days=1)
    for not_before, not_after, told in (
        (now - 2 * day, now - day, "has expired"),
        (now + day, now + 2 * day, "is not valid yet"),
        (now - day, now + 5 * day, "expires in 5.0 days"),
        (now - day, now + 100 * day, ""),
    ):
        settings = Settings(**write(authority.issue_cert("localhost", not_before=not_before, not_after=not_after), tmp_path))
        assert validity(settings) == told
        with capture_logs() as logs:
            Certificate(settings)
        assert [line.get("problem") for line in logs] == ([told] if told else [])


# -- certificates that change ------------------------------------------------------------------------------------------


def common_name(context: ssl.SSLContext, authority: trustme.CA) -> str:
    """What a server with this context shows."""
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(PATIENCE_S)
        right.settimeout(PATIENCE_S)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(incoming, outgoing, server_side=True)
        trusting = context_of(authority, check_hostname=False)
        client_in, client_out = outgoing, incoming
        client = trusting.wrap_bio(client_in, client_out)
        for _ in range(6):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        held = client.getpeercert() or {}
    return str(dict(pair for item in held["subject"] for pair in item)["commonName"])  # type: ignore[misc]


def test_replaced_certificate_is_used_for_new_connections(authority: trustme.CA, tmp_path: Path) -> None:
    """Files that change are looked at once a second; a renewal that is half done keeps the old one, and is tried again."""
    now = [100.0]
    files = write(authority.issue_cert("localhost", common_name="first"), tmp_path)
    certificate = Certificate(Settings(**files), now=lambda: now[0])
    assert common_name(certificate.context(), authority) == "first"
    assert certificate.context() is certificate.context()
    second = write(authority.issue_cert("localhost", common_name="second"), tmp_path, "new-")
    os.replace(second["tls_cert_file"], files["tls_cert_file"])
    assert common_name(certificate.context(), authority) == "first"  # it was looked at less than a second ago
    with capture_logs() as logs:
        now[0] += CHECK_EVERY_S
        assert common_name(certificate.context(), authority) == "first"
        os.replace(second["tls_key_file"], files["tls_key_file"])
        now[0] += CHECK_EVERY_S
        assert common_name(certificate.context(), authority) == "second"
        files["tls_cert_file"].unlink()
        now[0] += CHECK_EVERY_S
        assert common_name(certificate.context(), authority) == "second"
    assert [line["event"] for line in logs] == ["certificate_not_reloaded", "certificate_reloaded", "certificate_not_reloaded"]
    assert "does not belong to" in logs[0]["problem"]


def test_failed_renewal_is_tried_again_and_told_once(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be loaded for a moment is loaded later, though nothing changes any more; the log is not filled meanwhile."""
    now = [100.0]
    certificate = Certificate(
        Settings(**write(authority.issue_cert("localhost", common_name="first"), tmp_path)), now=lambda: now[0]
    )
    files = write(authority.issue_cert("localhost", common_name="second"), tmp_path)

    def fails(_settings: Settings) -> ssl.SSLContext:
        raise BadSetting("tls_cert_file", f"{files['tls_cert_file']} cannot be read: Too many open files")

    with capture_logs() as logs:
        with monkeypatch.context() as patch:
            patch.setattr(tls_module, "make_context", fails)
            for _ in range(5):
                now[0] += CHECK_EVERY_S
                assert common_name(certificate.context(), authority) == "first"
        now[0] += CHECK_EVERY_S
        assert common_name(certificate.context(), authority) == "second"
    assert [line["event"] for line in logs] == ["certificate_not_reloaded", "certificate_reloaded"]


@pytest.mark.slow
def test_running_server_changes_its_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    """New connections see the new one; those that exist go on."""
    files = write(authority.issue_cert("localhost", common_name="first"), tmp_path)

    def shown(client: ssl.SSLSocket) -> Any:
        return dict(pair for item in (client.getpeercert() or {})["subject"] for pair in item)["commonName"]  # type: ignore[misc]

    def fresh() -> Any:
        with greet(server, context_of(authority)) as client:
            return shown(client)

    with served(Application(), **files) as server, greet(server, context_of(authority)) as old:
        assert shown(old) == "first"
        write(authority.issue_cert("localhost", common_name="second"), tmp_path)
        assert eventually(lambda: fresh() == "second")
        echoes(old, b"still")
