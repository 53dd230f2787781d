"""The files that every node gets a copy of: the cluster as it was made, and its secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cluster.cluster_file import (
    FORMAT,
    NODES_MAX,
    BadClusterFile,
    BadSecret,
    ClusterFile,
    MemberAddress,
    new_secret_text,
    parse_address,
    read_secret,
)

SHAPE = {"partitions": 4, "slots": [[0, 4095, 0]], "key_policy": {"window_s": 60}}
FILE = ClusterFile(
    bytes(range(16)),
    "shop",
    (
        MemberAddress(1, ("10.0.0.1", 7642), "http://10.0.0.1:8642"),
        MemberAddress(2, ("db-2.example", 65535), "https://db-2.example"),
        MemberAddress(7, ("fd00::7", 1), "http://[fd00::7]:8642"),
    ),
    SHAPE,
    "9f" * 16,
)


def member(node: Any, peer: Any = None) -> dict[str, Any]:
    """An entry of "members"."""
    return {"node": node, "peer": peer or f"10.0.0.{node}:7642", "client": f"http://10.0.0.{node}:8642"}


def written(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A file in which something was changed by hand."""
    value = FILE.to_json()
    change(value)
    path.write_bytes(orjson.dumps(value))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All fields, names and IPv6 addresses among them."""
    FILE.save(tmp_path / "cluster.json")
    assert ClusterFile.load(tmp_path / "cluster.json") == FILE
    assert FILE.nodes == (1, 2, 7)


def test_the_file_has_these_fields(tmp_path: Path) -> None:
    """It is copied between nodes that may run different versions, so its form is for ever."""
    FILE.save(tmp_path / "cluster.json")
    text = (tmp_path / "cluster.json").read_text()
    assert text.endswith("}\n")
    value = orjson.loads(text)
    assert value["members"][0] == {"node": 1, "peer": "10.0.0.1:7642", "client": "http://10.0.0.1:8642"}
    assert value == {
        "format": 1,
        "cluster_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "database": "shop",
        "members": value["members"],
        "shape": SHAPE,
        "genesis": "9f" * 16,
    }


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    """It may be that of a running cluster."""
    path = tmp_path / "cluster.json"
    path.write_text("other")
    with pytest.raises(FileExistsError):
        FILE.save(path)
    assert path.read_text() == "other"


def test_members_are_ascending_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    """So that all nodes see the same cluster."""
    path = written(tmp_path / "cluster.json", lambda value: value["members"].reverse())
    assert ClusterFile.load(path) == FILE


def test_a_member_is_found_by_its_number() -> None:
    """Another number is refused with those that there are."""
    assert FILE.member(2).peer == ("db-2.example", 65535)
    with pytest.raises(BadClusterFile, match="node 3 is not a member: the cluster file lists 1, 2, 7"):
        FILE.member(3)


def test_a_newer_format_is_named_as_such(tmp_path: Path) -> None:
    """Not as damage: its other fields may have other forms."""
    path = written(tmp_path / "cluster.json", lambda value: value.update(format=FORMAT + 1, members={"1": "elsewhere"}))
    with pytest.raises(BadClusterFile, match="has format 2, and this program reads 1"):
        ClusterFile.load(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The path and what the system says."""
    with pytest.raises(BadClusterFile, match=r"cannot read .*cluster\.json: No such file"):
        ClusterFile.load(tmp_path / "cluster.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'"text"', b"{}", b"\xff"])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    """With the path."""
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(BadClusterFile, match=r"cluster\.json is no cluster file"):
        ClusterFile.load(path)


@pytest.mark.parametrize("name", ["format", "cluster_id", "database", "members", "shape", "genesis"])
def test_every_field_is_needed(tmp_path: Path, name: str) -> None:
    """And the missing one is named."""
    path = written(tmp_path / "cluster.json", lambda value: value.pop(name))
    with pytest.raises(BadClusterFile, match=name):
        ClusterFile.load(path)


@pytest.mark.parametrize(
    "members",
    [
        [],
        [member(1), member(2), member(1, "10.0.0.9:7642")],
        [member(number) for number in range(1, NODES_MAX + 2)],
        [member(0), member(1)],
        [member(-1)],
        [member("one")],
        [{"node": 1, "client": "http://10.0.0.1:8642"}],
        [member(1, 7642)],
        [member(1, "10.0.0.1")],
        "members",
        7,
    ],
    ids=["none", "twice", "too many", "zero", "negative", "no number", "no peer", "port alone", "no port", "text", "number"],
)
def test_members_that_cannot_be_are_refused(tmp_path: Path, members: Any) -> None:
    """A node that is listed twice would be two votes of one disk."""
    path = written(tmp_path / "cluster.json", lambda value: value.update(members=members))
    with pytest.raises(BadClusterFile, match="is no cluster file"):
        ClusterFile.load(path)


def test_two_nodes_at_one_address_are_refused(tmp_path: Path) -> None:
    """A slip of an operator who copies a line; the number of the other node would never answer."""
    path = written(tmp_path / "cluster.json", lambda value: value.update(members=[member(1), member(2, "10.0.0.1:7642")]))
    with pytest.raises(BadClusterFile, match="have the same peer address"):
        ClusterFile.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cluster_id", "shop"), ("cluster_id", 7), ("shape", {}), ("shape", None), ("shape", {"partitions": 0})],
)
def test_fields_of_another_form_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    """Before anything is made for them."""
    path = written(tmp_path / "cluster.json", lambda file: file.update({name: value}))
    with pytest.raises(BadClusterFile, match="is no cluster file"):
        ClusterFile.load(path)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7642", ("10.0.0.1", 7642)),
        ("db.example:1", ("db.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:7642", ("::1", 7642)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    """The port comes after the last colon."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":7642", "[]:7642", "host:0", "host:65536", "host:-1", "host:http", "host:7²", "host: 1"]
)
def test_a_bad_address_is_refused_with_its_text(text: str) -> None:
    """What the operator wrote is in the message."""
    with pytest.raises(ValueError, match=r"is no host:port") as raised:
        parse_address(text)
    assert repr(text) in str(raised.value)


def secret_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    """A file with this mode, whatever the umask is."""
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"00ff" * 8 + b"\n", b"\x00\xff" * 8),
        (b"ABcd" * 8, b"\xab\xcd" * 8),
        (b"00ff" * 32 + b"\r\n", b"\x00\xff" * 32),
        (b"sixteen bytes!!!", b"sixteen bytes!!!"),
        (b"sixteen bytes!!!\n", b"sixteen bytes!!!"),
        (b"\x00" * 64, b"\x00" * 64),
        (b"0123456789abcdef", b"0123456789abcdef"),  # too short for hexadecimal: 16 bytes as they are
        (b"0123456789abcdef0123456789abcdefx", b"0123456789abcdef0123456789abcdefx"),
    ],
)
def test_secrets_are_read(tmp_path: Path, content: bytes, key: bytes) -> None:
    """Hexadecimal where it can be meant so, raw bytes where not; a line end does not count."""
    assert read_secret(secret_file(tmp_path, content)).key == key


def test_a_new_secret_can_be_read(tmp_path: Path) -> None:
    """And no two are alike."""
    text = new_secret_text()
    assert len(read_secret(secret_file(tmp_path, text.encode())).key) == 32
    assert text != new_secret_text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever holds the secret is a node of the cluster; the error says what to do."""
    with pytest.raises(BadSecret, match=f"mode {mode:03o}") as refused:
        read_secret(secret_file(tmp_path, b"x" * 32, mode))
    assert "chmod 600" in refused.value.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "0 bytes"), (b"short\n", "5 bytes"), (b"x" * 65, "65 bytes"), (b"ab" * 65, "65 bytes"), (b"z" * 9999, "more than")],
)
def test_a_secret_of_another_size_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """A short one can be guessed; a long one is no key."""
    with pytest.raises(BadSecret, match=said):
        read_secret(secret_file(tmp_path, content))


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    """And says how to make one."""
    with pytest.raises(BadSecret, match="absent") as refused:
        read_secret(tmp_path / "absent")
    assert "openssl rand" in refused.value.hint
