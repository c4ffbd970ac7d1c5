from __future__ import annotations

import pytest

from headway.ledger import merge, segments
from headway.ledger import segments as ledger_segments
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.segments import Segment


def line(text: str, start: int = 0) -> list[Segment]:
    """A timeline with one letter per instant; a dot for nothing."""
    pieces = [Segment(start + i, start + i + 1, leaf) for i, leaf in enumerate(text)]
    return segments.join(piece for piece in pieces if piece.bucket != ".")


def text(segments: list[Segment]) -> str:
    """The same back; fails on an overlap."""
    out = ["."] * (segments[-1].end if segments else 0)
    for segment in segments:
        for at in range(segment.start, segment.end):
            assert out[at] == "."
            out[at] = segment.bucket
    return "".join(out)


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ("aaaaaa", "..bb..", "aabbaa"),
        ("aaabbb", "..cc..", "aaccbb"),
        ("aaabbb", "cccccc", "cccccc"),
        ("aa..bb", "cccccc", "cc..cc"),  # what is over nothing stays nothing
        ("aaaaaa", "b.b.bb", "bababb"),
        ("aaaaaa", "", "aaaaaa"),
    ],
)
def test_paint(base: str, over: str, result: str) -> None:
    assert text(segments.paint(line(base), line(over))) == result


def test_paint_takes_what_begins_before_and_ends_after() -> None:
    painted = segments.paint(line("aa", start=5), [Segment(0, 6, "b"), Segment(6, 90, "c")])
    assert painted == [Segment(5, 6, "b"), Segment(6, 7, "c")]


def test_join_drops_the_empty_and_keeps_gaps() -> None:
    pieces = [Segment(0, 1, "a"), Segment(1, 1, "b"), Segment(1, 3, "a"), Segment(4, 5, "a")]
    assert segments.join(pieces) == [Segment(0, 3, "a"), Segment(4, 5, "a")]


def test_clip() -> None:
    assert segments.clip(line("aabbcc"), 1, 5) == line("abbc", start=1)
    assert segments.clip(line("aa"), 2, 9) == []


@pytest.mark.parametrize(
    ("spans", "opaque", "result"),
    [
        ([(0, 9, "a"), (2, 7, "b"), (3, 5, "c")], (), "aabccbbaa"),
        ([(0, 9, "a"), (2, 7, "b"), (3, 5, "c")], (1,), "aabbbbbaa"),  # b keeps c
        ([(0, 9, "a"), (2, 7, "b"), (3, 5, "c")], (0,), "aaaaaaaaa"),
        ([(0, 2, "b"), (0, 5, "a")], (), "bbaaa"),  # begun together: the longer is outside
        ([(0, 3, "a"), (2, 5, "b")], (), "aabbb"),  # not nested: the later one
        ([(0, 2, "a"), (4, 6, "b")], (), "aa..bb"),
        ([(3, 3, "a")], (), ""),
    ],
)
def test_innermost(spans: list[tuple[int, int, str]], opaque: tuple[int, ...], result: str) -> None:
    segments = [Segment(*span) for span in spans]
    assert text(ledger_segments.innermost(segments, frozenset(opaque))) == result


@pytest.mark.parametrize(
    ("layers", "result"),
    [
        (["..aa..", "bbbbbb"], "bbaabb"),
        (["a.a.a.", ".bbbb.", "cccccc"], "ababac"),
        (["", "..b"], "..b"),
        ([], ""),
    ],
)
def test_by_priority(layers: list[str], result: str) -> None:
    assert text(segments.by_priority([line(layer) for layer in layers])) == result


def test_total() -> None:
    assert segments.time_by_bucket(line("aabba")) == {"a": 3, "b": 2}


def ranks(*texts: str, waiting: str = "w") -> str:
    """Merged, with `+` for training."""
    timelines = [
        [Segment(s.start, s.end, EFFECTIVE if s.bucket == "+" else s.bucket) for s in line(one)]
        for one in texts
    ]
    merged = merge.merge_ranks(timelines, frozenset(waiting))
    return text([Segment(s.start, s.end, s.bucket.replace(EFFECTIVE, "+")) for s in merged])


@pytest.mark.parametrize(
    ("texts", "result"),
    [
        (("++++",), "++++"),
        (("++++", "++++"), "++++"),
        (("++a+", "+++b"), "++ab"),
        (("aa++++", "bbbb++"), "bbbb++"),  # the one that is back last holds the others up
        (("aab+++", "cccc++", "dd++++"), "cccc++"),
        (("ww++", "aa++"), "aa++"),  # who stands in a collective waits
        (("wwww++", "aa++++"), "aaww++"),
        (("ww++", "ww++"), "ww++"),
        (("aa", "bb"), "aa"),  # never back, none of them: the lowest rank
    ],
)
def test_merge_ranks(texts: tuple[str, ...], result: str) -> None:
    assert ranks(*texts) == result
