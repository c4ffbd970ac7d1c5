from __future__ import annotations

import re

from headway.ledger import buckets
from headway.ledger.buckets import BUCKETS, group
from headway.report import screen
from headway.web import theme


def test_every_leaf_has_words_and_a_colour_of_its_own() -> None:
    assert set(buckets.MEANING) == set(BUCKETS)
    assert set(buckets.GROUPS) == set(screen.GROUP_STYLES) == {group(leaf) for leaf in BUCKETS}
    assert max(map(len, buckets.MEANING.values())) <= 32
    for dark in (False, True):
        colours = [theme.bucket_color(leaf, dark=dark) for leaf in BUCKETS]
        assert all(re.fullmatch(r"#[0-9a-f]{6}", c) for c in colours)
        assert len(set(colours)) == len(BUCKETS)
