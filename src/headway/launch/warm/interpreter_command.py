"""What a command line means to the Python interpreter that runs it, without running it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import HeadwayError

PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?")
FLAGS = "bBdEIOPqRsSv"  # options without a value that take effect when the interpreter starts
SHEBANG_LIMIT = 512
MAX_SCRIPTS = 4  # shells, env and scripts before an interpreter


class ColdStartRequired(HeadwayError):
    """The command cannot be started warm; the message is the reason, empty if not worth a note."""

    code = "started-cold"


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of an interpreter."""

    executable: str  # the file that is executed
    argv: tuple[str, ...]  # as in /proc/PID/cmdline
    comm: str  # as in /proc/PID/comm
    options: tuple[tuple[str, str], ...]  # those that take effect at the start, in order
    unbuffered: bool
    kind: str  # script, module or command
    program: str
    args: tuple[str, ...]

    def runs(self, script: str, module: str) -> bool:
        """Whether it runs this program, as an installed script or as a module."""
        if self.kind == "module":
            return self.program == module
        return self.kind == "script" and os.path.basename(self.program) == script


def read_command(executable: str, argv: Sequence[str], path: str | None) -> Invocation:
    """What the execution of this file with these words starts; `path` is the PATH for `env`."""
    words, comm = list(argv), os.path.basename(executable)
    for _ in range(MAX_SCRIPTS):
        if PYTHON.fullmatch(os.path.basename(executable)) and not _first_line(executable):
            return _parse(executable, words, comm)
        executable, words, comm = _follow(executable, words, comm, path)
    raise ColdStartRequired(
        f"{argv[0]} is started through too many scripts", code="too-many-scripts"
    )


def find_executable(word: str, path: str | None) -> str:
    """The file that the shell would execute for this word."""
    path_found = shutil.which(word, path=path)
    if path_found is None:
        raise ColdStartRequired(f"{word} was not found", code="command-not-found")
    return path_found


def _first_line(path: str) -> str:
    """The text after `#!`; empty if there is none."""
    try:
        with open(path, "rb") as file:
            start = file.read(SHEBANG_LIMIT)
    except OSError as error:
        raise ColdStartRequired(
            f"{path} cannot be read: {error.strerror}", code="program-unreadable"
        ) from None
    return os.fsdecode(start[2:].partition(b"\n")[0]).strip() if start[:2] == b"#!" else ""


def _follow(
    script: str, words: list[str], comm: str, path: str | None
) -> tuple[str, list[str], str]:
    """One step of how the kernel starts a script, or of how `env` and pip's launchers do."""
    line = _first_line(script)
    if not line:
        raise ColdStartRequired(
            f"{os.path.basename(script)} is not a Python program", code="not-a-python-program"
        )
    interpreter, _, option = line.partition(" ")
    extra = [option.strip()] if option.strip() else []
    if os.path.basename(interpreter) == "env":
        arguments = extra[0].removeprefix("-S").split() if extra else []
        if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
            raise ColdStartRequired(
                f"the first line of {script} is not understood", code="first-line-unknown"
            )
        return (
            find_executable(arguments[0], path),
            [*arguments, script, *words[1:]],
            os.path.basename(arguments[0]),
        )
    if os.path.basename(interpreter) == "sh":  # pip's form for an interpreter path that is too long
        match = re.match(
            rb"[^\n]*\n'''exec' (\"?)([^\"\n]+)\1 \"\$0\" \"\$@\"\n", _first_bytes(script)
        )
        if match is None:
            raise ColdStartRequired(
                f"{os.path.basename(script)} is a shell script", code="not-a-python-program"
            )
        interpreter = os.fsdecode(match[2])
        return interpreter, [interpreter, script, *words[1:]], os.path.basename(interpreter)
    return interpreter, [interpreter, *extra, script, *words[1:]], comm


def _first_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)


def _parse(executable: str, argv: Sequence[str], comm: str) -> Invocation:
    options: list[tuple[str, str]] = []
    unbuffered, index = False, 1

    def invocation(kind: str, program: str, rest: int) -> Invocation:
        return Invocation(
            executable=executable,
            argv=tuple(argv),
            comm=comm,
            options=tuple(options),
            unbuffered=unbuffered,
            kind=kind,
            program=program,
            args=tuple(argv[rest:]),
        )

    while index < len(argv):
        word = argv[index]
        index += 1
        if word == "-" or not word.startswith("-"):
            return invocation("script", word, index)
        if word.startswith("--"):
            raise ColdStartRequired(f"python {word}", code="python-option-unknown")
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "cmWX":
                value, letters = letters, ""
                if not value:
                    if index >= len(argv):
                        raise ColdStartRequired(
                            f"python -{letter} without a value", code="python-option-unknown"
                        )
                    value, index = argv[index], index + 1
                if letter in "cm":
                    return invocation("command" if letter == "c" else "module", value, index)
                options.append((letter, value))
            elif letter == "u":
                unbuffered = True
            elif letter in FLAGS:
                options.append((letter, ""))
            else:
                raise ColdStartRequired(f"python -{letter}", code="python-option-unknown")
    raise ColdStartRequired("python without a program", code="python-without-program")
