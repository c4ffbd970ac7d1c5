"""The modules and settings that this process imported, so that a later start can preload them.

Only installed modules: those of the job itself may change from one attempt to the next, and what
they do when they are imported is the job.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headway import redact

MAX_NAMES = 6000  # names
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
STANDARD = os.path.dirname(os.__file__) + os.sep
EXCLUDED = {"__main__", "__mp_main__", "headway", "sitecustomize", "usercustomize", "antigravity"}
# They act when an interpreter starts; what a script sets is for others.
AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.I)

# Variables that the script had set when torch was imported.
_settings: dict[str, str | None] = {}
_main: dict[str, str] = {}  # the program; when it has ended, its file is known no more
_settings_adopted = (
    False  # this process imports on behalf of others, whose settings were told before
)


def log_fields(order: Iterable[str]) -> dict[str, Any]:
    """The fields of the event `imported`; `order` is that of the imports."""
    return {
        "modules": list(fold(importable_names(order))),
        "set": _settings,
        **(_program() or _main),
    }


def importable_names(order: Iterable[str]) -> list[str]:
    """The names by which another process would import the same."""
    return [name for name in dict.fromkeys(order) if _is_importable(name)][:MAX_NAMES]


def fold(names: Iterable[str]) -> Iterator[str]:
    """Shorter: a leading dot stands for the package of the name before."""
    package = ""
    for name in names:
        yield name[len(package) :] if package and name.startswith(f"{package}.") else name
        package = name.rpartition(".")[0]


def adopt_settings(settings: Mapping[str, str]) -> None:
    """The settings of an earlier process, under which this one imports."""
    global _settings_adopted
    _settings_adopted = True
    _settings.update(settings)


def note_settings() -> None:
    """torch is about to be imported: what has the script set, against what it was started with?

    A zygote must import under the same settings. Values that look secret are left out.
    """
    if _settings_adopted:
        return
    _main.update(_program())
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:
        return
    initial = dict(entry.partition("=")[::2] for entry in entries if "=" in entry)
    _settings.clear()
    for name in sorted({*initial, *os.environ}):
        value = os.environ.get(name)
        if value != initial.get(name) and not name.startswith(("HEADWAY_", *AT_START)):
            secret = SECRET.search(name) or (value is not None and redact.text(value) != value)
            _settings[name] = None if secret else value


def _is_importable(name: str) -> bool:
    module = sys.modules.get(name)
    # Not by getattr: some modules load themselves when they are looked at.
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if spec is None or spec.name != name or name.partition(".")[0] in EXCLUDED:
        return False
    origin = spec.origin
    if origin in ("built-in", "frozen"):
        return True
    where = origin or next(iter(spec.submodule_search_locations or ()), "") + os.sep
    return where.startswith(STANDARD) or any(part in where for part in INSTALLED)


def _program() -> dict[str, str]:
    """The file that runs, and which version of it."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return {}
    path = os.path.realpath(path)
    try:
        status = os.stat(path)
    except OSError:
        return {}
    return {"main": path, "file": f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"}
