"""Keys and signatures: only what the key signed is used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from headway.errors import MissingExtra, UsageError
from headway.storage.signing import Untrusted, path_untrusted_reason, read_key, seal, unseal
from tests.support import has_code

BODY = b"a list\nof files"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def secret(folder: Path, content: bytes = b"0123456789abcdef", mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def pair(folder: Path) -> tuple[str, str]:
    """Files of an ed25519 private key and its public key."""
    private = ed25519.Ed25519PrivateKey.generate()
    key, other = folder / "team.pem", folder / "team.pub"
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    key.chmod(0o600)
    other.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    other.chmod(0o644)
    return str(key), str(other)


def test_a_secret_signs_and_verifies(tmp_path: Path) -> None:
    key = read_key(secret(tmp_path))
    assert key.signs
    assert unseal(seal(BODY, key), key) == BODY


def test_a_pair_signs_and_its_public_half_verifies_only(tmp_path: Path) -> None:
    private, public = map(read_key, pair(tmp_path))
    sealed = seal(BODY, private)
    assert (private.signs, public.signs) == (True, False)
    assert unseal(sealed, private) == unseal(sealed, public) == BODY


@pytest.mark.parametrize("scheme", ["hmac", "ed25519"])
def test_no_byte_can_be_changed_or_cut(tmp_path: Path, scheme: str) -> None:
    key = read_key(secret(tmp_path) if scheme == "hmac" else pair(tmp_path)[0])
    sealed = seal(BODY, key)
    for at in range(len(sealed)):
        for bad in (sealed[:at], sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]):
            with pytest.raises(Untrusted):
                unseal(bad, key)
    with pytest.raises(Untrusted):
        unseal(sealed + b"x", key)


def test_another_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours = read_key(secret(tmp_path))
    theirs = read_key(secret(tmp_path / "other", b"fedcba9876543210"))
    with pytest.raises(Untrusted, check=has_code("signature-mismatch")):
        unseal(seal(BODY, theirs), ours)
    with pytest.raises(Untrusted, check=has_code("key-other-scheme")):
        unseal(seal(BODY, theirs), read_key(pair(tmp_path)[1]))


def test_what_is_unsigned_is_refused_once_there_is_a_key(tmp_path: Path) -> None:
    sealed = seal(BODY, None)
    assert unseal(sealed, None) == BODY
    with pytest.raises(Untrusted, check=has_code("archive-not-signed")):
        unseal(sealed, read_key(secret(tmp_path)))


@pytest.mark.parametrize("stored", [b"", b"\n", b"headway-archive 1 none", b"GIF89a...\n" + BODY])
def test_what_is_no_archive_is_refused(stored: bytes) -> None:
    with pytest.raises(Untrusted, check=has_code("not-an-archive")):
        unseal(stored, None)


def test_another_version_is_refused() -> None:
    with pytest.raises(Untrusted, check=has_code("archive-other-version")):
        unseal(seal(BODY, None).replace(b" 1 ", b" 2 ", 1), None)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    code = "key-writable-by-others" if mode & 0o022 else "key-readable-by-others"
    with pytest.raises(UsageError, check=has_code(code)):
        read_key(secret(tmp_path, mode=mode))
    private, _ = pair(tmp_path)
    os.chmod(private, mode)
    with pytest.raises(UsageError, check=has_code(code)):
        read_key(private)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_public_key_that_others_can_replace_is_refused(tmp_path: Path, mode: int) -> None:
    _, public = pair(tmp_path)
    os.chmod(public, mode)
    with pytest.raises(UsageError, check=has_code("key-writable-by-others")):
        read_key(public)


def test_keys_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("key-too-short")):
        read_key(secret(tmp_path, b"short"))
    with pytest.raises(UsageError, check=has_code("key-not-readable")):
        read_key(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, check=has_code("key-not-readable")):
        read_key(secret(tmp_path, b"-----BEGIN PRIVATE KEY-----\nrubbish"))
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = other.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(UsageError, check=has_code("key-not-ed25519")):
        read_key(secret(tmp_path, pem))


def test_without_cryptography_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, public = pair(tmp_path)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingExtra) as error:
        read_key(public)
    assert error.value.fields["package"] == "cryptography"


# -- folders ------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder that no other user can write, as pytest's own folders are."""
    assert not path_untrusted_reason(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    return folder


def test_a_folder_of_ones_own_is_safe_also_before_it_is_there(mine: Path) -> None:
    assert path_untrusted_reason(mine) == path_untrusted_reason(mine / "not" / "yet") == ""


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_can_write_is_not(mine: Path, mode: int) -> None:
    mine.chmod(mode)
    (mine / "below").mkdir()
    for folder in (mine, mine / "below"):
        assert path_untrusted_reason(folder).code == "writable-by-others"
        assert f"chmod go-w {mine}" in path_untrusted_reason(folder)


def test_a_link_is_safe_if_it_and_its_target_are(mine: Path) -> None:
    (mine / "store").mkdir()
    (mine / "link").symlink_to(mine / "store")
    assert path_untrusted_reason(mine / "link" / "chunks") == ""
    (mine / "store").chmod(0o777)
    assert path_untrusted_reason(mine / "link" / "chunks").code == "writable-by-others"
    (mine / "store").chmod(0o755)
    (mine / "open").mkdir()
    (mine / "open").chmod(0o777)
    (mine / "open" / "link").symlink_to(mine / "store")
    why = path_untrusted_reason(mine / "open" / "link" / "chunks")
    assert why.code == "writable-by-others" and why.endswith(f"chmod go-w {mine / 'open'}")


def test_a_link_to_itself_is_not(mine: Path) -> None:
    (mine / "loop").symlink_to(mine / "loop")
    assert path_untrusted_reason(mine / "loop" / "chunks").code == "path-not-readable"


@needs_root
def test_what_belongs_to_another_user_is_not(mine: Path) -> None:
    (mine / "theirs").mkdir()
    os.chown(mine / "theirs", 12345, 12345)
    why = path_untrusted_reason(mine / "theirs")
    assert why.code == "owned-by-another" and why.startswith(f"{mine / 'theirs'} ")
    (mine / "link").symlink_to(mine)
    os.lchown(mine / "link", 12345, 12345)
    why = path_untrusted_reason(mine / "link")
    assert why.code == "owned-by-another" and why.startswith(f"{mine / 'link'} ")
