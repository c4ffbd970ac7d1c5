"""Names of inputs as dynamo spells them, and the settings of torch that mark them.

An entry of TORCH_COMPILE_DYNAMIC_SOURCES is a name, or a regular expression that is matched from
the start; torch takes out the spaces and splits at commas. From 2.13 on `:N` at its end stands
for one dimension; before, such an entry matches nothing, and nobody says so.
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
MIN_FOLDED = 3  # so many names of one form become a regular expression


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """An input and one of its dimensions; none for a number, or for all of them."""

    name: str
    dim: int | None = None

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name}:{self.dim}"


def without_scope(name: str) -> str:
    """Without its scope, as torch prints it in a guard: `L['x'][0]` is `x[0]`."""
    return re.sub(r"""L\[\s*['"](.*?)['"]\s*\]""", r"\1", name)


def spelling_in_code(name: str) -> str:
    """As the code says it: globals without their scope too."""
    return re.sub(r"G\['(\w+)'\]", r"\1", without_scope(name))


def with_scope(name: str, known: Mapping[str, str]) -> str:
    """With its scope again; `known`: names that torch has told whole, by their plain form."""
    if name in known or re.match(r"[LG]\[", name):
        return known.get(name, name)
    return re.sub(r"^([A-Za-z_]\w*)", r"L['\1']", name)


def version(text: str | None) -> tuple[int, int] | None:
    """`2.13.0+cpu` is (2, 13)."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def knows_dimensions(torch: str | None) -> bool:
    """Whether that version takes `:N`; where it is not known, what all versions take is safe."""
    parsed = version(torch)
    return parsed is not None and parsed >= DIMENSIONS_SINCE


def entries(sources: Iterable[Source], static: Iterable[Source], torch: str | None) -> list[str]:
    """Entries that mark what is wanted, and as little else as names can tell."""
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
    """One entry for everything in a container."""
    pattern = rf"{_escaped(container)}\['[^']+'\]\Z"
    return _entry(pattern, dim if knows_dimensions(torch) else None)


def join(marked: str, new: Sequence[str]) -> str:
    """What was set already, and what is new."""
    return ",".join(filter(None, dict.fromkeys([*_split(marked), *new])))


def supported_entries(env: Mapping[str, str], torch: str | None) -> dict[str, str]:
    """Without entries that this version would match with nothing."""
    if knows_dimensions(torch):
        return dict(env)
    return {
        name: ",".join(entry for entry in _split(text) if not re.search(r":\d+$", entry))
        for name, text in env.items()
    }


def as_dynamic(env: Mapping[str, str], keep: str = "") -> dict[str, str]:
    """The same settings with sizes that are dynamic only, not unbacked, but for those to keep."""
    no_longer_unbacked = [
        entry for entry in _split(env.get(UNBACKED, "")) if entry not in _split(keep)
    ]
    settings = {**env, DYNAMIC: join(env.get(DYNAMIC, ""), no_longer_unbacked), UNBACKED: keep}
    return {name: text for name, text in settings.items() if text}


def is_covered(source: Source, marked: str, torch: str | None) -> bool:
    """Whether that source is marked already, as torch itself would decide it."""
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
    """Names of one form become one entry, unless it would mark one that never changes."""
    groups: dict[tuple[str, int | None], list[Source]] = {}
    for source in sources:
        groups.setdefault((pattern_of(source.name), source.dim), []).append(source)
    unfolded = []
    for (pattern, dim), members in groups.items():
        # A number has no dimension, so that `:N` marks it all the same.
        marks_unchanging = any(
            other.dim in (dim, None) and re.match(pattern, other.name) for other in unchanging
        )
        if len(members) >= MIN_FOLDED and not marks_unchanging:
            out.append(_entry(pattern, dim))
        else:
            unfolded += members
    return unfolded


def _numbered(name: str) -> str:
    """The same name with any numbers in it."""
    pieces = re.split(r"([0-9]+)", name)
    return "".join(r"\d+" if piece.isdecimal() else _escaped(piece) for piece in pieces) + r"\Z"


def _keyed(name: str) -> str:
    """The same container with any key; all locals of all frames are no container."""
    match = re.fullmatch(r"([LG]\[.+)\['[^']+'\]", name)
    return any_key(match[1], None, None) if match else _escaped(name) + r"\Z"


def _exactly(name: str) -> str:
    """The name itself where torch can take it as it is, else an expression for just that."""
    if re.fullmatch(r"[LG]\['[\w.]+'\](?:\.\w+|\['[\w.]+'\]|\[\d+\])*", name):
        return name
    return _escaped(name) + r"\Z"


def _escaped(name: str) -> str:
    """For torch, to which a comma ends an entry and a space is nothing; plain in any shell."""
    return "".join(_character(c) for c in name)


def _character(c: str) -> str:
    if c.isascii() and (c.isalnum() or c in "_'"):
        return c
    if c in ".[](){}+*?^|-":
        return f"\\{c}"
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\U{ord(c):08x}"


def _entry(pattern: str, dim: int | None) -> str:
    return pattern if dim is None else f"{pattern}:{dim}"
