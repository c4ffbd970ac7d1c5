"""Everything that an earlier version wrote is read as it was then.

A changed result is a broken promise to users, or one that was changed on purpose: then
`pytest tests/golden --update-golden` writes the new results, to be reviewed as a diff.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from tests.golden.cases import Case, as_text, cases, listing
from tests.golden.record import recorders

CASES = cases()
POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the byte that is changed, from the first to the last
# Folders of people, of temporary files and of builds.
OF_A_MACHINE = re.compile(rb"/(root|home/\w|Users/\w|tmp/\w|work/\w|var/folders)")


def name(case: Case) -> str:
    return f"{case.format}/{case.name}"


def needed(case: Case) -> None:
    if missing := case.missing():
        pytest.skip(f"{name(case)} needs {', '.join(missing)}")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_an_old_file_is_read_as_before(
    case: Case, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    needed(case)
    result = case.read(case.copy(tmp_path))
    if pytestconfig.getoption("--update-golden"):
        case.expected.write_text(as_text(result))
    expected, found = (text.splitlines() for text in (case.expected.read_text(), as_text(result)))
    changes = difflib.unified_diff(expected, found, "expected.json", "now", lineterm="", n=3)
    assert expected == found, "\n".join([f"{name(case)} is read in another way", *changes])


@pytest.mark.parametrize("case", [one for one in CASES if one.sealed], ids=name)
def test_a_flipped_byte_is_refused(case: Case, tmp_path: Path) -> None:
    """Or the comparison above would say nothing of what was read."""
    needed(case)
    files = case.copy(tmp_path)
    assert not case.reader.refused(files)
    paths = case.reader.sealed(files)
    assert paths
    for path in paths:
        content = path.read_bytes()
        for position in sorted({round(part * (len(content) - 1)) for part in POSITIONS}):
            flipped = bytearray(content)
            flipped[position] ^= 0x10
            path.write_bytes(flipped)
            assert case.reader.refused(files), f"{path.name}, byte {position}"
        path.write_bytes(content)
    assert not case.reader.refused(files)


def test_every_recorder_has_its_case() -> None:
    assert set(recorders()) <= {name(case) for case in CASES}


def test_the_files_are_of_no_machine() -> None:
    for case in CASES:
        for path in listing(case.folder):
            found = OF_A_MACHINE.search(path.read_bytes())
            assert not found, f"{path} has {found and found[0]!r}"
