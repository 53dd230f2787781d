"""What both ends of a copy say: it comes as it was, and whatever is not what it should be is refused at the gate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyFile,
    CopyManifest,
    CopyPlace,
    CopyRefusal,
    CopyRefused,
    CopyRequest,
    CopyStanding,
    CopyWait,
    LeaderAddress,
    LogShape,
    RefusalCode,
    RollAddress,
    decode_value,
    encode_value,
)
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.wal.group_state import GroupState, LoggedCatalog, Stated
from tests.cluster.copying.copykit import LIFE, REQUEST, WISH, admitted

STANDING = CopyStanding(
    node=1, begun=True, leads=False, leader=LeaderAddress(3, "h3:7"), member=admitted(former=(b"old life",)),
    refusal=CopyRefusal("replace_needed", "it holds another's place"), roll=(RollAddress(1, "h1:7", "http://h1"),),
)  # fmt: skip
MANIFEST = CopyManifest(
    copy=bytes(range(16)), source=1,
    groups={
        0: GroupState(3, None, 90, 3, 90, 3, 97, 5, 5, [Stated(1, 1, {"voters": [1]})]),
        1022: GroupState(4, None, 7, 4, 7, 4, catalogs={2: LoggedCatalog(3, {"version": 2}, 1)}, members={}),
    },
    faults=(b"record",), log=LogShape(1 << 20, 8, 1 << 16),
    files=(
        CopyFile(0, 0, "p0000-0000000000000090/image.sqlite", 5, 9),
        CopyFile(1, 0, "p0000-0000000000000090-2/manifest.json", 0, 0),
    ),
    partitions={0: CopyPlace(90, 3, 97, 5)}, rate=64 << 20,
    peers={NodeId(1): PeerRecord(b"life-one", start=ProcessStart(4, b"process4")), NodeId(3): PeerRecord(b"life-two")},
)  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        WISH, STANDING, REQUEST, CopyRequest(2, LIFE, {0: (3, 17), 1022: (4, 2)}), MANIFEST, CopyWait(1.5, "snapshots"),
        CopyEnd(bytes(16), CopyEnding.FAILED, "no room"), CopyRefusal("busy", "others copy"),
        CopyStanding(1, False, False, None, None, None, ()),
    ],
)  # fmt: skip
def test_value_comes_as_it_was(value: Any) -> None:
    """Through JSON and back."""
    assert decode_value(encode_value(value.to_json()), type(value).from_json) == value


@pytest.mark.parametrize("value", [STANDING, REQUEST, MANIFEST, CopyWait(1, ""), CopyEnd(bytes(16), CopyEnding.DONE, "")])
def test_value_without_one_of_its_parts_is_refused(value: Any) -> None:
    """Whichever is missing, or is of another type; and what is no object at all."""
    whole = value.to_json()
    for name in whole:
        without = {key: of for key, of in whole.items() if key != name}
        for body in (without, {**whole, name: object}):
            with pytest.raises(BadFrame):
                decode_value(json.dumps(body, default=lambda _: {"not": ["this"]}).encode(), type(value).from_json)
    for text in (b"", b"[]", b"17", b"{", b'"text"', b"\xff"):
        with pytest.raises(BadFrame):
            decode_value(text, type(value).from_json)


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd", "p0000-0000000000000090/../../x", "/p0000-0000000000000090/image.sqlite",
        "p0000-0000000000000090/image.sqlite/..", "p0000-0000000000000090/other", "p0000-0000000000000090", "",
        "p0000-0000000000000090/image.sqlite\n",
    ],
)  # fmt: skip
def test_name_that_leads_elsewhere_is_refused(name: str) -> None:
    """A recipient writes files by the names that a source gives."""
    value = MANIFEST.to_json()
    value["files"][0]["name"] = name
    with pytest.raises(BadFrame):
        decode_value(encode_value(value), CopyManifest.from_json)


@pytest.mark.parametrize(
    "change", [{"file": 1}, {"size": -1}, {"crc32c": True}, {"name": "p0000-0000000000000090-2/manifest.json"}]
)
def test_files_are_numbered_and_named_once(change: dict[str, Any]) -> None:
    """A chunk is asked for by the file's number."""
    value = MANIFEST.to_json()
    value["files"][0] |= change
    with pytest.raises(BadFrame):
        decode_value(encode_value(value), CopyManifest.from_json)


@pytest.mark.parametrize(
    "change",
    [
        {"segment_bytes": 1 << 40}, {"segment_bytes": 0}, {"segment_bytes": (1 << 20) + 1}, {"reserve_bytes": 1 << 20},
        {"reserve_bytes": -1}, {"segments": 1 << 40}, {"segments": 1}, {"segments": 8.0}, {"segments": True},
    ],
)  # fmt: skip
def test_log_that_no_directory_can_have_is_refused(change: dict[str, Any]) -> None:
    """Before anything is copied: the recipient's log is made with these sizes."""
    value = MANIFEST.to_json()
    value["log"] |= change
    with pytest.raises(BadFrame, match="CopyManifest"):
        decode_value(encode_value(value), CopyManifest.from_json)


@pytest.mark.parametrize("number", [-1, 1.5, 1e300, 1 << 63, "1" * 5000, None])
def test_number_that_has_no_place_in_a_log_is_refused(number: object) -> None:
    """Places, terms and sizes become fields of records."""
    value = MANIFEST.to_json()
    for part in (value["partitions"]["0"], value["groups"]["0"], value["files"][0]):
        for name in part.keys() & {"index", "term", "txn_id", "last_txn", "commit", "size", "file"}:
            kept, part[name] = part[name], number
            with pytest.raises(BadFrame):
                decode_value(encode_value(value), CopyManifest.from_json)
            part[name] = kept


def test_wait_has_an_end() -> None:
    """A source that says for ever is asked again within the hour."""
    assert decode_value(b'{"after_s":1e300,"why":""}', CopyWait.from_json) == CopyWait(3600.0, "")


def test_incarnations_have_their_length() -> None:
    """Of a wish and of a request."""
    with pytest.raises(BadFrame):
        decode_value(encode_value({**WISH.to_json(), "incarnation": "00"}), CopyWish.from_json)
    with pytest.raises(BadFrame):
        decode_value(encode_value({**REQUEST.to_json(), "incarnation": "00"}), CopyRequest.from_json)


def test_size_of_a_copy_is_that_of_its_files() -> None:
    """For progress."""
    assert MANIFEST.size == 5


def test_refusal_is_an_error_with_its_code() -> None:
    """For machines, and for people with what to look at."""
    refused = CopyRefusal(RefusalCode.BUSY, "others copy").as_error()
    assert isinstance(refused, CopyRefused)
    assert (refused.code, refused.kind, refused.why) == ("busy", "busy", "others copy")
    assert "others copy" in str(refused)
    assert refused.hint
