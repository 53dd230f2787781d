"""TLS between nodes: both ends show a certificate of the cluster's authority, and payloads need no digest of their own then."""

from __future__ import annotations

import datetime
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from cmdlog.cluster.transport.peer_network import Endpoint
from cmdlog.cluster.transport.peer_tls import BadPeerCertificate, PeerTls, make_peer_tls
from cmdlog.raft.wire.secure_frames import Seal
from tests.cluster.transport.netkit import ONE, QUICK, TWO, appended, joined, make_node, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow


def tls_files(folder: Path) -> dict[str, Path]:
    """A certificate, its key and its authority."""
    folder.mkdir()
    authority, paths = trustme.CA(), {name: folder / f"{name}.pem" for name in ("certificate", "key", "authority")}
    issued = authority.issue_cert("node.example")
    issued.private_key_pem.write_to_path(paths["key"])
    paths["certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(paths["authority"])
    return paths


def issued(
    folder: Path, authority: trustme.CA, *trusted: trustme.CA, name: str = "node.example", expired: bool = False
) -> PeerTls:
    """TLS of a node whose certificate is of that authority, and that trusts these, or its own."""
    folder.mkdir()
    paths = {name: folder / f"{name}.pem" for name in ("certificate", "key", "authority")}
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    leaf = authority.issue_cert(name, not_before=now - 2 * day, not_after=now - day if expired else now + day)
    leaf.private_key_pem.write_to_path(paths["key"])
    paths["certificate"].write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    paths["authority"].write_bytes(b"".join(each.cert_pem.bytes() for each in trusted or (authority,)))
    return make_peer_tls(**paths)


def is_hung_up_on(sock: socket.socket) -> bool:
    """Whether the other end closes, with or without a reason."""
    try:
        return sock.recv(1) == b""
    except OSError:
        return True


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> PeerTls:
    """Of the cluster."""
    return make_peer_tls(**tls_files(tmp_path_factory.mktemp("tls") / "ours"))


def test_nodes_speak_over_tls(tmp_path: Path, tls: PeerTls) -> None:
    """The seal covers heads alone, since TLS protects the rest; large messages come whole."""
    with joined(tmp_path, endpoint=Endpoint(tls=tls)) as (one, two):
        assert Endpoint(tls=tls).seal is Seal.HEADS
        assert Endpoint().seal is Seal.WHOLE
        one.network.send([appended(ONE, TWO, 1, 3 << 20), appended(ONE, TWO, 2)])
        wait_for(lambda: two.handler.indexes_of(ONE) == [1, 2])


def test_a_caller_without_a_certificate_is_refused(tmp_path: Path, tls: PeerTls) -> None:
    """And so is one that speaks no TLS at all."""
    one = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls))
    two = make_node(tmp_path, 2)
    bare = ssl.create_default_context()
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.peer(TWO).last_error and two.peer(ONE).last_error)
        with socket.create_connection(one.address, timeout=PATIENCE_S) as plain, bare.wrap_socket(plain) as wrapped:
            assert is_hung_up_on(wrapped)
        assert one.book.records == {}


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, tls: PeerTls) -> None:
    """By both ends."""
    foreign = make_peer_tls(**tls_files(tmp_path / "foreign"))
    one, two = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls)), make_node(tmp_path, 2, endpoint=Endpoint(tls=foreign))
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: "certificate" in one.peer(TWO).last_error.lower())
        wait_for(lambda: "certificate" in two.peer(ONE).last_error.lower())
        assert one.book.records == two.book.records == {}


def test_an_expired_certificate_is_refused_as_such(tmp_path: Path) -> None:
    """The end that sees it says so; the one that has it is closed after its own handshake, and names what may be."""
    authority = trustme.CA()
    good, old = issued(tmp_path / "good", authority), issued(tmp_path / "old", authority, expired=True)
    one, two = make_node(tmp_path, 1, endpoint=Endpoint(tls=good)), make_node(tmp_path, 2, endpoint=Endpoint(tls=old))
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: "certificate has expired" in one.peer(TWO).last_error)
        wait_for(lambda: "our certificate, which may have expired" in two.peer(ONE).last_error)
        assert one.book.records == two.book.records == {}


def test_names_do_not_count_and_authorities_may_change(tmp_path: Path) -> None:
    """In the middle of a change every node trusts both, and some have a certificate of the new one."""
    former, new = trustme.CA(), trustme.CA()
    first = Endpoint(tls=issued(tmp_path / "first", former, former, new, name="another.example"))
    second = Endpoint(tls=issued(tmp_path / "second", new, former, new, name="10.0.0.9"))
    one, two = make_node(tmp_path, 1, endpoint=first), make_node(tmp_path, 2, endpoint=second)
    with running(one, two):
        one.network.set_peers({TWO: two.address})
        two.network.set_peers({ONE: one.address})
        wait_for(lambda: one.book.records and two.book.records)


def test_a_caller_that_never_begins_tls_is_hung_up_on(tmp_path: Path, tls: PeerTls) -> None:
    """It counts as a stranger from the first moment."""
    one = make_node(tmp_path, 1, endpoint=Endpoint(tls=tls), settings=replace(QUICK, hello_s=0.3))
    with running(one), socket.create_connection(one.address, timeout=PATIENCE_S) as stranger:
        assert stranger.recv(1) == b""
        wait_for(lambda: one.network.status().strangers == 0)


@pytest.mark.parametrize("missing", ["certificate", "key", "authority"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, missing: str) -> None:
    """One that is missing, and one with something else in it."""
    files = tls_files(tmp_path / "files")
    with pytest.raises(BadPeerCertificate, match="absent"):
        make_peer_tls(**{**files, missing: tmp_path / "absent"})
    files[missing].write_text("nothing of the kind")
    with pytest.raises(BadPeerCertificate, match=missing):
        make_peer_tls(**files)
