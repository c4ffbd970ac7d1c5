"""Nobody else can take the name of a writer, or speak for one."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path

import pytest

from headway.checkpoint.writer import address, client, protocol
from headway.checkpoint.writer.address import Address
from headway.storage import disk
from tests.support import NO_PROCESS

pytestmark = pytest.mark.timeout(30)
OWN = f"headway-{os.geteuid()}"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def name() -> str:
    return f"headway-test-{secrets.token_hex(8)}"


def used() -> str:
    """The folder that is used."""
    with address.folder() as path:
        return os.path.realpath(path)


def test_the_folder_is_this_users_alone(base: Path) -> None:
    assert used() == str(base / OWN)
    assert (base / OWN).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_enter_is_not_used(base: Path) -> None:
    (base / OWN).mkdir()
    (base / OWN).chmod(0o755)
    assert used() != str(base / OWN)


def test_a_link_to_another_folder_is_not_used(base: Path) -> None:
    (base / "elsewhere").mkdir(0o700)
    (base / OWN).symlink_to(base / "elsewhere")
    assert used() not in (str(base / OWN), str(base / "elsewhere"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a folder away")
def test_a_folder_of_somebody_else_is_not_used(base: Path) -> None:
    (base / OWN).mkdir(0o700)
    os.chown(base / OWN, 65534, 65534)
    assert used() != str(base / OWN)


def test_who_takes_all_public_folders_keeps_nobody_from_starting(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "PUBLIC_FOLDERS", [str(base / "tmp"), str(base / "shm")])
    for taken in (base, base / "tmp", base / "shm"):
        (taken / OWN).mkdir(parents=True)
        (taken / OWN).chmod(0o777)
    monkeypatch.setenv("HOME", str(base / "home"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert Path(used()).is_relative_to(base / "home")
    assert os.stat(used()).st_mode & 0o777 == 0o700


def test_a_name_is_held_until_it_is_released(base: Path, name: str) -> None:
    first = Address(name)
    with pytest.raises(disk.Busy):
        Address(name)
    first.release()
    assert list((base / OWN).iterdir()) == []
    Address(name).release()


def test_a_name_of_one_that_was_killed_is_free(base: Path, name: str) -> None:
    for left in ("", ".lock", ".log"):
        (base / OWN / f"{name}{left}").parent.mkdir(mode=0o700, exist_ok=True)
        (base / OWN / f"{name}{left}").touch()
    other = Address(f"{name}-other")
    assert {path.name for path in (base / OWN).iterdir()} == {
        f"{name}-other",
        f"{name}-other.lock",
    }
    other.release()


def test_a_writer_of_another_user_is_not_spoken_to(
    base: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Address(name)
    monkeypatch.setattr(protocol, "peer", lambda end: (NO_PROCESS, os.geteuid() + 1))
    with pytest.raises(protocol.PeerClosed):
        address.connect(name, 5)
    assert client.peek(name) is None
    held.release()


def test_a_name_without_a_folder_is_of_no_use(base: Path, name: str) -> None:
    """An abstract name can be taken by anybody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(f"\0{name}")
        squatter.listen()
        assert client.peek(name) is None
        Address(name).release()
