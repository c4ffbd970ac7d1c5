"""Exit codes and signals: how logs spell them, and what they mean on their own."""

from __future__ import annotations

import re
import signal

_SIGNALS = "|".join(name.name for name in signal.Signals)
_EXIT_TEXT = re.compile(
    r"exit ?code\s*[:=]?\s*(?P<code>-?\d+)"
    r"|(?:exits?|exited|failed|returned|terminated|ended) with (?:non-zero )?"
    r"(?:a )?(?:exit |return |status )?(?:code|status) ?[:=]? ?(?P<ended>-?\d+)"
    r"|returned non-zero exit status (?P<status>\d+)|exit status (?P<plain>\d+)\b"
    rf"|(?:with|by|on|got|exited on) signal:? ?(?:\d+ \()?<?(?:Signals\.)?(?P<name>{_SIGNALS})\b"
    rf"|died with <Signals\.(?P<died>{_SIGNALS})"
    r"|(?:on|by|with) signal (?P<number>\d+)\b"
    r"|[Ee]xit ?[Cc]ode:? +(?P<pod>\d+)\s*$|exitCode\"?: *(?P<json>\d+)"
    r"|ExitCode=(?P<slurm>\d+:\d+)"
)
_SHELL = tuple(
    (re.compile(rf"^(?:\S+: line \d+: +)?(?:\d+ +)?{word}\b(?!:)|tasks? [\d,\- ]+: {word}"), number)
    for word, number in (
        ("Killed", 9),
        ("Terminated", 15),
        ("Segmentation fault", 11),
        ("Aborted", 6),
        ("Bus error", 7),
    )
)
_WINDOWS = 0xC0000000  # exceptions of Windows start here
_IN_A_BYTE = {signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def parse_exit_code(text: str) -> int | None:
    """The exit code in a line, negative for a signal; None if there is none."""
    for regex, signal_number in _SHELL:
        if regex.search(text):
            return -signal_number
    match = _EXIT_TEXT.search(text)
    if match is None:
        return None
    for key in ("name", "died"):
        if match[key]:
            return -int(signal.Signals[match[key]])
    if match["number"]:
        return -int(match["number"])
    if match["slurm"]:
        code, _, number = match["slurm"].partition(":")
        return -int(number) if int(number) else int(code)
    return next(int(text) for text in match.groups() if text is not None)


def signal_of(code: int) -> int | None:
    """The signal of an exit code: -9 from a parent, 137 from a shell, 247 in a byte."""
    if code < 0:
        return -code
    if 256 - code in _IN_A_BYTE:
        return 256 - code
    return code - 128 if 128 < code < 160 else None


def describe_exit_code(code: int) -> str:
    """`exit code 1`, or the name of the signal with the number."""
    number = signal_of(code)
    if number is None:
        return f"exit code {code}"
    try:
        return f"{signal.Signals(number).name} (exit code {code})"
    except ValueError:
        return f"signal {number} (exit code {code})"


def meaning(code: int, *, no_oom: bool = False) -> tuple[str, str]:
    """Category and evidence of an exit code without other facts."""
    number, description = signal_of(code), describe_exit_code(code)
    if number == signal.SIGKILL and no_oom:
        return "unknown", f"killed by {description} from outside: the kernel counted no OOM kill"
    if number == signal.SIGKILL:
        likely = "most often because the host was out of memory"
        return "host_oom", f"killed by {description}, {likely}; there is no other evidence"
    if number == signal.SIGTERM:
        return "unknown", f"ended by {description} from outside: a preemption or a user"
    if number == signal.SIGINT:
        return "user_cancel", f"interrupted by {description}"
    if number in _CRASHES:
        return "native_crash", f"crashed with {description}"
    if code >= _WINDOWS:
        return "native_crash", f"crashed with status {code:#x}"
    if code == 2:
        return "user_code", "exit code 2, usual for wrong arguments"
    return "unknown", f"ended with {description} and no known reason"
