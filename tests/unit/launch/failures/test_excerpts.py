"""How often the classifier is right, per category, on excerpts in the forms of real logs."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.launch.failures.log_lines import parse
from headway.launch.failures.log_reader import LineKinds
from headway.launch.failures.signatures import DIGITS, signatures
from headway.taxonomy import CATEGORIES
from tests.unit.launch.failures.excerpts import HERE, NOTHING, Excerpt, judged, load

OWN = load("excerpts")  # the rules were written with these in view
HELD_OUT = load("holdout")  # and these were written after the rules


def test_there_is_enough_of_everything() -> None:
    labels = Counter(one.label for one in OWN)
    assert labels.keys() == {*CATEGORIES, NOTHING}
    assert min(labels.values()) >= 3
    assert len(OWN) >= 100
    assert sum(one.misleading for one in OWN) >= 35
    assert len(HELD_OUT) >= 30


@pytest.mark.parametrize("excerpts", [OWN, HELD_OUT], ids=["own", "held out"])
def test_accuracy(excerpts: list[Excerpt], capsys: pytest.CaptureFixture[str]) -> None:
    right: Counter[str] = Counter()
    wrong = []
    for one in excerpts:
        label, verdict = judged(one.text)
        right[one.label] += label == one.label
        if label != one.label:
            wrong.append((one.label, one.title, label, verdict.confidence, verdict.evidence))
    with capsys.disabled():
        print()
        for label, count in sorted(Counter(one.label for one in excerpts).items()):
            print(f"  {label:<16} {right[label]:>3} of {count}")
        print(f"  {'all':<16} {right.total():>3} of {len(excerpts)}")
    assert right.total() >= 0.95 * len(excerpts), wrong
    assert not [one for one in wrong if one[3] == "high"], "wrong, and sure of it"


def messages() -> list[tuple[str, str]]:
    lines = (HERE / "messages.txt").read_text().splitlines()[1:]
    rows = [line.partition("|") for line in lines]
    return [(label, text.replace("||", "\n")) for label, _, text in rows]


@pytest.mark.parametrize(("label", "text"), messages())
def test_a_message_alone(label: str, text: str) -> None:
    assert judged(text)[0] == label


@pytest.mark.parametrize("one", [one for one in OWN if one.rank is not None or one.node])
def test_the_rank_and_the_node_that_are_at_fault(one: Excerpt) -> None:
    _, verdict = judged(one.text)
    assert one.rank is None or verdict.rank == one.rank
    assert one.node is None or verdict.node == one.node


def test_no_line_that_a_signature_knows_is_passed_over() -> None:
    kinds = LineKinds()
    for one in (*OWN, *HELD_OUT):
        for raw in one.text.encode().splitlines():
            text = parse(raw).text
            if any(signature.regex.search(text) for signature in signatures()):
                low = raw.translate(None, DIGITS).lower()
                assert kinds._has_keywords(low, low.split()), raw


def test_the_evidence_is_the_very_words() -> None:
    for one in OWN:
        label, verdict = judged(one.text)
        if label == NOTHING or verdict.signature.startswith(("exit_", "signal_")):
            continue
        words = verdict.evidence[:60].split()
        assert words and all(word.rstrip(":") in one.text for word in words)
