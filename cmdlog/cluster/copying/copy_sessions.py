"""Copies under way at a source: who reads what, how far each is, and when one is over.

One rule: time is an argument, and nothing here touches a disk. A copy ends once: as its recipient says, by an operator, or
because nothing was read of it for `SILENT_S`. What it holds is then the caller's to let go of.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from cmdlog.cluster.copying.copy_values import CopyRefused, RefusalCode
from cmdlog.cluster.copying.held_files import HeldFiles
from cmdlog.raft.wire.secure_frames import Peer

SILENT_S: Final = 60.0  # a recipient that is restarted continues; one that is gone must not hold the log for long
ENDED_KEPT: Final = 64  # of which it is still known why they ended
RATE_OVER_S: Final = 10.0  # what is shown as the present rate


@dataclass(slots=True, eq=False)
class CopySession:
    """One copy. Invariant: `held` is let go of exactly once, by the caller that removed the session from the table."""

    copy: bytes  # [16]
    peer: Peer  # the recipient
    held: HeldFiles
    size: int  # bytes of all files
    began_s: float
    heard_s: float  # when something was read last
    link: object = None  # the connection by which it is read
    sent: int = 0  # bytes
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # when so many bytes had been sent; `RATE_OVER_S`

    def note_sent(self, size: int, now_s: float) -> None:
        """So many bytes are on their way."""
        self.sent += size
        self.heard_s = now_s
        self._recent.append((now_s, self.sent))
        while self._recent[0][0] < now_s - RATE_OVER_S:
            self._recent.popleft()

    def rate(self, now_s: float) -> float:
        """Bytes per second, lately."""
        if not self._recent:
            return 0.0
        first_s, first = self._recent[0]
        since_s, before = (self.began_s, 0) if self.began_s > now_s - RATE_OVER_S else (first_s, first)
        return (self.sent - before) / (now_s - since_s) if now_s > since_s else 0.0

    def status(self, now_s: float) -> dict[str, Any]:
        """Plain data. Bytes that the recipient had already count as not sent, so `percent` may end below 100."""
        rate = self.rate(now_s)
        left = max(0, self.size - self.sent)
        return {
            "node": int(self.peer.node),
            "incarnation": self.peer.incarnation.hex(),
            "copy": self.copy.hex(),
            "bytes": self.size,
            "sent_bytes": self.sent,
            "percent": round(min(100.0, 100 * self.sent / self.size) if self.size else 100.0, 1),
            "rate": round(rate),
            "left_s": round(left / rate, 1) if rate else None,
            "age_s": round(now_s - self.began_s, 1),
            "connected": self.link is not None,
        }


class CopySessions:
    """Not thread-safe."""

    def __init__(self, *, copies_max: int) -> None:
        self._copies_max = copies_max
        self._by_copy: dict[bytes, CopySession] = {}
        self._ended: dict[bytes, tuple[RefusalCode, str]] = {}  # newest last

    def __len__(self) -> int:
        return len(self._by_copy)

    def check_room(self, peer: Peer, link: object) -> list[CopySession]:
        """The recipient's earlier copies, which a new one replaces. Raises: CopyRefused."""
        same = [session for session in self._by_copy.values() if session.peer.node == peer.node]
        if any(session.link not in (None, link) and session.peer == peer for session in same):
            raise CopyRefused(RefusalCode.ALREADY_COPYING, f"node {peer.node} has a copy under way by another connection")
        if len(self) - len(same) >= self._copies_max:
            others = ", ".join(str(session.peer.node) for session in self._by_copy.values() if session not in same)
            raise CopyRefused(RefusalCode.BUSY, f"copies to nodes {others} are under way, and copies_max is {self._copies_max}")
        return same

    def add(self, session: CopySession) -> None:
        """After `check_room`."""
        self._by_copy[session.copy] = session

    def get(self, copy: bytes) -> CopySession:
        """A copy under way. Raises: KeyError."""
        return self._by_copy[copy]

    def find(self, copy: bytes, peer: Peer, link: object, now_s: float) -> CopySession:
        """The copy that this recipient reads, from now on by this connection. Raises: CopyRefused."""
        session = self._by_copy.get(copy)
        if session is None:
            code, why = self._ended.get(copy, (RefusalCode.UNKNOWN_COPY, "there is no such copy at this node: begin again"))
            raise CopyRefused(code, why)
        if session.peer != peer:
            raise CopyRefused(RefusalCode.WRONG_RECIPIENT, f"the copy is another recipient's than node {peer.node}'s disk")
        session.link, session.heard_s = link, now_s
        return session

    def remove(self, session: CopySession, code: RefusalCode, why: str) -> bool:
        """It is over: anyone who asks for it again is answered so. Whether it was under way."""
        if self._by_copy.pop(session.copy, None) is None:
            return False
        self._ended[session.copy] = (code, why)
        while len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]
        return True

    def leave(self, link: object) -> None:
        """The connection is over; its copies wait for another one."""
        for session in self._by_copy.values():
            if session.link is link:
                session.link = None

    def of_node(self, node: int) -> list[CopySession]:
        return [session for session in self._by_copy.values() if session.peer.node == node]

    def silent(self, now_s: float) -> list[CopySession]:
        """Those of which nothing was read for too long."""
        return [session for session in self._by_copy.values() if session.heard_s + SILENT_S < now_s]

    def all(self) -> list[CopySession]:
        return list(self._by_copy.values())
