"""Keys of compile archives: facts of the machine, and the job's name, code and configuration."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import redact
from headway.probe import host_facts

Facts = Mapping[str, Any]  # of a process and its machine: see headway/probe/host_facts.py

FACT_NAMES = {
    "torch": "torch",
    "git": "build of torch",
    "python": "Python",
    "cuda": "CUDA",
    "hip": "ROCm",
    "triton": "Triton",
    "driver": "driver",
    "gpu": "GPU",
    "machine": "processor",
    "isa": "instructions",
    "glibc": "glibc",
    "libstdcxx": "libstdc++",
    "env": "environment",
    "tier": "tier",
}
CONFIG_BYTES = 1 << 20  # larger files are data
MODULE_OPTIONS = ("-m", "--module")
# Takes code after -c; options may come between.
INTERPRETER = re.compile(r"python|(ba|da|z|k)?sh$|-")


def describe_difference(here: Facts, there: Facts) -> str:
    """Describe how the machine and process that made an archive differ from this one."""
    return ", ".join(
        _difference_text(key, here.get(key), there.get(key)) for key in differing_facts(here, there)
    )


def differing_facts(here: Facts, there: Facts) -> list[str]:
    names = [*FACT_NAMES, *sorted({*here, *there} - {*FACT_NAMES, host_facts.PLACE})]
    return [name for name in names if here.get(name) != there.get(name)]


def _difference_text(key: str, here: Any, there: Any) -> str:
    if isinstance(here, dict) and isinstance(there, dict):
        changed = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
        return ", ".join(
            _difference_text(name, here.get(name), there.get(name)) for name in changed
        )
    label = FACT_NAMES.get(key, key)
    if isinstance(here, list) and isinstance(there, list) and any(item in here for item in there):
        missing, extra = _without(there, here), _without(here, there)
        parts = [
            f"without {_value_text(missing)}" if missing else "",
            f"with {_value_text(extra)}" if extra else "",
        ]
        return f"{label} here are {' and '.join(filter(None, parts))}"
    return f"{label} is {_value_text(here)} here and was {_value_text(there)}"


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    return [item for item in items if item not in others]


def _value_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """The archive that a job looks up."""

    facts: Facts
    job: str
    code: str = ""

    @property
    def key(self) -> str:
        """Digest of the facts; only archives with the same digest can be used."""
        return host_facts.compile_key(self.facts)


def code_digest(command: Sequence[str]) -> str:
    """Digest of a job's code: its scripts, else its module or the code given by -c.

    Empty if none of them can be read.
    """
    parts = [_small_file(word) for word in command if word.endswith(".py")]
    if not any(parts):
        modules = (name for word, name in itertools.pairwise(command) if word in MODULE_OPTIONS)
        parts = [*map(_module_source, modules), *_inline_code(command)]
    if not any(parts):
        parts = [_small_file(word) for word in command]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16] if any(parts) else ""


def _module_source(name: str) -> bytes:
    """The source of a module, located as Python would, but without importing anything."""
    relative = name.replace(".", "/")
    folders = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    for folder in (os.getcwd(), *filter(None, folders)):
        for file in (f"{relative}/__main__.py", f"{relative}.py"):
            content = _small_file(os.path.join(folder, file))
            if content:
                return content
    return b""


def _inline_code(command: Sequence[str]) -> Iterator[bytes]:
    """Code that is passed to an interpreter by -c."""
    for program, word, text in zip(command, command[1:], command[2:], strict=False):
        if word == "-c" and INTERPRETER.match(os.path.basename(program)):
            yield text.encode(errors="replace")


def config_digest(command: Sequence[str]) -> str:
    """Digest of a job's arguments, secrets masked, and of the small files that they name."""
    digest = hashlib.sha256("\0".join(redact.words(command)).encode(errors="replace"))
    for word in command:
        digest.update(_small_file(word.rpartition("=")[2]))
    return digest.hexdigest()[:12]


def _small_file(path: str) -> bytes:
    """The content of a file, or nothing if it cannot be read or is too large to be code."""
    with contextlib.suppress(OSError, ValueError):
        if os.path.isfile(path) and os.path.getsize(path) <= CONFIG_BYTES:
            return Path(path).read_bytes()
    return b""
