"""Labeled excerpts: one file per category, `=== plain: title` or `=== misleading: title`."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

from headway.launch.failures import Verdict, classify, failed, read_log

HERE = Path(__file__).parent
NOTHING = "nothing"  # the label of logs without a failure


class Excerpt(NamedTuple):
    """A piece of a log, and its expected classification."""

    label: str
    misleading: bool
    title: str
    text: str

    @property
    def rank(self) -> int | None:
        match = re.search(r"\(rank (\d+)\)", self.title)
        return int(match[1]) if match else None

    @property
    def node(self) -> str | None:
        match = re.search(r"\(node (\S+)\)", self.title)
        return match[1] if match else None


def load(folder: str) -> list[Excerpt]:
    excerpts = []
    for path in sorted((HERE / folder).glob("*.txt")):
        for part in re.split(r"(?m)^=== ", path.read_text())[1:]:
            title, _, text = part.partition("\n")
            kind, _, title = title.partition(": ")
            assert kind in ("plain", "misleading"), title
            excerpts.append(Excerpt(path.stem, kind == "misleading", title, text))
    return excerpts


def judged(text: str) -> tuple[str, Verdict]:
    """The label of the classifier, and its verdict."""
    facts = read_log(io.BytesIO(text.encode()))
    verdict = classify(facts)
    return (verdict.category if failed(facts) else NOTHING), verdict
