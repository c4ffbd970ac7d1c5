"""Cut a network device of this node's network namespace, and restore it.

The same kernel call as `ip link set DEVICE down`, so that no tool is required.
"""

from __future__ import annotations

import fcntl
import socket
import struct

CAP_NET_ADMIN = 12
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 1
_REQUEST = struct.Struct("16sH14x")  # struct ifreq: the name, then the flags


def unusable_reason(device: str) -> str:
    """Why that device cannot be cut here; empty if it can."""
    devices = sorted(name for _, name in socket.if_nameindex())
    if device not in devices:
        return f"there is no network device {device!r}; there are {', '.join(devices) or 'none'}"
    if not _is_permitted():
        return (
            f"cutting {device!r} requires root (CAP_NET_ADMIN); run it in a container that has it"
        )
    return ""


def down(device: str) -> None:
    """Packets through the device are lost from now on, as with an unplugged cable."""
    _set(device, up=False)


def up(device: str) -> None:
    """Its addresses are unchanged; the routes of its own subnets are restored with it."""
    _set(device, up=True)


def _set(device: str, *, up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        name = device.encode()
        reply = fcntl.ioctl(channel, SIOCGIFFLAGS, _REQUEST.pack(name, 0))
        flags = _REQUEST.unpack(reply)[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(channel, SIOCSIFFLAGS, _REQUEST.pack(name, flags))


def _is_permitted() -> bool:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            caps = next(line for line in file if line.startswith("CapEff:"))
        return bool(int(caps.split()[1], 16) >> CAP_NET_ADMIN & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False
