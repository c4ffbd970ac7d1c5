from __future__ import annotations

import re

import pytest

from headway.compile.recompiles import sources
from headway.compile.recompiles.sources import DYNAMIC, UNBACKED, VALUES, Source

NEW, OLD = "2.13.0+cpu", "2.11.0+cu130"


def matches(entries: list[str], source: Source, torch: str) -> bool:
    """Match as torch does: spaces removed, split at commas, equal or matching from the start."""
    return sources.is_covered(source, ",".join(entries), torch)


def test_an_entry_is_made_for_the_version() -> None:
    changing = [Source("L['x']", 0), Source("L['x']", 2), Source("L['k']")]
    assert sources.entries(changing, [], NEW) == ["L['x']:0", "L['x']:2", "L['k']"]
    assert sources.entries(changing, [], OLD) == ["L['x']", "L['k']"]
    assert sources.entries(changing, [], None) == ["L['x']", "L['k']"]
    assert sources.entries(changing, [], "2.15.0a0") == ["L['x']:0", "L['x']:2", "L['k']"]
    assert not sources.is_covered(Source("L['x']", 0), "L['x']:0", OLD)  # it would match nothing


def test_many_names_of_one_form_are_one_expression() -> None:
    changing = [Source(f"L['feats']['f{number}']", 0) for number in range(12)]
    (entry,) = sources.entries(changing, [], NEW)
    assert entry == r"L\['feats'\]\['f\d+'\]\Z:0"
    assert all(matches([entry], source, NEW) for source in changing)
    assert matches([entry], Source("L['feats']['f99']", 0), NEW)
    assert not matches([entry], Source("L['feats']['f1']", 1), NEW)
    assert not matches([entry], Source("L['feats']['f1'].grad", 0), NEW)
    assert not matches([entry], Source("L['feats']['g1']", 0), NEW)
    assert sources.entries(changing[:2], [], NEW) == ["L['feats']['f0']:0", "L['feats']['f1']:0"]


def test_keys_of_one_container_are_one_expression() -> None:
    changing = [Source(f"L['feats']['{name}']", 1) for name in ("user", "item", "a, b")]
    (entry,) = sources.entries(changing, [], NEW)
    assert entry == r"L\['feats'\]\['[^']+'\]\Z:1"
    assert all(matches([entry], source, NEW) for source in changing)


def test_arguments_are_no_container() -> None:
    changing = [Source(f"L['{name}']", 0) for name in ("rows", "cols", "mask")]
    assert sources.entries(changing, [], NEW) == ["L['rows']:0", "L['cols']:0", "L['mask']:0"]


def test_what_never_changes_is_not_marked_along() -> None:
    changing = [Source(f"L['feats']['f{number}']", 0) for number in range(3)]
    beside = Source("L['feats']['f7']", 0)
    assert len(sources.entries(changing, [beside], NEW)) == 3
    assert len(sources.entries(changing, [Source("L['feats']['f7']", 1)], NEW)) == 1
    assert len(sources.entries(changing, [Source("L['feats']['f8']")], NEW)) == 3  # an integer
    assert len(sources.entries(changing, [Source("L['feats']['f7']", 1)], OLD)) == 3
    assert len(sources.entries(changing, [Source("L['feats']['f1']", 1)], OLD)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "L['a, b']",
        "L['a b']['c:0']",
        "L['z-a']",
        "L['(']",
        'L["it\'s"]',
        "L['a+b'].c",
        "L['x'][0].y",
        "dict(type(L['self']).__dict__)['K']",
        "L['[nested']",
    ],
)
def test_any_name_is_matched_and_nothing_else(name: str) -> None:
    for torch in (NEW, OLD):
        (entry,) = sources.entries([Source(name, 3)], [], torch)
        assert " " not in entry and "," not in entry
        assert matches([entry], Source(name, 3), torch)
        re.compile(entry.removesuffix(":3"))
        assert not matches([entry], Source("L['other']", 3), torch)
        assert not matches([entry], Source(f"{name}['more']", 3), torch)


def test_plain_and_whole_names() -> None:
    full_names = {"dict(type(s).__dict__)['K']": "dict(type(L['s']).__dict__)['K']"}
    for name in ("L['x']", "L['d']['f0']", "L['s']._modules['a'].k", "G['SCALE']"):
        assert sources.with_scope(sources.without_scope(name), {}) == name
    assert (
        sources.with_scope("dict(type(s).__dict__)['K']", full_names)
        == full_names["dict(type(s).__dict__)['K']"]
    )
    assert sources.spelling_in_code("G['SCALE']") == "SCALE"
    assert sources.spelling_in_code("L['d']['f0']") == "d['f0']"


def test_what_was_set_stays() -> None:
    assert sources.join("L['x'], L['y']:0", ["L['z']", "L['x']"]) == "L['x'],L['y']:0,L['z']"
    assert sources.join("", ["L['z']"]) == "L['z']"
    assert sources.join("", [""]) == ""
    assert sources.is_covered(Source("L['x']", 2), "L['y'],L['x']", NEW)
    assert not sources.is_covered(Source("L['x']", 2), "L['x']:0", NEW)
    assert not sources.is_covered(Source("L['x']", 2), "*bad(", NEW)


def test_unbacked_sizes_as_dynamic_ones() -> None:
    env = {DYNAMIC: "L['x']:0", UNBACKED: "L['y']:0,L['z']:1"}
    assert sources.as_dynamic(env) == {DYNAMIC: "L['x']:0,L['y']:0,L['z']:1"}
    assert sources.as_dynamic(env, keep="L['z']:1") == {
        DYNAMIC: "L['x']:0,L['y']:0",
        UNBACKED: "L['z']:1",
    }
    assert sources.as_dynamic({}) == {}


def test_entries_that_a_version_does_not_know_are_dropped() -> None:
    env = {DYNAMIC: "L['x']:0,L['k']", VALUES: "1111"}
    assert sources.supported_entries(env, NEW) == env
    assert sources.supported_entries(env, OLD) == {DYNAMIC: "L['k']", VALUES: "1111"}
