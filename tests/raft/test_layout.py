"""WIRE.md against the codec, and the golden frames of each version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import calcsize

import pytest

import cmdlog.raft
from cmdlog.raft.messages import MessageKind
from cmdlog.raft.wire.control_frames import SAYING_FIELDS, ControlKind, RefusalReason
from cmdlog.raft.wire.layout import (
    ENTRIES_MAX,
    FIELD,
    FIXED_FIELDS,
    HEAD_FIELDS,
    MESSAGES_MAX,
    NO_GROUP,
    Addressed,
    FrameFault,
    Tag,
)
from cmdlog.raft.wire.secure_frames import (
    EARLIER_MAX,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    HELLO_FIELDS,
    LENGTH_FIELDS,
    LINK_FIELDS,
    ORDER_FIELDS,
    PROCESS_BYTES,
    FrameCutter,
    Opener,
)
from tests.golden.write_raft_v1 import PATH
from tests.raft.wirekit import BEAT, GROUP, LINK_WHOLE, MESSAGES, SECRET, append, one_frame, opened

WIRE = Path(cmdlog.raft.__file__).with_name("WIRE.md").read_text(encoding="utf-8")
EXAMPLE: list[Addressed] = [BEAT, (GROUP, append([b"ping", b"pong!"]))]


def section(title: str) -> str:
    """What stands below a heading."""
    text = re.split(rf"^## {re.escape(title)}$", WIRE, flags=re.MULTILINE)[1]
    return re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]


def placed(fields: Sequence[tuple[str, str]]) -> Iterator[tuple[int, int, str]]:
    """Offset, size and name of each field."""
    offset = 0
    for name, code in fields:
        yield offset, calcsize("<" + code), name
        offset += calcsize("<" + code)


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Hello", (*LENGTH_FIELDS, *HELLO_FIELDS)),
        ("Control frame", (*LENGTH_FIELDS, *LINK_FIELDS, *SAYING_FIELDS)),
        ("Frame", (*LENGTH_FIELDS, *LINK_FIELDS, *ORDER_FIELDS)),
        ("Message", HEAD_FIELDS),
    ],
)
def test_every_layout_is_in_the_document_as_it_is(title: str, fields: Sequence[tuple[str, str]]) -> None:
    """Offsets, sizes and names of the document are those of the codec."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|$", section(title), flags=re.MULTILINE)
    assert [(int(offset), int(size), name) for offset, size, name in rows] == list(placed(fields))


def test_the_document_has_every_kind() -> None:
    """Numbers, names and fixed parts are those of the code."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| ?(.*?) ?\|", section("Message"), flags=re.MULTILINE)
    expected = [
        (str(kind.value), kind.name, ", ".join(f"{at} {size} {name}" for at, size, name in placed(fields)))
        for kind, fields in FIXED_FIELDS.items()
    ]
    assert rows == expected
    assert list(FIXED_FIELDS) == list(MessageKind)


def test_the_document_has_every_control_kind_and_reason() -> None:
    """Numbers and names are those of the code."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", section("Control frame"), flags=re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [
        *((kind.value, kind.name) for kind in ControlKind),
        *((reason.value, reason.name) for reason in RefusalReason),
    ]


def test_the_document_has_every_tag_and_fault() -> None:
    """Numbers and names are those of the code."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", section("Field"), flags=re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [(tag.value, tag.name) for tag in Tag]
    assert FIELD.size == 8
    assert [fault.value for fault in FrameFault if f"`{fault.value}`" not in section("A connection")] == []


def test_the_document_has_the_limits() -> None:
    """Those that it tells in words."""
    assert f"{FRAME_BYTES_MAX >> 20} MiB and {MESSAGES_MAX:,} messages" in section("Frame")
    assert f"{ENTRIES_MAX:,}\nentries in all" in section("Frame")
    assert f"up to {HELLO_BYTES_MAX} bytes" in section("Hello")
    assert f"up to {EARLIER_MAX} times {PROCESS_BYTES} bytes" in section("Hello")
    assert f"`group` is {NO_GROUP}" in section("Message")


def test_each_kind_has_the_fields_that_the_document_gives_it() -> None:
    """No message of the tests has another one."""
    allowed = dict(re.findall(r"^\| \d+ \| ([A-Z_]+) \|.*\| ?([A-Z_ ]*?) ?\|$", section("Message"), flags=re.MULTILINE))
    seen: dict[str, set[str]] = {kind.name: set() for kind in MessageKind}
    encoder = SECRET.encoder(LINK_WHOLE.seal)
    for group, message in MESSAGES:
        meta, _ = encoder.encode(group, message)
        at = 28 + sum(size for _, size, _ in placed(FIXED_FIELDS[message.kind]))
        while at < len(meta):
            tag, size = FIELD.unpack_from(meta, at)
            seen[message.kind.name].add(Tag(tag).name)
            at += FIELD.size + size
    assert seen == {name: set(fields.split()) for name, fields in allowed.items()}


def test_the_hex_dump_is_a_frame() -> None:
    """The worked example is what the codec makes of its messages, and opens to them."""
    dump = re.findall(r"```hexdump\n(.*?)```", section("Example"), flags=re.DOTALL)[0]
    raw = b"".join(bytes.fromhex(line[4:]) for line in dump.splitlines())
    assert raw == one_frame(EXAMPLE, LINK_WHOLE)
    assert opened(raw, LINK_WHOLE) == (EXAMPLE, {})


def test_golden_frames_of_version_1_are_read() -> None:
    """What a node of version 1 says is understood for ever: the first messages of the list are in the committed file."""
    cutter, opener = FrameCutter(), Opener(LINK_WHOLE, SECRET)
    cutter.bytes_max = FRAME_BYTES_MAX
    found = [message for frame in cutter.feed(PATH.read_bytes()) for message in opener.open(frame)]
    assert len(found) >= 21
    assert found == MESSAGES[: len(found)]
