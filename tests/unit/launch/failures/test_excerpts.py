"""Accuracy of the classifier, by category, on excerpts in the form of real logs."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.launch.failures.log_lines import parse
from headway.launch.failures.log_reader import LineKinds
from headway.launch.failures.signatures import DIGITS, signatures
from headway.taxonomy import CATEGORIES
from tests.unit.launch.failures.excerpts import HERE, NOTHING, Excerpt, judged, load

OWN = load("excerpts")  # known when the rules were written
HELD_OUT = load("holdout")  # written after the rules


def test_there_is_enough_of_everything() -> None:
    labels = Counter(excerpt.label for excerpt in OWN)
    assert labels.keys() == {*CATEGORIES, NOTHING}
    assert min(labels.values()) >= 3
    assert len(OWN) >= 100
    assert sum(excerpt.misleading for excerpt in OWN) >= 35
    assert len(HELD_OUT) >= 30


@pytest.mark.parametrize("excerpts", [OWN, HELD_OUT], ids=["own", "held out"])
def test_accuracy(excerpts: list[Excerpt], capsys: pytest.CaptureFixture[str]) -> None:
    right: Counter[str] = Counter()
    wrong = []
    for excerpt in excerpts:
        label, verdict = judged(excerpt.text)
        right[excerpt.label] += label == excerpt.label
        if label != excerpt.label:
            wrong.append(
                (excerpt.label, excerpt.title, label, verdict.confidence, verdict.evidence)
            )
    with capsys.disabled():
        print()
        for label, count in sorted(Counter(excerpt.label for excerpt in excerpts).items()):
            print(f"  {label:<16} {right[label]:>3} of {count}")
        print(f"  {'all':<16} {right.total():>3} of {len(excerpts)}")
    assert right.total() >= 0.95 * len(excerpts), wrong
    assert not [excerpt for excerpt in wrong if excerpt[3] == "high"], "wrong, and sure of it"


def messages() -> list[tuple[str, str]]:
    lines = (HERE / "messages.txt").read_text().splitlines()[1:]
    rows = [line.partition("|") for line in lines]
    return [(label, text.replace("||", "\n")) for label, _, text in rows]


@pytest.mark.parametrize(("label", "text"), messages())
def test_a_message_alone(label: str, text: str) -> None:
    assert judged(text)[0] == label


@pytest.mark.parametrize(
    "excerpt", [excerpt for excerpt in OWN if excerpt.rank is not None or excerpt.node]
)
def test_the_rank_and_the_node_that_are_at_fault(excerpt: Excerpt) -> None:
    _, verdict = judged(excerpt.text)
    assert excerpt.rank is None or verdict.rank == excerpt.rank
    assert excerpt.node is None or verdict.node == excerpt.node


def test_no_line_that_a_signature_knows_is_passed_over() -> None:
    kinds = LineKinds()
    for excerpt in (*OWN, *HELD_OUT):
        for raw in excerpt.text.encode().splitlines():
            text = parse(raw).text
            if any(signature.regex.search(text) for signature in signatures()):
                low = raw.translate(None, DIGITS).lower()
                assert kinds._has_keywords(low, low.split()), raw


def test_the_evidence_is_the_very_words() -> None:
    for excerpt in OWN:
        label, verdict = judged(excerpt.text)
        if label == NOTHING or verdict.signature.startswith(("exit_", "signal_")):
            continue
        words = verdict.evidence[:60].split()
        assert words and all(word.rstrip(":") in excerpt.text for word in words)
