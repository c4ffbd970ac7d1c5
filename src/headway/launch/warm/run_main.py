"""Give the interpreter its program once its start is finished.

The forkserver runs as `python -m NAME`: the interpreter fetches `runpy._run_module_as_main` and
calls it. In a child it gets another function to call, in C throughout, so that there is no frame of
Headway below the program: tracebacks, exit codes and `__main__` come from the same code as in a
cold process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from headway.launch.warm.interpreter_command import Invocation

SOURCE_IS_UTF8, IGNORE_COOKIE = 0x0100, 0x0800


_used_by_c: list[Any] = []  # objects that C code points to


class _CompilerFlags(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_int), ("feature_version", ctypes.c_int)]


class MainRunner:
    """Replaces the module runpy until the interpreter has used it once."""

    def __init__(self, invocation: Invocation) -> None:
        self.__spec__ = None
        self._invocation = invocation
        self._runpy = sys.modules.pop("runpy", None)
        self._path = list(sys.path)

    @property
    def _run_module_as_main(self) -> Callable[..., Any]:
        sys.modules.pop("runpy")
        if self._runpy is not None:
            sys.modules["runpy"] = self._runpy
        self._set_first_path()
        return {"script": _script, "module": _module, "command": _command}[self._invocation.kind](
            self._invocation.program
        )

    def _set_first_path(self) -> None:
        """Correct sys.path[0], which is the working directory after any `-m`."""
        if sys.path == self._path or self._invocation.kind == "module":
            return  # -P, or already correct
        first = ""
        if self._invocation.kind == "script":
            first = os.path.dirname(os.path.realpath(self._invocation.program))
        sys.path[0] = first


def run_as_main(invocation: Invocation) -> None:
    """Make the interpreter run this program."""
    sys.modules["runpy"] = MainRunner(invocation)  # type: ignore[assignment]


def _script(program: str) -> Callable[..., Any]:
    path = program if os.path.isabs(program) else f"{os.getcwd()}/{program}"
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:
        raise OSError(f"{path} does not exist")
    call = ctypes.pythonapi.PyRun_AnyFileExFlags
    call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    call.restype = _exit_on_error
    return functools.partial(call, file, os.fsencode(path), 1, None)


def _command(program: str) -> Callable[..., Any]:
    if sys.version_info >= (3, 14):
        import textwrap

        program = textwrap.dedent(program)
    _show_source(program)
    flags = _CompilerFlags(SOURCE_IS_UTF8 | IGNORE_COOKIE, sys.version_info.minor)
    call = ctypes.pythonapi.PyRun_SimpleStringFlags
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    call.restype = _exit_on_error
    _used_by_c.append(flags)
    return functools.partial(call, program.encode(), ctypes.addressof(flags))


def _show_source(program: str) -> None:
    """Register the source of a command: from Python 3.13 on, tracebacks show its lines."""
    if sys.version_info < (3, 13):
        return
    import linecache

    register: Any = getattr(linecache, "_register_code", None)
    with contextlib.suppress(Exception):
        code: Any = "<string>"
        if sys.version_info >= (3, 14):
            code = compile(program, "<string>", "exec", dont_inherit=True)
        register(code, program, "<string>")


def _module(program: str) -> Callable[..., Any]:
    import runpy

    call = ctypes.pythonapi.PyObject_CallNoArgs
    call.argtypes = [ctypes.py_object]
    call.restype = ctypes.py_object
    run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    return functools.partial(call, functools.partial(run, program, True))


def _exit_on_error(status: int) -> None:
    """Exit with 1 after an exception, which has been printed already."""
    if status:
        raise SystemExit(1)
