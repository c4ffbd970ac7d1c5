"""Two nodes on one machine: network namespaces with a cable between them, and a host name each.

They share processes and files, as nodes share a parallel file system, but nothing of the network:
what one sends to the other goes over the cable, which can be pulled. Needs root and `ip`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

ENTER = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True)
class Node:
    """One of them; `device` is its end of the cable, as it is called inside."""

    name: str
    namespace: str
    address: str
    device: str = "cable"

    def command(self, words: Sequence[str]) -> list[str]:
        """The command, run on this node; its process id is that of the command itself."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*inside, "/bin/sh", "-c", ENTER, self.name, *map(str, words)]

    def env(self) -> dict[str, str]:
        """What gloo needs, as the name of a node leads nowhere here."""
        return {"GLOO_SOCKET_IFNAME": self.device}

    def start(
        self, words: Sequence[str], env: dict[str, str], **more: Any
    ) -> subprocess.Popen[str]:
        """Start a command on this node; its output is a pipe."""
        return subprocess.Popen(
            self.command(words),
            env={**env, **self.env()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )

    def cut(self) -> None:
        """Pull the cable at this end: both nodes lose each other."""
        _ip("-n", self.namespace, "link", "set", self.device, "down")

    def mend(self) -> None:
        """Put it back."""
        _ip("-n", self.namespace, "link", "set", self.device, "up")

    def processes(self) -> list[int]:
        """Everything that runs on this node."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True
        )
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """The power is cut: everything on this node dies at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@cache
def missing() -> str:
    """Why there can be no two nodes on this machine; nothing if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"network namespaces need the command {tool}"
    try:
        with two_nodes():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes that reach each other; everything on them ends with the block."""
    mark = f"hw{secrets.token_hex(3)}"  # device names have at most 15 characters
    nodes = tuple(Node(f"node-{i}", f"{mark}-{i}", f"10.97.0.{i + 1}") for i in range(2))
    try:
        for node in nodes:
            _ip("netns", "add", node.namespace)
        ends = [f"{mark}e{i}" for i in range(2)]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for node, end in zip(nodes, ends, strict=True):
            _ip("link", "set", end, "netns", node.namespace, "name", node.device)
            _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", node.device)
            _ip("-n", node.namespace, "link", "set", "lo", "up")
            _ip("-n", node.namespace, "link", "set", node.device, "up")
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.kill()
            subprocess.run(["ip", "netns", "delete", node.namespace], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
