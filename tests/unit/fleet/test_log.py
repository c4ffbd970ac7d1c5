"""Which files count: two compactions of the same writes, and whatever was deleted meanwhile."""

from __future__ import annotations

from headway.fleet import log
from headway.fleet.log import Log


def of(writes: str, settled: str = "", **compactions: str) -> Log:
    """Stems are single letters; a compaction is named by a longer word."""
    replaced = {stem: frozenset(names.split()) for stem, names in compactions.items()}
    return Log(frozenset(writes.split()), replaced, frozenset(settled.split()))


def test_writes_count() -> None:
    assert of("a b").live() == {"a", "b"}


def test_a_compaction_takes_the_place_of_what_it_replaces() -> None:
    assert of("a b c", c1="a b").live() == {"c", "c1"}


def test_of_two_that_replace_the_same_the_first_begun_counts() -> None:
    assert of("a b c", c2="b c", c1="a b").live() == {"c1", "c"}


def test_a_settled_one_counts_whatever_comes() -> None:
    assert of("a b c", "c2", c2="b c", c1="a b").live() == {"c2", "a"}
    assert of("a", "c2", c2="b c", c1="a b").live() == {"c2", "a"}


def test_one_that_lost_never_counts_again() -> None:
    """The winner was replaced by a larger one: nothing overlaps with the loser any more."""
    told = of("a", "c3", c3="c2 d", c1="a b")
    assert told.live() == {"c3", "a"}
    assert told.unclear()


def test_a_compaction_may_replace_an_earlier_one() -> None:
    assert of("d", "c1", c1="a b", c2="c1 d").live() == {"c2"}


def test_names_say_what_a_file_is() -> None:
    stem = log.new_stem(1_800_000_000.0)
    name = log.file_name("hours", "2026-11-16", stem, 1)
    assert log.parse(name, 7) == log.File(name, "hours", "2026-11-16", stem, 1, 7)
    assert log.parse(f"hours/day=2026-11-16/.{stem}", 7) is None
    assert log.parse("hours/notes.txt", 7) is None


def test_who_knows_more_of_a_run_is_newer() -> None:
    assert log.new_stem(200.0) > log.new_stem(100.0)
    assert log.stems(["commits/.x.json", "commits/a.json", "commits/b.settled"], ".json") == {"a"}
