"""The modules and settings that this process imported, so that a later start can preload them.

Only installed modules: those of the job itself may change between attempts, and importing them may
run the job.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headway import redact

MAX_NAMES = 6000
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
STANDARD = os.path.dirname(os.__file__) + os.sep
EXCLUDED = {"__main__", "__mp_main__", "headway", "sitecustomize", "usercustomize", "antigravity"}
# Settings that act at the start of an interpreter: a script sets them for other processes.
AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.I)

# Variables that the script had set before torch was imported.
_settings: dict[str, str | None] = {}
_main: dict[str, str] = {}  # the program; at exit, its file is no longer known
_settings_adopted = False  # the fork server uses the settings of an earlier process


def log_fields(order: Iterable[str]) -> dict[str, Any]:
    """The fields of the event `imported`; `order`: module names in the order of import."""
    return {
        "modules": list(fold(importable_names(order))),
        "set": _settings,
        **(_program() or _main),
    }


def importable_names(order: Iterable[str]) -> list[str]:
    """The names that another process can import as well."""
    return [name for name in dict.fromkeys(order) if _is_importable(name)][:MAX_NAMES]


def fold(names: Iterable[str]) -> Iterator[str]:
    """Shorten the names: a leading dot stands for the package of the previous name."""
    package = ""
    for name in names:
        yield name[len(package) :] if package and name.startswith(f"{package}.") else name
        package = name.rpartition(".")[0]


def adopt_settings(settings: Mapping[str, str]) -> None:
    """Use the settings of an earlier process, as the fork server does."""
    global _settings_adopted
    _settings_adopted = True
    _settings.update(settings)


def note_settings() -> None:
    """Store the variables that the script has changed since its start; called before torch.

    A fork server has to import torch with the same settings. Secret values are omitted.
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
    # Not with getattr: lazy modules would be imported.
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if spec is None or spec.name != name or name.partition(".")[0] in EXCLUDED:
        return False
    origin = spec.origin
    if origin in ("built-in", "frozen"):
        return True
    where = origin or next(iter(spec.submodule_search_locations or ()), "") + os.sep
    return where.startswith(STANDARD) or any(part in where for part in INSTALLED)


def _program() -> dict[str, str]:
    """The file of the program, and its identity."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return {}
    path = os.path.realpath(path)
    try:
        status = os.stat(path)
    except OSError:
        return {}
    return {"main": path, "file": f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"}
