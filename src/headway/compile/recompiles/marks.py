"""Which sizes and integers to mark as dynamic, and the settings of torch that do it.

What guards say and what torch's own lattice of shapes holds are united. Each alone misses
sources: a guard names only the first thing that differs, and the lattice ends where torch gave up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.compile.recompiles import sources
from headway.compile.recompiles.guards import Guard, parse
from headway.compile.recompiles.record import Recompile, Record
from headway.compile.recompiles.sources import DYNAMIC, SETTINGS, UNBACKED, VALUES, Source

SPECIAL_SIZES = frozenset(
    {"0", "1"}
)  # sizes that torch compiles for themselves, also of a dynamic one


@dataclass(frozen=True, slots=True)
class Marks:
    """What changes, and of that the sizes that become 0 or 1."""

    dynamic: tuple[Source, ...] = ()
    unbacked: tuple[Source, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # with what was set already
    new: bool = False  # there is more in it than that


def find_marks(record: Record, known: Mapping[str, str]) -> Marks:
    """`known`: names that torch has told whole, by their plain form."""
    if not record.recompiles:
        return Marks(env=_settings(record, [], [])[0])
    values: dict[Source, set[str]] = {}
    pinned, asked = set(), set()
    for one in record.recompiles:
        for guard in map(parse, one.reasons):
            name = sources.with_scope(guard.source, known)
            if guard.kind == "pinned":
                pinned.add((one.where, name))
            elif guard.kind == "branch":
                asked.add(Source(name, guard.dim))
    for one in record.recompiles:
        for guard in map(parse, one.reasons):
            for source, seen in markable_sources(guard, one, known):
                if source.dim is not None or (one.where, source.name) not in pinned:
                    values.setdefault(source, set()).update(seen)
    never = _unmarkable_names(record, known)
    for source in _changing_in_lattice(record):
        if source.dim is not None or source.name not in never:
            values.setdefault(source, set())
    unbacked = [
        source
        for source, seen in values.items()
        # Where the code asks for the size an unbacked one is refused.
        if source.dim is not None
        and seen & SPECIAL_SIZES
        and source not in asked
        and not _owning_module(source)
    ]
    dynamic = [source for source in values if source not in unbacked]
    return Marks(tuple(dynamic), tuple(unbacked), *_settings(record, dynamic, unbacked))


def markable_sources(
    guard: Guard, one: Recompile, known: Mapping[str, str]
) -> Iterator[tuple[Source, set[str]]]:
    """Sources that a setting of torch can mark, with the values that this guard tells of."""
    name = sources.with_scope(guard.source, known)
    if guard.kind in ("size", "parameter"):
        yield Source(name, guard.dim), {guard.expected, guard.actual}
    elif guard.kind == "zero_one":
        yield Source(name, guard.dim), {actual_value(guard, one) or "1"}
    elif guard.kind == "duck" and guard.other is not None:
        yield Source(name, guard.dim), set()
        yield Source(sources.with_scope(guard.other[0], known), guard.other[1]), set()
    elif guard.kind in ("int", "module_int"):
        yield Source(name), {guard.expected}


def actual_value(guard: Guard, one: Recompile) -> str:
    """The value that the call had: from the guard, or from what the probe found there."""
    if guard.actual or guard.source not in one.seen:
        return guard.actual
    value = one.seen[guard.source]
    if isinstance(value, list):
        dim = guard.dim
        return str(value[dim]) if dim is not None and dim < len(value) else ""
    if guard.kind in ("length", "keys"):
        counted = re.search(r" of (\d+)$", str(value))
        return counted[1] if counted and guard.expected.isdecimal() else ""
    return str(value)


def _unmarkable_names(record: Record, known: Mapping[str, str]) -> set[str]:
    """Names that the lattice holds as changing, and that are no integers."""
    odd = ("float", "pinned", "rank", "tensor_type", "type", "none", "constant")
    guards = (parse(reason) for one in record.recompiles for reason in one.reasons)
    told = {sources.with_scope(guard.source, known) for guard in guards if guard.kind in odd}
    floats = {
        name
        for name, shapes in record.lattice.items()
        if any(isinstance(shape, float) for shape in shapes)
    }
    return told | floats


def _changing_in_lattice(record: Record) -> Iterator[Source]:
    """What of the lattice changes: `?` stands for that. The base of a view follows the view."""
    for name, shapes in record.lattice.items():
        if name.endswith("._base"):
            continue
        for shape in shapes:
            if isinstance(shape, list):
                yield from (Source(name, dim) for dim, size in enumerate(shape) if size == "?")
        if "?" in shapes and not any(isinstance(shape, (list, dict)) for shape in shapes):
            yield Source(name)


def _fixed_in_lattice(record: Record) -> Iterator[Source]:
    for name, shapes in record.lattice.items():
        last = shapes[-1]
        size = last.get("size") if isinstance(last, dict) else last
        if isinstance(size, list):
            yield from (Source(name, dim) for dim, one in enumerate(size) if one != "?")
        elif size != "?":
            yield Source(name)


def _owning_module(source: Source) -> str:
    """The module, if the source is one of its parameters: the others change with it."""
    found = re.fullmatch(r"(.+\._parameters)\['[^']+'\]", source.name)
    return found[1] if found else ""


def _settings(
    record: Record, dynamic: Sequence[Source], unbacked: Sequence[Source]
) -> tuple[dict[str, str], bool]:
    """The settings for the user's torch, and whether they are more than what was set already."""
    static = list(_fixed_in_lattice(record))
    found: dict[str, str] = {}
    new = False
    for variable, wanted in ((DYNAMIC, dynamic), (UNBACKED, unbacked), (VALUES, [])):
        before = record.marked.get(SETTINGS[variable], "")
        left = [one for one in wanted if not sources.is_covered(one, before, record.torch)]
        added = sources.entries(
            [one for one in left if not _owning_module(one)], static, record.torch
        )
        for one in left:
            if _owning_module(one):
                added.append(sources.any_key(_owning_module(one), one.dim, record.torch))
        if added or before:
            found[variable] = sources.join(before, added)
        new = new or bool(added)
    return found, new
