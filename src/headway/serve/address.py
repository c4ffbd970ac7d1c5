"""Parse and check the listen address, bind it, and check Host headers. Standard library only."""

from __future__ import annotations

import ipaddress
import socket

from headway.errors import UsageError

DEFAULT_ADDRESS = "127.0.0.1:8787"
MIN_TOKEN_LENGTH = 16  # characters of a token


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(
            f"--listen must be HOST:PORT, such as {DEFAULT_ADDRESS}, not {text!r}",
            code="address-invalid",
        )
    return host, int(port)


def check_token(host: str, token: str | None) -> None:
    """Raise UsageError if other machines could read the pages without a token."""
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise UsageError(
            f"the token must have {MIN_TOKEN_LENGTH} or more characters, not {len(token)}; "
            "to make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'",
            code="token-too-short",
        )
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--listen {host} is reachable from other machines; "
            "set a token with --token or HEADWAY_TOKEN, or listen on 127.0.0.1",
            code="token-missing",
        )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UsageError(
            f"--listen {host} cannot be resolved: {error.strerror}", code="address-unknown"
        ) from None
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def bind(host: str, port: int) -> socket.socket:
    """Open the port; UsageError if it is in use or not permitted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {host}:{port}: {reason}; use another --listen",
            code="address-unusable",
        ) from None


def is_known_host(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this server; prevents DNS rebinding."""
    try:
        name = _host_name(header).lower().rstrip(".")
    except ValueError:
        return False
    if name in names or name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(header: str) -> str:
    """The host without its port."""
    name, port = header, ""
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        port = rest.removeprefix(":")
    elif header.count(":") == 1:
        name, _, port = header.partition(":")
    if port and not (port.isascii() and port.isdecimal()):
        raise ValueError(header)
    return name
