"""The signatures are well-formed, and each of them is used."""

from __future__ import annotations

import re

import pytest

from headway.launch.failures.keywords import rarest_part, required_words
from headway.launch.failures.model import SOURCES
from headway.launch.failures.signatures import Signature, hints, match, signatures
from headway.taxonomy import CATEGORIES, RETRIES
from tests.unit.launch.failures.excerpts import load


@pytest.mark.parametrize("signature", signatures(), ids=lambda signature: signature.id)
def test_each_is_well_formed(signature: Signature) -> None:
    assert signature.category in CATEGORIES
    assert signature.role in ("root", "symptom", "cascade", "fact")
    assert 0 <= signature.weight <= 100
    assert signature.owner in ("", "infra", "user", "scheduler", "ambiguous")
    assert signature.retry in ("", *RETRIES)
    assert signature.source in ("", *SOURCES)
    assert signature.needs in ("", "error")


def test_names_are_not_taken_twice() -> None:
    names = [signature.id for signature in signatures()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("signature", signatures(), ids=lambda signature: signature.id)
def test_each_has_words_to_search_for(signature: Signature) -> None:
    words = required_words(signature.regex.pattern)
    assert words, "every branch needs a word, or each line of a log would have to be read"
    assert min(len(rarest_part(word)) for word in words) >= 2


def test_most_are_met_in_the_excerpts() -> None:
    text = "\n".join(signature.text for signature in (*load("excerpts"), *load("holdout")))
    unused = [
        signature.id
        for signature in signatures()
        if not re.search(signature.regex.pattern, text, re.M)
    ]
    assert len(unused) <= 8, unused


def test_the_weightiest_wins() -> None:
    text = "NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error"
    signature = match(text, is_error=True, is_config_echo=False)
    assert signature is not None and signature.category == "gpu_hardware"


def test_a_setting_is_no_event() -> None:
    text = "  on_ecc: uncorrectable ECC error encountered"
    assert match(text, is_error=False, is_config_echo=True) is None
    assert match("    Reason: OOMKilled", is_error=False, is_config_echo=True) is not None


def test_words_that_tell_nothing_have_no_hints() -> None:
    assert hints(b"loss:") != ()
    assert hints(b"tokens/s") == ()
