"""Bytes into messages: the gate that everything from a peer passes once, after its frame was found authentic (`codec`).

One rule: no length, count or number from the wire is used before it is compared with the bytes that are there and with a named
limit, so a frame never allocates more than a small multiple of its own size. What is left out is counted, never raised: a peer's
impossible message must not stop the others of its frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from io import BytesIO
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

import google_crc32c

from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.errors import BadConfiguration
from cmdlog.raft.messages import (
    ENTRY_KINDS,
    NO_TERM,
    Append,
    AppendReply,
    Bundle,
    Campaign,
    Entries,
    Executed,
    Fitness,
    HeartbeatBundle,
    HeartbeatReplyBundle,
    InstallSnapshot,
    Message,
    MessageKind,
    SnapshotDescriptor,
)
from cmdlog.raft.wire.layout import (
    COLUMN_MAX,
    COLUMNS,
    ENTRIES_MAX,
    FIELD,
    FIXED,
    FIXED_FIELDS,
    HEAD,
    MESSAGES_MAX,
    NUMBER_MAX,
    PLAIN,
    RUN,
    UINT32,
    Addressed,
    BadFrame,
    FrameFault,
    Malformed,
    Tag,
    bulk_digest,
    unpack_column,
)
from cmdlog.wal.ids import Term


class Decoder:
    """Decodes what one peer sends to this node. What is refused is counted in `faults`."""

    __slots__ = ("_digest_key", "_receiver", "_sender", "faults")

    def __init__(self, *, sender: NodeId, receiver: NodeId, digest_key: bytes | None) -> None:
        self._sender, self._receiver, self._digest_key = sender, receiver, digest_key
        self.faults: dict[FrameFault, int] = dict.fromkeys(FrameFault, 0)

    def decode(self, data: bytes, *, at: int, end: int, bulk_at: int) -> list[Addressed]:
        """The messages of an authentic frame, whose meta is data[at:end]. Impossible ones and those of unknown kinds are left out
        and counted. Raises: BadFrame when the parts do not add up or the bulk is damaged or forged.
        """
        messages: list[Addressed] = []
        size, sender, receiver, entries = len(data), self._sender, self._receiver, 0
        # Parts that do not add up refuse the frame; a kind that is not known, or an impossible message, is skipped and counted.
        while at < end:
            if len(messages) == MESSAGES_MAX:
                raise BadFrame(FrameFault.LENGTH, f"more than {MESSAGES_MAX} messages")
            fixed_at = at + _HEAD_BYTES
            if fixed_at > end:
                raise BadFrame(FrameFault.LENGTH, f"{end - at} bytes left for the head of a message")
            meta_bytes, bulk_bytes, bulk_crc, kind, group, term = _unpack_head(data, at)
            at, low, bulk_at = at + meta_bytes, bulk_at, bulk_at + bulk_bytes
            if not fixed_at <= at <= end or bulk_at > size:
                raise BadFrame(FrameFault.LENGTH, f"message of {meta_bytes} and {bulk_bytes} bytes does not fit")
            if bulk_bytes and _crc32c(data[low:bulk_at]) != bulk_crc:
                raise BadFrame(FrameFault.CHECKSUM, f"payloads of {bulk_bytes} bytes")
            form = _FORMS.get(kind)
            if form is None:
                self.faults[FrameFault.UNKNOWN_KIND] += 1
                continue
            fixed_bytes, unpack_fixed, make = form
            try:
                fields_at = fixed_at + fixed_bytes
                if fields_at > at:
                    raise Malformed
                fixed = unpack_fixed(data, fixed_at)
                entries += (count := fixed[-1] if kind == _APPEND else 0)
                if term > NUMBER_MAX or (fixed and max(fixed) > NUMBER_MAX) or (count and entries > ENTRIES_MAX):
                    raise Malformed
                fields = _fields(data, fields_at, at) if fields_at < at else _NO_FIELDS
                if self._digest_key is not None and bulk_bytes:
                    self._check_digest(fields, data[low:bulk_at])
                messages.append((group, make(sender, receiver, term, fixed, (fields, data, low, bulk_at))))
            except Malformed:
                self.faults[FrameFault.MALFORMED] += 1
        if bulk_at != size:
            raise BadFrame(FrameFault.LENGTH, f"{size - bulk_at} bytes after the last payload")
        return messages

    def _check_digest(self, fields: Mapping[int, bytes], bulk: bytes) -> None:
        assert self._digest_key is not None
        if not compare_digest(fields.get(Tag.DIGEST, b""), bulk_digest(bulk, self._digest_key)):
            raise BadFrame(FrameFault.MAC, f"payloads of {len(bulk)} bytes")


_Rest = tuple[Mapping[int, bytes], bytes, int, int]  # the fields, the whole frame, and where in it the payloads are
_Maker = Callable[[NodeId, NodeId, Term, Any, _Rest], Message | Bundle]  # sender, receiver, term, fixed part, the rest
_Form = tuple[int, Callable[[bytes, int], tuple[int, ...]], _Maker]  # bytes of the fixed part, what reads it, what it makes
_HEAD_BYTES: Final = HEAD.size
_unpack_head: Final = HEAD.unpack_from
_crc32c: Final = google_crc32c.value
_APPEND: Final = MessageKind.APPEND.value  # the last of its fixed part is a count of entries
_NO_FIELDS: Final[Mapping[int, bytes]] = MappingProxyType({})


def _fields(data: bytes, at: int, end: int) -> dict[int, bytes]:
    """The tagged fields, known or not. Raises: Malformed."""
    fields: dict[int, bytes] = {}
    while at < end:
        if end - at < FIELD.size:
            raise Malformed
        tag, size = FIELD.unpack_from(data, at)
        at += FIELD.size
        if size > end - at or tag in fields:
            raise Malformed
        fields[tag] = data[at : at + size]
        at += size
    return fields


def _required(fields: Mapping[int, bytes], tag: Tag) -> bytes:
    if (content := fields.get(tag)) is None:
        raise Malformed
    return content


def _flag(value: int) -> bool:
    if value > 1:
        raise Malformed
    return value == 1


def _campaign(value: int) -> Campaign:
    if (campaign := _CAMPAIGNS.get(value)) is None:
        raise Malformed
    return campaign


_CAMPAIGNS: Final[dict[int, Campaign]] = {campaign.value: campaign for campaign in Campaign}


def _payloads(count: int, rest: _Rest) -> list[bytes]:
    """Cuts the bulk. Without sizes all payloads are of one size."""
    fields, data, low, high = rest
    if count == 1 and Tag.SIZES not in fields:
        return [data[low:high]]
    stream = BytesIO(data)  # shares the bytes; its `read` takes a third of the time of a slice
    stream.seek(low)
    return list(map(stream.read, _sizes(count, high - low, fields)))


def _sizes(count: int, total: int, fields: Mapping[int, bytes]) -> Iterable[int]:
    raw = fields.get(Tag.SIZES)
    if raw is None:
        size, over = divmod(total, count) if count else (0, total)
        if over:
            raise Malformed
        return repeat(size, count)
    sizes = unpack_column(UINT32, raw, ENTRIES_MAX)
    if len(sizes) != count or sum(sizes) != total:
        raise Malformed
    return sizes


def _append(sender: NodeId, receiver: NodeId, term: Term, fixed: Any, rest: _Rest) -> Append:
    first, prev_term, commit, entries_term, count = fixed
    if not first:
        raise Malformed
    terms, kinds, fields = [entries_term] * count, bytes(count), rest[0]
    if fields:
        if (runs := fields.get(Tag.TERM_RUNS)) is not None:
            terms = _terms(runs, count)
        kinds = fields.get(Tag.KINDS, kinds)
        if len(kinds) != count or kinds.strip(_ENTRY_KINDS):
            raise Malformed
    entries = Entries(first, terms, kinds, _payloads(count, rest), rest[3] - rest[2])
    return Append(sender, receiver, term, prev_term, commit, entries)


_ENTRY_KINDS: Final = bytes(ENTRY_KINDS)


def _terms(runs: bytes, count: int) -> list[Term]:
    if len(runs) % RUN.size:
        raise Malformed
    terms: list[Term] = []
    for length, term in RUN.iter_unpack(runs):
        if not 0 < length <= count - len(terms) or term > NUMBER_MAX:
            raise Malformed
        terms += [term] * length
    if len(terms) != count:
        raise Malformed
    return terms


def _install_snapshot(sender: NodeId, receiver: NodeId, term: Term, fixed: Any, rest: _Rest) -> InstallSnapshot:
    index, snapshot_term = fixed
    try:
        configuration = Configuration.from_bytes(_required(rest[0], Tag.CONFIGURATION))
    except BadConfiguration:
        raise Malformed from None
    return InstallSnapshot(sender, receiver, term, SnapshotDescriptor(index, snapshot_term, configuration))


def _append_reply(sender: NodeId, receiver: NodeId, term: Term, fixed: Any, _: _Rest) -> AppendReply:
    index, rejected, hint_index, hint_term = fixed
    if rejected > 1:
        raise Malformed
    return AppendReply(sender, receiver, term, index, rejected == 1, hint_index, hint_term)


_BUNDLES: Final = (HeartbeatBundle, HeartbeatReplyBundle)
_OF_NODES: Final = (Executed, Fitness)
_READERS: Final[dict[str, Callable[[int], Any]]] = {"campaign": _campaign, "granted": _flag}


def _plain(made: Any) -> _Maker:
    """Makes messages by the tables of the layout. A bundle has no term; that of what else belongs to no group is 0."""
    readers = [(name, _READERS.get(name, int)) for name, _ in FIXED_FIELDS[made.kind]]
    columns, has_term, is_of_node = COLUMNS.get(made.kind, ()), made not in _BUNDLES, made in _OF_NODES

    def make(sender: NodeId, receiver: NodeId, term: Term, fixed: Any, rest: _Rest) -> Any:
        said: dict[str, object] = {name: read(number) for (name, read), number in zip(readers, fixed, strict=True)}
        if has_term:
            said["term"] = NO_TERM if is_of_node else term
        count = -1  # of the numbers of each column
        for tag, name, code, is_bounded in columns:
            numbers = unpack_column(code, _required(rest[0], tag), COLUMN_MAX)
            if count not in (-1, len(numbers)) or (is_bounded and numbers and max(numbers) > NUMBER_MAX):
                raise Malformed
            said[name], count = numbers if tag is Tag.CONTEXTS else list(numbers), len(numbers)
        return made(sender=sender, receiver=receiver, **said)

    return make


_MAKERS: Final[dict[MessageKind, _Maker]] = {
    **{made.kind: _plain(made) for made in PLAIN},
    MessageKind.APPEND: _append,
    MessageKind.APPEND_REPLY: _append_reply,
    MessageKind.INSTALL_SNAPSHOT: _install_snapshot,
}
_FORMS: Final[dict[int, _Form]] = {
    kind.value: (FIXED[kind].size, FIXED[kind].unpack_from, make) for kind, make in _MAKERS.items()
}
