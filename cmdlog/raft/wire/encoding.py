"""Messages into bytes. The layout is in WIRE.md, its tables in `wire`, the way back in `decoding`, the frames in `codec`.

One rule: entries are joined and summed once. A message is cut in two: its *meta* has everything that consensus decides by, its
*bulk* is payloads, one after the other. The frame authenticates all meta, and meta has the checksum of the bulk (and a keyed
digest, where the link asks for it). So the columns and the bulk of entries are the same bytes for every follower.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import google_crc32c

from cmdlog.raft.messages import NO_TERM, Append, AppendReply, Bundle, Entries, InstallSnapshot, Message, MessageKind, value
from cmdlog.raft.wire.layout import (
    COLUMNS,
    ENTRIES_MAX,
    FIXED_FIELDS,
    KEPT_BYTES_MAX,
    PLAIN,
    RUN,
    UINT32,
    WHOLE,
    MessageTooLarge,
    Tag,
    bulk_digest,
    pack_column,
    pack_field,
)
from cmdlog.wal.ids import PartitionId


@value
class _Columns:
    """Encoded entries, the same for every receiver."""

    source: object  # kept alive, so that its identity stays its own
    fields: bytes
    bulk: bytes
    bulk_crc: int


class Encoder:
    """Encodes the messages of one node, for all its links: a leader sends the same entries to each follower."""

    __slots__ = ("_digest_key", "_kept", "_kept_bytes")

    def __init__(self, digest_key: bytes | None) -> None:
        self._digest_key = digest_key  # with one, every bulk carries its digest
        # The last entries of each group: all followers want them in the same round. Older ones are let go at once, so that their
        # memory is used again while it is in the processor's cache.
        self._kept: dict[PartitionId, _Columns] = {}
        self._kept_bytes = 0

    def encode(self, group: PartitionId, message: Message | Bundle) -> tuple[bytes, bytes]:
        """Meta and bulk. Raises: MessageTooLarge."""
        if type(message) is Append:
            return self._append(group, message)
        return _ENCODERS[type(message)](group, message), b""

    def _append(self, group: PartitionId, message: Append) -> tuple[bytes, bytes]:
        entries = message.entries
        terms = entries.terms
        if not terms:
            return _meta(MessageKind.APPEND, group, message.term, entries.first, message.prev_term, message.commit, 0, 0), b""
        columns = self._kept.get(group)
        if columns is None or columns.source is not entries:
            columns = self._keep_entries(group, entries, columns)
        fields, bulk, crc = columns.fields, columns.bulk, columns.bulk_crc
        size, term, count = _APPEND_BYTES + len(fields), message.term, len(terms)
        meta = _pack_append(
            size, len(bulk), crc, _APPEND, group, term, entries.first, message.prev_term, message.commit, terms[0], count
        )
        return (meta + fields if fields else meta), bulk

    def _columns(self, source: object, payloads: list[bytes], fields: bytes) -> _Columns:
        sizes = list(map(len, payloads))
        if len(sizes) > ENTRIES_MAX:
            raise MessageTooLarge(f"{len(sizes)} payloads in one message, at most {ENTRIES_MAX}")
        if sizes and sizes.count(sizes[0]) != len(sizes):
            fields += pack_field(Tag.SIZES, pack_column(UINT32, sizes))
        bulk = b"".join(payloads)
        if self._digest_key is not None:
            fields += pack_field(Tag.DIGEST, bulk_digest(bulk, self._digest_key))
        return _Columns(source, fields, bulk, google_crc32c.value(bulk))

    def _keep_entries(self, group: PartitionId, entries: Entries, before: _Columns | None) -> _Columns:
        columns = self._columns(entries, entries.payloads, _kinds_and_terms(entries))
        self._kept_bytes += len(columns.bulk) - (len(before.bulk) if before is not None else 0)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes = len(columns.bulk)
        self._kept[group] = columns
        return columns


def _kinds_and_terms(entries: Entries) -> bytes:
    fields = b""
    if entries.kinds.strip(b"\0"):
        fields += pack_field(Tag.KINDS, entries.kinds)
    terms = entries.terms
    if terms[0] != terms[-1]:  # terms never fall along a log, so equal ends mean equal terms
        starts = [0, *(i for i, (left, right) in enumerate(pairwise(terms), 1) if left != right), len(terms)]
        fields += pack_field(Tag.TERM_RUNS, b"".join(RUN.pack(end - start, terms[start]) for start, end in pairwise(starts)))
    return fields


def _meta(kind: MessageKind, group: PartitionId, term: int, *fixed: int, fields: bytes = b"") -> bytes:
    size, pack = _PACKS[kind]
    return pack(size + len(fields), 0, 0, kind, group, term, *fixed) + fields


_PACKS: Final = {kind: (whole.size, whole.pack) for kind, whole in WHOLE.items()}
# Of the two messages that every entry needs: looked up once.
_APPEND: Final = MessageKind.APPEND.value
_APPEND_BYTES, _pack_append = _PACKS[MessageKind.APPEND]
_REPLY: Final = MessageKind.APPEND_REPLY.value
_REPLY_BYTES, _pack_reply = _PACKS[MessageKind.APPEND_REPLY]


def _append_reply(group: PartitionId, m: AppendReply) -> bytes:
    return _pack_reply(_REPLY_BYTES, 0, 0, _REPLY, group, m.term, m.index, m.rejected, m.hint_index, m.hint_term)


def _install_snapshot(group: PartitionId, m: InstallSnapshot) -> bytes:
    manifest = m.manifest
    fields = pack_field(Tag.CONFIGURATION, manifest.configuration.to_bytes())
    return _meta(MessageKind.INSTALL_SNAPSHOT, group, m.term, manifest.index, manifest.term, fields=fields)


def _plain(group: PartitionId, message: Any) -> bytes:
    """Encodes by the tables of the layout. A bundle has no term."""
    kind = message.kind
    columns = COLUMNS.get(kind, ())
    fields = b"".join([pack_field(tag, pack_column(code, getattr(message, name))) for tag, name, code, _ in columns])
    fixed = [getattr(message, name) for name, _ in FIXED_FIELDS[kind]]
    return _meta(kind, group, getattr(message, "term", NO_TERM), *fixed, fields=fields)


_ENCODERS: Final[dict[type, Callable[[PartitionId, Any], bytes]]] = {
    **dict.fromkeys(PLAIN, _plain),
    AppendReply: _append_reply,
    InstallSnapshot: _install_snapshot,
}
