"""Whether a command may be forked from a forkserver, given what it has loaded and read."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.launch.warm.interpreter_command import ColdStartRequired, Invocation

# Read by C code at start or at import, where reads cannot be observed. Those in READ_LATER are read
# later, or set again in the child.
READ_AT_START = (
    "PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG", "OMP_", "GOMP_", "KMP_", "MKL_",
    "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "TORCH_", "PYTORCH_", "ATEN_", "KINETO_", "DNNL_",
    "ONEDNN_", "TQDM_", "NETWORKX_", "FSSPEC_",
)  # fmt: skip
READ_LATER = ("TORCH_NCCL_", "TORCH_FR_", "TORCH_GLOO_", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
# The set of visible devices does not affect imports, as long as there is one.
DEVICES_ENV = "CUDA_VISIBLE_DEVICES"
# Read by many packages, and hardly ever set by a script that names them.
COMMON_VARIABLES = {
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "LNAME",
    "USERNAME",
    "SHELL",
    "TERM",
    "PWD",
    "CI",
}
SETS_VARIABLES = re.compile(
    rb"environ\s*(\[[^]\n]*\]\s*=[^=]|\.\s*(setdefault|update|__setitem__)\b|\|=)|\bputenv\b"
)
VARIABLE = re.compile(rb"\b[A-Z][A-Z0-9_]{2,}\b")
SOURCES = (".py", ".pyc", ".so")
FLAG_ATTRIBUTES = {
    "b": "bytes_warning", "B": "dont_write_bytecode", "d": "debug", "E": "ignore_environment",
    "I": "isolated", "O": "optimize", "P": "safe_path", "q": "quiet", "R": "hash_randomization",
    "s": "no_user_site", "S": "no_site", "v": "verbose",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Conditions under which a process may be forked instead of started."""

    executable: str
    options: list[tuple[str, str]]  # of the interpreter, at the forkserver's start
    flags: dict[str, int]  # the resulting sys.flags
    warnings: list[str]  # the resulting sys.warnoptions
    env: dict[str, str]  # of the job
    preset: dict[str, str]  # variables that its script sets before it imports
    reads: list[str]  # variables that were read at import
    modules: list[str]  # top-level names that a fresh interpreter has not loaded
    mains: dict[str, str] = field(default_factory=dict)  # programs whose presets are known

    def check(self, invocation: Invocation, env: Mapping[str, str], cwd: str) -> None:
        """Raise ColdStartRequired with the reason if this command must be started cold."""
        if not same_file(invocation.executable, self.executable):
            raise ColdStartRequired(
                f"{invocation.executable} is not the interpreter of the forkserver",
                code="interpreter-differs",
            )
        self._check_options(invocation)
        self._check_environment(env)
        self._check_program(invocation, cwd)

    def _check_options(self, invocation: Invocation) -> None:
        own = {letter for letter, value in self.options if not value}
        requested_flags = {letter for letter, value in invocation.options if not value}
        for letter in sorted(own ^ requested_flags):
            if letter in own or not self.flags.get(FLAG_ATTRIBUTES[letter]):
                raise self._option_error(letter)
        for letter in "WX":
            requested = [value for name, value in invocation.options if name == letter]
            own_values = [value for name, value in self.options if name == letter]
            if requested != own_values and not (letter == "W" and requested == self.warnings):
                raise self._option_error(letter)

    def _option_error(self, letter: str) -> ColdStartRequired:
        text = f"the option -{letter} takes effect when the interpreter starts"
        return ColdStartRequired(text, code="python-option-differs", option=letter)

    def _check_environment(self, env: Mapping[str, str]) -> None:
        for name in sorted({*self.env, *env}):
            own_value, requested = self.env.get(name), env.get(name)
            if requested == own_value or not self._is_relevant(name):
                continue
            if name in self.preset and requested == self.preset[name]:
                continue
            if name == DEVICES_ENV and has_devices(own_value) == has_devices(requested):
                continue
            if name == "OMP_NUM_THREADS" and requested and requested.strip().isdecimal():
                continue  # set again in the child
            raise ColdStartRequired(
                f"{name} is read at import and is {requested!r} in this process",
                code="environment-differs",
                variable=name,
            )

    def _is_relevant(self, name: str) -> bool:
        if name.startswith("HEADWAY_") and name != "HEADWAY_OFF":
            return False
        return name in self.reads or (
            name.startswith(READ_AT_START) and not name.startswith(READ_LATER)
        )

    def _check_program(self, invocation: Invocation, cwd: str) -> None:
        first = cwd
        if invocation.kind == "script":
            path = os.path.join(cwd, invocation.program)
            if invocation.program == "-" or not os.path.isfile(path):
                raise ColdStartRequired(
                    f"{invocation.program} is not a file", code="program-not-a-file"
                )
            if zipfile.is_zipfile(path):
                raise ColdStartRequired(
                    f"{invocation.program} is an archive", code="program-is-an-archive"
                )
            first = os.path.dirname(os.path.realpath(path))
            self._check_source(path)
        elif invocation.kind == "module":
            for path in self.mains:
                if _is_module(path, invocation.program):
                    self._check_source(path)
        elif "resource_tracker" in invocation.program:
            raise ColdStartRequired("")  # it imports almost nothing
        hidden = shadowing_file(first, set(self.modules))
        if hidden:
            raise ColdStartRequired(
                f"{hidden} in {first} would take precedence over the installed module",
                code="module-shadowed",
                file=hidden,
            )

    def _check_source(self, path: str) -> None:
        """Reject a script that may set a variable before its imports, unless it was observed to do
        so.

        The forkserver has imported already, so such a variable would come too late.
        """
        if self.mains.get(os.path.realpath(path)) == file_identity(path):
            return
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            raise ColdStartRequired(
                f"{path}: {error.strerror}", code="program-unreadable"
            ) from None
        if not SETS_VARIABLES.search(text):
            return
        for match in VARIABLE.findall(text):
            name = match.decode()
            if name not in COMMON_VARIABLES and name not in self.preset and self._is_relevant(name):
                raise ColdStartRequired(
                    f"{os.path.basename(path)} may set {name}, which is read at import",
                    code="program-sets-variable",
                    variable=name,
                )


def same_file(first: str, second: str) -> bool:
    """Whether both are the same interpreter of one environment, such as `python` and `python3`."""
    if first == second:
        return True
    folders = {os.path.realpath(os.path.dirname(path)) for path in (first, second)}
    return len(folders) == 1 and os.path.realpath(first) == os.path.realpath(second)


def has_devices(value: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves any device visible."""
    return value is None or value.strip() not in ("", "-1", "NoDevFiles")


def shadowing_file(folder: str, names: set[str]) -> str:
    """A file that an import would find before the installed package; empty if there is none."""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return ""
    for entry in entries:
        stem = entry.partition(".")[0]
        if stem not in names:
            continue
        if entry.endswith(SOURCES) or os.path.isfile(os.path.join(folder, entry, "__init__.py")):
            return entry
    return ""


def file_identity(path: str) -> str:
    """Identity of a file's content without reading it; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def _is_module(path: str, module: str) -> bool:
    """Whether `python -m module` may run this file."""
    parts = module.replace(".", "/")
    return path.endswith((f"/{parts}.py", f"/{parts}/__main__.py"))
