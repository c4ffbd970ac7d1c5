"""Listen addresses and Host headers."""

from __future__ import annotations

import socket

import pytest

from headway.errors import UsageError
from headway.serve.address import bind, check_token, is_known_host, parse_address
from tests.support import has_code


def test_addresses() -> None:
    assert parse_address("127.0.0.1:8787") == ("127.0.0.1", 8787)
    assert parse_address("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("text", ["8787", ":8787", "host:", "host:x", "host:70000", "host:-1"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(UsageError, check=has_code("address-invalid")):
        parse_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    check_token(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(UsageError, check=has_code("token-missing")):
        check_token(host, None)
    check_token(host, "a-token-that-is-long")
    with pytest.raises(UsageError, check=has_code("token-too-short")):
        check_token(host, "short")


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, check=has_code("address-unusable")):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("127.0.0.1:8787", True),
        ("[::1]:8787", True),
        ("localhost", True),
        ("LOCALHOST.:1", True),
        ("fleet.example", True),
        ("evil.example", False),  # a name that its owner points at 127.0.0.1
        ("evil.example:8787", False),
        ("fleet.example.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:x", False),
        ("", False),
    ],
)
def test_known_hosts(header: str, known: bool) -> None:
    assert is_known_host(header, frozenset({"fleet.example"})) is known
