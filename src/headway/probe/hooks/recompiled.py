"""What torch knows about a recompile: the guards that failed, the values, the lattice of shapes.

Looked at only when a compile happens, and without running any code of the job.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from headway.probe import frames

MAX_GUARDS = 8  # of one recompile: torch keeps as many versions of a frame by default
MAX_GUARD = 200  # characters of each
MAX_VALUES = 16
MAX_EVENT_SOURCES = 64  # entries of the lattice in one event
MAX_SOURCES = 4096  # and in all events of a process

# A path into the locals of a frame, as guards spell it, or into its globals.
PATH = re.compile(
    r"""(?:\bG\[['"](\w+)['"]\]|(?<![\w.'"])([A-Za-z_]\w*))"""
    r"""((?:\.\w+(?!\()|\[\d+\]|\['[^']*'\]|\["[^"]*"\])*)"""
)
PIECE = re.compile(r"""\.(\w+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
TENSOR = re.compile(r"tensor '(.+)' (?:[\w ]+) mismatch")
MISSING = object()


def explain_recompile(reasons: Any, frame: Any) -> dict[str, Any]:
    """Each version's failed guard, the values that this call has there, and who calls."""
    texts = [re.sub(" {4,}", "   ", str(text).partition("\n")[0])[:MAX_GUARD] for text in reasons]
    code = frame.f_code
    found: dict[str, Any] = {
        "where": f"{code.co_filename}:{code.co_firstlineno} {code.co_name}",
        "reasons": list(dict.fromkeys(texts))[:MAX_GUARDS],
    }
    seen = _values(found["reasons"], frame)
    if seen:
        found["seen"] = seen
    caller = frames.calling_line(code)
    if caller:
        found["caller"] = caller
    return found


def dynamo_settings(torch: ModuleType) -> dict[str, Any]:
    """The version, and the sources that are marked from outside."""
    config = getattr(torch.compiler, "config", None)
    names = ("dynamic_sources", "unbacked_sources", "dynamic_values")
    marked = {name: getattr(config, name, "") for name in names}
    marked = {name: str(text)[:20_000] for name, text in marked.items() if text}
    return {"torch": str(torch.__version__), **({"marked": marked} if marked else {})}


class ShapeHistory:
    """What torch has seen of each source's sizes over all compiles: told when it changes."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Any] = {}

    def changes(self) -> dict[str, Any]:
        """New or changed entries, those that change first; `?` stands for what changes."""
        state = getattr(sys.modules.get("torch._dynamo.pgo"), "_CODE_STATE", None)
        fresh: list[tuple[str, str, Any]] = []
        for code, frame in list((state or {}).items()):
            place = str(code)
            for source, entry in list(frame.automatic_dynamic.items()):
                shape = _shape(entry)
                if self.known.get((place, source), MISSING) != shape:
                    fresh.append((place, source, shape))
        fresh.sort(key=lambda one: not _is_dynamic(one[2]))
        room = min(MAX_EVENT_SOURCES, MAX_SOURCES - len(self.known))
        told = fresh[: max(room, 0)]
        self.known.update({(code, source): shape for code, source, shape in told})
        if not told:
            return {}
        return {"lattice": [[source[:300], shape] for _, source, shape in told]}


def _shape(entry: Any) -> Any:
    """A tensor's sizes as a list, with its strides if only those change; a scalar as itself."""
    if not isinstance(entry.size, tuple):
        return _plain(entry.scalar)
    size = [_plain(one) for one in entry.size[:16]]
    if "?" in size or not isinstance(entry.stride, tuple):
        return size
    stride = [_plain(one) for one in entry.stride[:16]]
    return {"size": size, "stride": stride} if "?" in stride else size


def _plain(one: Any) -> Any:
    if isinstance(one, (int, float)):
        return _scalar(one)
    return "?" if type(one).__name__ == "AutoDynamic" else type(one).__name__


def _is_dynamic(shape: Any) -> bool:
    return shape == "?" or isinstance(shape, dict) or (isinstance(shape, list) and "?" in shape)


def _values(reasons: list[str], frame: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reason in reasons:
        for path, value in _named_values(reason, frame):
            if len(found) < MAX_VALUES and value is not MISSING:
                found.setdefault(path[:300], _describe_value(value))
    return found


def _named_values(reason: str, frame: Any) -> Iterator[tuple[str, Any]]:
    """The paths in a guard that lead somewhere, and where to."""
    text = reason.partition(": ")[2].partition("  #")[0]
    tensor = TENSOR.match(text)
    if tensor:
        text = tensor[1]
    for hit in PATH.finditer(re.sub(r"\.(?:size|stride)\(\)\[\d+\]", " ", text)):
        scope, first = (frame.f_globals, hit[1]) if hit[1] else (frame.f_locals, hit[2])
        try:
            start = scope[first]
        except (KeyError, TypeError):
            continue
        yield hit[0], _follow(start, hit[3])


def _follow(value: Any, path: str) -> Any:
    """Only through plain containers and attributes that are stored: nothing of the job runs."""
    for attribute, number, single, double in PIECE.findall(path):
        try:
            if attribute:
                value = vars(value)[attribute]
            elif number and type(value) in (list, tuple, dict):
                value = value[int(number)]
            elif type(value) is dict:
                value = value[single or double]
            else:
                return MISSING
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def _describe_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return _scalar(value)
    if type(value) is str:
        return repr(value)[:40]
    torch: Any = sys.modules["torch"]
    if type(value) in (torch.Tensor, torch.nn.Parameter):  # a subclass may have code of its own
        return [int(size) for size in value.shape[:16]]
    if type(value) in (list, tuple, dict, set):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 62:
        return str(value)[:40]
    return value
