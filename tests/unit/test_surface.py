"""The public surface equals the recorded one, so that changes are seen in a diff."""

from __future__ import annotations

import difflib
import re

import pytest

from tools import public, surface

CURE = "if that is meant: make surface"


@pytest.mark.parametrize("section", surface.SECTIONS, ids=lambda one: one.name)
def test_a_section_is_as_recorded(section: surface.Section) -> None:
    if missing := section.missing():
        pytest.skip(f"the section needs {', '.join(missing)}")
    recorded = surface.recorded()[section.title].splitlines()
    found = surface.made(section).splitlines()
    changes = difflib.unified_diff(recorded, found, "docs/reference/surface.txt", "now", "", "", 0)
    assert recorded == found, "\n".join([f"the surface has changed; {CURE}", *changes])


def test_the_file_has_each_section_once_and_no_other() -> None:
    assert list(surface.recorded()) == [section.title for section in surface.SECTIONS], CURE
    assert surface.FILE.read_text().startswith(f"{surface.HEAD}\n\n== ")


def test_every_event_that_is_written_is_documented() -> None:
    documented = set(surface.journal_documented())
    written = {line.partition(" ")[0] for line in surface.journal_written()} - {"span"}
    assert written <= {line.removeprefix("event ") for line in documented}


def test_the_documentation_imports_public_names_only() -> None:
    pattern = re.compile(
        r"^ *(?:from (headway[\w.]*) import ([\w, ]+)|import (headway[\w.]*))", re.M
    )
    names = {re.split(r"[(: ]", line)[0] for line in public.names()}
    for path in (surface.TREE / "docs").rglob("*.md"):
        for module, imported, alone in pattern.findall(path.read_text()):
            wanted = [f"{module}.{name.strip()}" for name in imported.split(",")]
            for name in [alone] if alone else wanted:
                assert name in names, f"{path.name} imports {name}, which tools/public.py lacks"
