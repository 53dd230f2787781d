"""The log of one group in memory: stable below, unstable above, and how far it is committed.

One rule: what counts as durable is what a *completed write proves*, and a truncation takes its proof away. Writes complete in the
order in which they were taken. A write that was taken before a truncation proves nothing at or above the cut, even when an entry
with the same (index, term) has come back since: such an entry is being written again, and the disk may lose it until that second
write is done (the append ABA race). So every write under way carries the index up to which it still proves the log, and
truncation lowers it.

    base | compacted (manifest) ... held ... handed ... min(commit, stable) ... stable ... taken ... last
          payloads in memory above `held`;  written or being written up to `taken`;  durable up to `stable`

Invariants: base <= held <= handed <= min(commit, stable); stable <= taken <= last; commit <= last; terms never
fall along the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from cmdlog.raft.configuration import Configuration
from cmdlog.raft.errors import BadConfiguration
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_NORMAL, NO_INDEX, SIZE_UNKNOWN, Entries, HardState, SnapshotDescriptor
from cmdlog.wal.ids import Index, Term

_NORMAL_BYTE: Final = bytes([KIND_NORMAL])


@dataclass(slots=True)
class Completion:
    """A write under way; later it says that the write is durable, and with it every one before it. `number` counts the writes of
    one core from a random start, so that the completion of a write from before a crash matches none; (index, term) is where the
    log ended then. `proves` falls when the log is truncated meanwhile."""

    number: int
    index: Index
    term: Term
    proves: Index = field(default=NO_INDEX, compare=False)
    hard_state: HardState | None = field(default=None, compare=False)
    size: int = field(default=0, compare=False)  # bytes of its entries
    begun: int = field(default=0, compare=False)  # the tick in which it was taken


class EntryLog:
    """Entries from `base + 1` on, in columns; see the module for the marks."""

    __slots__ = (
        "_before",
        "_recent",
        "base",
        "base_term",
        "commit",
        "configurations",
        "evicted",
        "handed",
        "held",
        "held_bytes",
        "kinds",
        "last",
        "last_term",
        "payloads",
        "sizes",
        "stable",
        "taken",
        "taken_bytes",
        "terms",
        "untaken_bytes",
        "writes",
        "writing_bytes",
    )

    def __init__(self, manifest: SnapshotDescriptor) -> None:
        self.terms: list[Term] = []
        self.kinds = bytearray()
        self.payloads: list[bytes] = []
        self.writes: deque[Completion] = deque()
        self.writing_bytes = 0  # of the entries of `writes`
        self.taken_bytes = 0  # of the entries that the next write begins with
        self.base, self.base_term, self.last_term = manifest.index, manifest.term, manifest.term
        self.commit = self.handed = self.stable = self.taken = self.last = self.held = manifest.index
        self.untaken_bytes = 0  # of the payloads above `taken`
        self.sizes: deque[tuple[Index, int]] = deque()  # (last index, bytes) of what was appended, ascending: those in memory
        self.evicted: deque[tuple[Index, int]] = deque()  # and those before, which are in the caller's log alone
        self.held_bytes = 0  # of `sizes`
        # Ascending; the last one is in force. The first one is at or below the base.
        self.configurations: list[tuple[Index, Configuration]] = [(manifest.index, manifest.configuration)]
        self._forget_proofs(manifest.index)

    def _forget_proofs(self, above: Index) -> None:
        # The columns that were cut or came last, and those before them, since the next step mostly wants the same ones: write,
        # send, apply. A follower writes the last ones and applies those before, in one Ready.
        self._recent = self._before = Entries(Index(above + 1), [], b"", [])
        for write in self.writes:
            write.proves = min(write.proves, above)

    # What is there

    def term_at(self, index: int) -> Term | None:
        """Term of the entry, or None when it is compacted or not there yet."""
        if index == self.last:  # nearly always
            return self.last_term
        offset = index - self.base
        if offset > 0:
            return self.terms[offset - 1] if offset <= len(self.terms) else None
        return self.base_term if offset == 0 else None

    def up_to_date(self, last_index: Index, last_term: Term) -> bool:
        """Whether a log that ends so is at least as good as this one: the last term decides first (paper, section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last)

    def agreeing(self, index: int, term: Term) -> Index:
        """The highest index, at most `index`, whose term is at most `term`: no entry above it can match one of that term.

        Both sides use it to skip whole terms when logs disagree. It never goes below the base, which is committed.
        """
        within = max(0, min(index - self.base, len(self.terms)))
        return Index(self.base + bisect_right(self.terms, term, 0, within))

    def configuration_at(self, index: Index) -> Configuration:
        """The configuration in force in a log that ends at `index`."""
        return next(configuration for at, configuration in reversed(self.configurations) if at <= index)

    def slice(self, first: int, last: int) -> Entries:
        """The entries `first..last`, both included and present."""
        count, recent, before = last - first + 1, self._recent, self._before
        if recent.first == first and len(recent.terms) == count:
            return recent
        if before.first == first and len(before.terms) == count:
            return before
        low, high, gone = first - self.base - 1, last - self.base, self.held - self.base
        cut = Entries(Index(first), self.terms[low:high], bytes(self.kinds[low:high]), self.payloads[low - gone : high - gone])
        self._before, self._recent = recent, cut
        return cut

    def batch(self, first: Index, last: Index, *, entries_max: int, bytes_max: int) -> tuple[Entries, int]:
        """As many of the entries `first..last` as fit, at least one when there is one, and their bytes.

        The followers of a leader mostly want the same ones and are given the same object: the encoder can see that it did so
        already.
        """
        entries = self.slice(first, min(last, first + entries_max - 1))
        size = entries.size if entries.size >= 0 else payload_bytes(entries)
        if size > bytes_max and len(entries.terms) > 1:
            fitting = max(1, bisect_right(list(accumulate(map(len, entries.payloads))), bytes_max))
            entries = self.slice(first, first + fitting - 1)
            size = payload_bytes(entries)
        return entries, size

    # How it changes

    def append(self, entries: Entries, configurations: Sequence[tuple[Index, Configuration]] = ()) -> None:
        """Adds entries right after the last one; `configurations` are those among them, decoded."""
        terms = entries.terms
        if not terms:
            return
        self.terms += terms
        self.kinds += entries.kinds
        self.payloads += entries.payloads
        if configurations:
            self.configurations += configurations
        self.last, self.last_term = Index(self.last + len(terms)), terms[-1]
        size = entries.size if entries.size >= 0 else payload_bytes(entries)
        self.untaken_bytes += size
        self.held_bytes += size
        self.sizes.append((self.last, size))
        self._before, self._recent = self._recent, entries

    def restore(self, entries: Entries) -> None:
        """Takes what is durable of the log, after `reset` by the manifest. Entries before the manifest's end are kept, if they
        meet it: the log then begins before it, but stays committed and handed out up to the manifest's index.

        Raises: BadConfiguration.
        """
        index, configuration = self.configurations[0]
        offset = index - entries.first  # of the manifest's own last entry
        if offset > 0 and entries.terms[offset] == self.base_term:
            skip = 0 if entries.first == 1 else 1
            self.base = Index(entries.first + skip - 1)
            self.base_term = entries.terms[0] if skip else Term(0)
            self.held = self.base
        else:
            skip = offset + 1
        kept = Entries(Index(entries.first + skip), entries.terms[skip:], entries.kinds[skip:], entries.payloads[skip:])
        self.last = self.base
        found = decoded_configurations(kept)
        before = [at for at, _ in found if at <= index]
        # Of those before the manifest's only the last one is in force anywhere that matters, and the manifest has it.
        self.configurations = [(self.base, configuration), *((at, configuration) for at in before[-1:])]
        self.append(kept, [(at, value) for at, value in found if at > index])
        self.stable = self.taken = self.last
        self.untaken_bytes = 0

    def merge(self, entries: Entries, configurations: Sequence[tuple[Index, Configuration]] = ()) -> None:
        """Takes a leader's entries, whose predecessor is known to match and is not below `commit`.

        Only a real conflict of terms truncates: a late or repeated message must not cut off what came after it and is
        acknowledged already (paper, Figure 2, AppendEntries 3 and 4).
        """
        if entries.first > self.last:  # nearly always: nothing is there yet
            self.append(entries, configurations)
            return
        low = entries.first - self.base - 1
        present = self.terms[low : low + len(entries)]
        same = len(present)
        if present != entries.terms[:same]:
            same = next(i for i, term in enumerate(present) if term != entries.terms[i])
        if same == len(entries):
            return
        if same < len(present):
            self._truncate(Index(entries.first + same - 1))
        if same:
            first = Index(entries.first + same)
            entries = Entries(first, entries.terms[same:], entries.kinds[same:], entries.payloads[same:])
            configurations = [(at, value) for at, value in configurations if at >= first]
        self.append(entries, configurations)

    def _truncate(self, keep: Index) -> None:
        """Cuts off everything above `keep`, its configurations and the proofs of writes under way."""
        offset = keep - self.base
        self.untaken_bytes -= sum(map(len, self.payloads[max(keep, self.taken) - self.held :]))
        self._forget_sizes(keep)
        del self.terms[offset:], self.kinds[offset:], self.payloads[keep - self.held :]
        self.last, self.last_term = keep, self.terms[-1] if self.terms else self.base_term
        self.taken, self.stable = min(self.taken, keep), min(self.stable, keep)
        while self.configurations[-1][0] > keep:
            self.configurations.pop()
        self._forget_proofs(keep)

    def _forget_sizes(self, above: Index) -> None:
        sizes, last = self.sizes, self.held
        while sizes and sizes[-1][0] > above:
            last, size = sizes.pop()
            self.held_bytes -= size
        begin = sizes[-1][0] if sizes else self.held
        if begin < above < last:  # a part of what was appended at once stays
            size = sum(map(len, self.payloads[begin - self.held : above - self.held]))
            sizes.append((above, size))
            self.held_bytes += size

    def evict(self, bytes_max: int) -> None:
        """Forgets the oldest payloads, durable and handed out, so that a quarter less than `bytes_max` is left. Terms and kinds
        stay: what the log decides by is in memory. A follower that lacks the others is fed from the caller's log."""
        index, may, enough = self.held, min(self.handed, self.stable), bytes_max - bytes_max // 4
        while self.sizes and self.held_bytes > enough and self.sizes[0][0] <= may:
            self.evicted.append(self.sizes.popleft())
            index, size = self.evicted[-1]
            self.held_bytes -= size
        del self.payloads[: index - self.held]
        self.held = index

    def bytes_between(self, after: Index, upto: Index) -> int:
        """Bytes of what was appended after one index, up to another, in memory or not; a little less where either is between."""
        return sum(size for sizes in (self.evicted, self.sizes) for at, size in sizes if after < at <= upto)

    def compact(self, index: Index) -> None:
        """Forgets entries up to `index`, which are applied and covered by a snapshot."""
        offset = index - self.base
        self.base_term = self.terms[offset - 1]
        del self.terms[:offset], self.kinds[:offset]
        if index > self.held:
            del self.payloads[: index - self.held]
            self.held = index
        self.base = index
        while self.evicted and self.evicted[0][0] <= index:
            self.evicted.popleft()
        while self.sizes and self.sizes[0][0] <= index:
            self.held_bytes -= self.sizes.popleft()[1]
        while len(self.configurations) > 1 and self.configurations[1][0] <= index:
            del self.configurations[0]

    def commit_to(self, index: Index) -> None:
        """Moves the commit mark forward; never back (late messages)."""
        if index <= self.commit:
            return
        self.commit = index

    # What the caller takes and brings back

    def take_unstable(self, entries_max: int, bytes_max: int) -> Entries:
        """The oldest entries that nobody has been asked to write yet, as many as fit; there must be some."""
        first = Index(self.taken + 1)
        if self.untaken_bytes <= bytes_max and self.last - self.taken <= entries_max:  # nearly always
            entries, size = self.slice(first, self.last), self.untaken_bytes
        else:
            entries, size = self.batch(first, self.last, entries_max=entries_max, bytes_max=bytes_max)
        self.taken = Index(self.taken + len(entries.terms))
        self.untaken_bytes -= size
        self.taken_bytes += size
        return entries

    def take_committed(self, entries_max: int, bytes_max: int) -> Entries | None:
        """The entries to be applied next, as many as fit: committed, and durable here, so that no state is ever ahead of its own
        log."""
        upto = self.commit if self.commit < self.stable else self.stable
        if upto <= self.handed:
            return None
        first = Index(self.handed + 1)
        if upto - self.handed <= entries_max:
            entries = self.slice(first, upto)
            if 0 <= entries.size <= bytes_max:  # nearly always: written or appended as it is, and counted then
                self.handed = upto
                return entries
        entries, _ = self.batch(first, upto, entries_max=entries_max, bytes_max=bytes_max)
        self.handed = Index(self.handed + len(entries.terms))
        return entries

    def begin_write(self, number: int, hard_state: HardState | None, *, now: int) -> Completion:
        """A write of everything up to `taken` is under way, since tick `now`."""
        size, self.taken_bytes, taken = self.taken_bytes, 0, self.taken
        self.writing_bytes += size
        term = self.last_term if taken == self.last else self.term_at(taken) or self.base_term
        write = Completion(number, taken, term, taken, hard_state, size, now)
        self.writes.append(write)
        return write

    def complete(self, completion: Completion) -> list[Completion]:
        """The write and all before it are durable. Returns them, oldest first; none when the completion is not of a write under
        way: it came twice, out of order after a later one, or from before a crash."""
        writes = self.writes
        done: list[Completion] = []
        for write in writes:
            done.append(write)
            if write is completion or write == completion:
                self.stable = max(self.stable, write.proves)
                for _ in done:
                    self.writing_bytes -= writes.popleft().size
                return done
        return []


def payload_bytes(entries: Entries) -> int:
    """Bytes of all payloads; counted once for each object."""
    if entries.size == SIZE_UNKNOWN:
        entries.size = sum(map(len, entries.payloads))  # type: ignore[misc]  # no part of the value: it only saves the next count
    return entries.size


def has_special(entries: Entries) -> bool:
    """Whether there are configurations or empty entries; looked for in C, since nearly always there are none."""
    return bool(entries.kinds.strip(_NORMAL_BYTE))


def decoded_configurations(entries: Entries) -> list[tuple[Index, Configuration]]:
    """The configurations among the entries. Raises: BadConfiguration, also for one without voters: in its force, a node would
    win every election without a vote."""
    return [
        (Index(entries.first + i), _configuration(Index(entries.first + i), entries.payloads[i]))
        for i, kind in enumerate(entries.kinds)
        if kind == KIND_CONFIGURATION
    ]


def _configuration(at: Index, payload: bytes) -> Configuration:
    try:
        configuration = Configuration.from_bytes(payload)
    except BadConfiguration as error:
        raise BadConfiguration(f"entry {at}: {error}") from None
    if not configuration.voters:
        raise BadConfiguration(f"entry {at} has no voters")
    return configuration
