"""Names of inputs as dynamo spells them, and the torch settings that mark them as dynamic.

An entry of TORCH_COMPILE_DYNAMIC_SOURCES is a name, or a regular expression that is matched from
the start; torch removes spaces and splits at commas. Since torch 2.13 `:N` at its end selects one
dimension; earlier versions silently match nothing with such an entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

DYNAMIC = "TORCH_COMPILE_DYNAMIC_SOURCES"
UNBACKED = "TORCH_COMPILE_UNBACKED_SOURCES"
VALUES = "TORCH_COMPILE_DYNAMIC_VALUES"
# The same settings in torch.compiler.config.
SETTINGS = {DYNAMIC: "dynamic_sources", UNBACKED: "unbacked_sources", VALUES: "dynamic_values"}
DIMENSIONS_SINCE = (2, 13)
MIN_FOLDED = 3  # names of one pattern from which on a regular expression replaces them


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """An input and one of its dimensions; `dim` is None for numbers and for all dimensions."""

    name: str
    dim: int | None = None

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name}:{self.dim}"


def without_scope(name: str) -> str:
    """Remove the scope, as torch does in guards: `L['x'][0]` becomes `x[0]`."""
    return re.sub(r"""L\[\s*['"](.*?)['"]\s*\]""", r"\1", name)


def spelling_in_code(name: str) -> str:
    """The name as in the user's code: globals also without scope."""
    return re.sub(r"G\['(\w+)'\]", r"\1", without_scope(name))


def with_scope(name: str, full_names: Mapping[str, str]) -> str:
    """Add the scope again; `full_names` maps plain names to the full names that torch recorded."""
    if name in full_names or re.match(r"[LG]\[", name):
        return full_names.get(name, name)
    return re.sub(r"^([A-Za-z_]\w*)", r"L['\1']", name)


def version(text: str | None) -> tuple[int, int] | None:
    """Parse a version: `2.13.0+cpu` becomes (2, 13)."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def knows_dimensions(torch: str | None) -> bool:
    """Whether that version supports `:N`; False if the version is unknown."""
    parsed = version(torch)
    return parsed is not None and parsed >= DIMENSIONS_SINCE


def entries(sources: Iterable[Source], static: Iterable[Source], torch: str | None) -> list[str]:
    """Entries that mark these sources and as few others as possible."""
    by_dim = knows_dimensions(torch)
    remaining = list(dict.fromkeys(s if by_dim else Source(s.name) for s in sources))
    names = {source.name for source in remaining}
    if by_dim:
        unchanging = set(static) - set(remaining)
    else:
        unchanging = {Source(s.name) for s in static if s.name not in names}
    out: list[str] = []
    for pattern_of in (_numbered, _keyed):
        remaining = _fold(remaining, unchanging, pattern_of, out)
    return out + [_entry(_exactly(source.name), source.dim) for source in remaining]


def any_key(container: str, dim: int | None, torch: str | None) -> str:
    """An entry for all keys of a container."""
    pattern = rf"{_escaped(container)}\['[^']+'\]\Z"
    return _entry(pattern, dim if knows_dimensions(torch) else None)


def join(marked: str, new: Sequence[str]) -> str:
    """Append new entries to those that were already set."""
    return ",".join(filter(None, dict.fromkeys([*_split(marked), *new])))


def supported_entries(env: Mapping[str, str], torch: str | None) -> dict[str, str]:
    """Remove entries that this version does not support."""
    if knows_dimensions(torch):
        return dict(env)
    return {
        name: ",".join(entry for entry in _split(text) if not re.search(r":\d+$", entry))
        for name, text in env.items()
    }


def as_dynamic(env: Mapping[str, str], keep: str = "") -> dict[str, str]:
    """The same settings with unbacked sizes marked as dynamic instead, except those in `keep`."""
    no_longer_unbacked = [
        entry for entry in _split(env.get(UNBACKED, "")) if entry not in _split(keep)
    ]
    settings = {**env, DYNAMIC: join(env.get(DYNAMIC, ""), no_longer_unbacked), UNBACKED: keep}
    return {name: text for name, text in settings.items() if text}


def is_covered(source: Source, marked: str, torch: str | None) -> bool:
    """Whether the source is already marked, by torch's own matching rules."""
    for entry in _split(marked):
        pattern, dim = entry, None
        suffix = re.match(r"(.+):(\d+)$", entry)
        if suffix and knows_dimensions(torch):
            pattern, dim = suffix[1], int(suffix[2])
        try:
            is_match = pattern == source.name or re.match(pattern, source.name)
        except re.error:
            continue
        if is_match and (dim is None or source.dim is None or dim == source.dim):
            return True
    return False


def _split(marked: str) -> list[str]:
    return [entry for entry in marked.replace(" ", "").split(",") if entry]


def _fold(
    sources: Sequence[Source],
    unchanging: set[Source],
    pattern_of: Callable[[str], str],
    out: list[str],
) -> list[Source]:
    """Replace names of one pattern by one entry, unless it matches a source that never changes."""
    groups: dict[tuple[str, int | None], list[Source]] = {}
    for source in sources:
        groups.setdefault((pattern_of(source.name), source.dim), []).append(source)
    unfolded = []
    for (pattern, dim), members in groups.items():
        # Numbers have no dimension, but torch marks them by `:N` too.
        marks_unchanging = any(
            other.dim in (dim, None) and re.match(pattern, other.name) for other in unchanging
        )
        if len(members) >= MIN_FOLDED and not marks_unchanging:
            out.append(_entry(pattern, dim))
        else:
            unfolded += members
    return unfolded


def _numbered(name: str) -> str:
    """A pattern for the same name with any numbers."""
    pieces = re.split(r"([0-9]+)", name)
    return "".join(r"\d+" if piece.isdecimal() else _escaped(piece) for piece in pieces) + r"\Z"


def _keyed(name: str) -> str:
    """A pattern for the same container with any key; the locals themselves are no container."""
    match = re.fullmatch(r"([LG]\[.+)\['[^']+'\]", name)
    return any_key(match[1], None, None) if match else _escaped(name) + r"\Z"


def _exactly(name: str) -> str:
    """The name itself if torch reads it literally, else a pattern that matches only this name."""
    if re.fullmatch(r"[LG]\['[\w.]+'\](?:\.\w+|\['[\w.]+'\]|\[\d+\])*", name):
        return name
    return _escaped(name) + r"\Z"


def _escaped(name: str) -> str:
    """Escape for torch (comma ends an entry, spaces are removed) and for any shell."""
    return "".join(_character(c) for c in name)


def _character(c: str) -> str:
    if c.isascii() and (c.isalnum() or c in "_'"):
        return c
    if c in ".[](){}+*?^|-":
        return f"\\{c}"
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\U{ord(c):08x}"


def _entry(pattern: str, dim: int | None) -> str:
    return pattern if dim is None else f"{pattern}:{dim}"
