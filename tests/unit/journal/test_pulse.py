from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headway.journal import pulse


def test_what_is_stored_can_be_read_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pulse")
    cells = pulse.create(path, pid=7)
    names = {
        "steps": pulse.STEPS, "last_step": pulse.LAST_STEP, "alive": pulse.ALIVE,
        "window": pulse.WINDOW, "window_at": pulse.WINDOW_AT, "batches": pulse.BATCHES,
        "wait": pulse.WAIT, "waiting": pulse.WAITING, "samples": pulse.SAMPLES,
        "window_batches": pulse.WINDOW_BATCHES,
    }  # fmt: skip
    for value, cell in enumerate(names.values(), start=10):
        cells[cell] = value
    page = pulse.read(path)
    assert page is not None
    assert [getattr(page, name) for name in names] == list(range(10, 10 + len(names)))
    assert os.path.getsize(path) == pulse.SIZE
    assert cells[pulse.PID] == 7


def test_a_new_page_says_nothing_yet(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pulse")
    pulse.create(path, pid=7)
    assert pulse.read(path) == pulse.Pulse()


@pytest.mark.parametrize("content", [b"", b"short", bytes(pulse.SIZE), b"\xff" * pulse.SIZE])
def test_what_is_no_page_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pulse"
    path.write_bytes(content)
    assert pulse.read(str(path)) is None


def test_a_negative_cell_is_damage(tmp_path: Path) -> None:
    path = str(tmp_path / "x.pulse")
    pulse.create(path, pid=7)[pulse.STEPS] = -1
    assert pulse.read(path) is None


def test_no_file_is_none(tmp_path: Path) -> None:
    assert pulse.read(str(tmp_path / "x.pulse")) is None


def test_a_page_that_did_not_fit_is_an_error_and_no_sigbus_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse.os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError) as caught:
        pulse.create(str(tmp_path / "x.pulse"), pid=7)
    assert caught.value.errno == errno.ENOSPC


def test_cells_that_go_nowhere_take_the_same_stores() -> None:
    cells = pulse.anonymous()
    cells[pulse.STEPS] = 3
    assert len(cells) * 8 == pulse.SIZE
