"""A notification as JSON on the standard input of a command; exit code 0 is done."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass

from headway.fleet.alerts.channels.message import (
    TIMEOUT_S,
    DeliveryFailed,
    Message,
    is_text,
    is_timeout,
)

MAX_STDERR = 200  # characters of what a failed command said


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words, or with `shell` one line for the shell."""

    command: list[str] | str
    shell: bool = False
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.shell != isinstance(self.command, str):
            raise ValueError("a command is a list of words, or a text with shell = true")

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """What is wrong with a value of the rules file."""
        words = isinstance(value, list) and value and all(isinstance(one, str) for one in value)
        if key == "command" and not (words or is_text(value)):
            return "must be a list of words, or a text with shell = true"
        if key == "shell" and not isinstance(value, bool):
            return "must be true or false"
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """It needs nothing of the environment."""

    def send(self, message: Message) -> str:
        """Run it; with all that it has started it is ended at the time limit."""
        try:
            process = subprocess.Popen(
                self.command,
                shell=self.shell,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DeliveryFailed(str(error), code="command-not-started") from None
        try:
            _, said = process.communicate(json.dumps(message).encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise DeliveryFailed(
                f"it took more than {self.timeout_s:g} s", code="command-timeout"
            ) from None
        if process.returncode:
            why = " ".join(said.decode("utf-8", "replace").split())[-MAX_STDERR:]
            raise DeliveryFailed(
                f"it ended with {process.returncode}" + (f": {why}" if why else ""),
                code="command-failed",
                exit_code=process.returncode,
                output=why,
            )
        return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
