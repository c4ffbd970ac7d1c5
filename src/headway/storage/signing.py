"""Decide whether stored bytes can be trusted: by a signature, or by who can write the file.

Signatures are HMAC-SHA256 with a shared secret, or ed25519 (needs the package cryptography): a
private key signs and verifies, a public key only verifies.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Any, Protocol

from headway.errors import FINE, HeadwayError, MissingExtra, Reason, UsageError

MAGIC = b"headway-archive"
MIN_SECRET_BYTES = 16


class Untrusted(HeadwayError):
    """Data that is not trusted: wrong signature, or writable by others."""


class SigningKey(Protocol):
    """A way to sign and verify data."""

    scheme: str
    signs: bool  # whether it can create signatures

    def sign(self, body: bytes) -> bytes:
        """The signature."""

    def verify(self, body: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's."""


class HmacKey:
    """A shared secret for HMAC-SHA256."""

    scheme = "hmac-sha256"
    signs = True

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, body: bytes) -> bytes:
        """The signature."""
        return hmac.new(self._secret, body, hashlib.sha256).digest()

    def verify(self, body: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's."""
        return hmac.compare_digest(self.sign(body), signature)


class Ed25519Key:
    """An ed25519 key pair, or only its public key."""

    scheme = "ed25519"

    def __init__(self, pem: bytes) -> None:
        serialization, errors = _cryptography()
        self._invalid = errors
        self._private: Any = None
        try:
            if b"PRIVATE" in pem:
                self._private = serialization.load_pem_private_key(pem, None)
                self._public: Any = self._private.public_key()
            else:
                self._public = serialization.load_pem_public_key(pem)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the key for compile archives cannot be read: {error}", code="key-not-readable"
            ) from None
        if "Ed25519" not in type(self._public).__name__:
            raise UsageError(
                "the key for compile archives is not an ed25519 key", code="key-not-ed25519"
            )
        self.signs = self._private is not None

    def sign(self, body: bytes) -> bytes:
        """The signature."""
        signature: bytes = self._private.sign(body)
        return signature

    def verify(self, body: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's."""
        try:
            self._public.verify(signature, body)
        except self._invalid:
            return False
        return True


def read_key(path: str) -> SigningKey:
    """Read a key from a file; refuses files that others can read or write."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1 << 16).strip()
    except OSError as error:
        raise UsageError(
            f"the key {path} cannot be read: {error.strerror}", code="key-not-readable"
        ) from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"the key {path} can be written by others; type: chmod go-w {path}",
            code="key-writable-by-others",
        )
    if content.startswith(b"-----BEGIN PUBLIC"):
        return Ed25519Key(content)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"the key {path} can be read by others; type: chmod 600 {path}",
            code="key-readable-by-others",
        )
    if content.startswith(b"-----BEGIN"):
        return Ed25519Key(content)
    if len(content) < MIN_SECRET_BYTES:
        raise UsageError(
            f"the key {path} is shorter than {MIN_SECRET_BYTES} bytes; make another one",
            code="key-too-short",
        )
    return HmacKey(content)


def seal(body: bytes, key: SigningKey | None) -> bytes:
    """Prefix the body with a line that holds the scheme and the signature."""
    scheme, signature = ("none", b"") if key is None else (key.scheme, key.sign(body))
    return MAGIC + b" 1 " + scheme.encode() + b" " + signature.hex().encode() + b"\n" + body


def unseal(data: bytes, key: SigningKey | None) -> bytes:
    """Verify the signature and return the body; without a key it is not verified."""
    line, newline, body = data.partition(b"\n")
    fields = line.split(b" ")
    if not newline or len(fields) != 4 or fields[0] != MAGIC:
        raise Untrusted("not an archive of Headway, or truncated", code="not-an-archive")
    if fields[1] != b"1":
        raise Untrusted("made by an incompatible version of Headway", code="archive-other-version")
    if key is None:
        return body
    scheme, signature = fields[2].decode("ascii", "replace"), fields[3]
    if scheme == "none":
        raise Untrusted("it is not signed", code="archive-not-signed")
    if scheme != key.scheme:
        raise Untrusted(
            f"it is signed with {scheme}, but the key is {key.scheme}", code="key-other-scheme"
        )
    try:
        is_valid = key.verify(body, bytes.fromhex(signature.decode("ascii", "replace")))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Untrusted("it was modified, or signed with another key", code="signature-mismatch")
    return body


def path_untrusted_reason(path: Path) -> Reason:
    """Why users other than this one and root could change the path; empty if they cannot."""
    path = path.absolute()
    for current in (path, *path.parents):
        try:
            status = current.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            text = f"{current} cannot be read: {error.strerror}"
            return Reason(text, code="path-not-readable")
        if stat.S_ISLNK(status.st_mode):
            if status.st_uid not in (os.geteuid(), 0):
                return _belongs_to_another(current)
            target = current.resolve() / path.relative_to(current)
            return path_untrusted_reason(target) or path_untrusted_reason(current.parent)
        reason = stat_untrusted_reason(status, current)
        if reason:
            return reason
    return FINE


def stat_untrusted_reason(status: os.stat_result, path: Path) -> Reason:
    """Why other users could change the file; empty if they cannot."""
    if status.st_uid not in (os.geteuid(), 0):
        return _belongs_to_another(path)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if shared and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        text = f"{path} can be written by others; type: chmod go-w {path}"
        return Reason(text, code="writable-by-others")
    return FINE


def _belongs_to_another(path: Path) -> Reason:
    return Reason(f"{path} belongs to another user", code="owned-by-another")


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise MissingExtra(
            "an ed25519 key needs cryptography", extra="ed25519", package="cryptography"
        ) from None
    return serialization, InvalidSignature
