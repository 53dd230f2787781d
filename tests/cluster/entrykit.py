"""Entries of a group for tests, as columns and as records of the log."""

from __future__ import annotations

from cmdlog.raft.messages import KIND_NORMAL, Entries
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.ids import Index, Term, make_txn_id


def batch(index: int, *, term: int = 1, group: int = 0, param: str = "", millis: int = 0) -> bytes:
    """The record of a batch of one call, whose transaction id follows from its place unless `millis` says another one."""
    txn = make_txn_id(millis=millis or 1000 + index, counter=0, partition=group)
    return encode_batch(
        partition=group,
        term=term,
        index=index,
        catalog=1,
        txn_ids=range(txn, txn + 1024, 1024),
        procedures=[0],
        params=[b'["%s"]' % param.encode()],
    )


def column(first: int, *entries: tuple[int, int, bytes]) -> Entries:
    """Entries (term, kind, payload) from index `first` on."""
    terms, kinds, payloads = zip(*entries, strict=True)
    return Entries(Index(first), [Term(term) for term in terms], bytes(kinds), list(payloads))


def batches(first: int, *terms: int, group: int = 0) -> Entries:
    """One batch per term."""
    return column(first, *((term, KIND_NORMAL, batch(index, term=term, group=group)) for index, term in enumerate(terms, first)))
