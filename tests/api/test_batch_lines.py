"""Lines come out of a stream of chunks however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from cmdlog.api.routes.batch_lines import LineSplitter


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b".")), max_size=12), st.integers(1, 9), st.integers(1, 14))
def test_cuts_of_the_stream_do_not_matter(lines: list[bytes], chunk_bytes: int, limit_bytes: int) -> None:
    """Whatever the chunks, each line comes once and in order; one over the limit comes as None, a blank one not at all."""
    stream = b"\n".join(lines)
    splitter = LineSplitter(limit_bytes)
    got: list[bytes | None] = []
    for start in range(0, len(stream), chunk_bytes):
        got += splitter.feed(stream[start : start + chunk_bytes])
    got += splitter.finish()
    wanted = [line if len(line) <= limit_bytes else None for line in lines]
    assert got == [line for line in wanted if line is None or line.strip()]


def test_long_line_is_not_kept() -> None:
    """A line without end costs no memory beyond its limit."""
    splitter = LineSplitter(100)
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter._rest) == 0
    assert splitter.feed(b"\nshort\n") == [None, b"short"]
