"""The terminal: its capabilities, the style of each bucket group, and printing of lines."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console
from rich.text import Text

from headway.format import printable

WIDTH = 100  # if standard output is no terminal


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise as print() does; rich would exit with code 1."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or error.

    It writes plain text if there is no terminal, or if NO_COLOR is set.
    """
    no_color = bool(os.environ.get("NO_COLOR"))
    terminal = _Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if no_color else "auto",
    )
    if not terminal.is_terminal and "COLUMNS" not in os.environ:
        terminal.width = WIDTH
    return terminal


def ascii_only(console: Console) -> bool:
    """Whether bars must be drawn with ASCII characters and without color."""
    return console.color_system is None or not _is_unicode(console)


def print_line(console: Console, line: Text) -> None:
    """Print a line without wrapping, so that commands can be copied."""
    line.plain = printable(line.plain)  # it may contain text of a journal
    if not _is_unicode(console):
        line = Text(line.plain.encode("ascii", "replace").decode())
    console.print(line, soft_wrap=True)


def _is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


GROUP_STYLES: Final = {
    "train": "green",
    "start": "blue",
    "waste": "yellow",
    "failure": "red",
    "recover": "magenta",
    "stop": "cyan",
    "unknown": "bright_black",
}
