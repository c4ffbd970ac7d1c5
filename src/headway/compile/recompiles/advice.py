"""Explain a run's recompiles and derive the settings that avoid them: pure functions, no torch.

Sources to mark as dynamic are the union of what the guards say and what torch's own lattice of
shapes holds. Each alone misses some: a guard names only the first difference, and the lattice ends
where torch gave up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.compile.recompiles import sources
from headway.compile.recompiles.guards import Guard, parse
from headway.compile.recompiles.kinds import KINDS
from headway.compile.recompiles.record import Recompile, Record
from headway.compile.recompiles.sources import DYNAMIC, SETTINGS, UNBACKED, VALUES, Source

RESUME_FUNCTION = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
WRAPPER_FILE = "/torch/_dynamo/external_utils.py:"  # stands between the call and a module of torch
MAX_VALUES = 8  # that are shown of one cause
MAX_STEPS = 100
SPECIAL_SIZES = frozenset({"0", "1"})  # torch compiles them for themselves, also if dynamic


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """All recompiles of one place for one change of one input."""

    kind: str
    where: str  # file:line name of what is compiled
    source: str = ""  # with its scope; empty where no input is to blame
    dim: int | None = None
    values: tuple[str, ...] = ()  # that were seen, in order
    times: int = 0  # on the rank that has most of them
    ns: int = 0  # likewise
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()  # how many steps were done before each, on any rank
    caller: str = ""
    line: str = ""  # where the guard comes from
    reason: str = ""
    cure: str = ""
    mark: str = ""  # the line of code that does the same as the setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """torch gave up compiling a place: it runs uncompiled from then on."""

    where: str
    limit: str
    ranks: tuple[int, ...]
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a run's recompiles cost, why they were made, and what to set."""

    torch: str | None
    recompiles: int  # on the rank that has most of them
    ns: int  # on the rank that lost most
    graphs: int
    compile_ns: int
    causes: tuple[Cause, ...]  # the costliest first
    storms: tuple[LimitHit, ...]
    dynamic: tuple[Source, ...]
    unbacked: tuple[Source, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # with what was set already
    helps: bool = False  # there is more in it than was set already
    last_step: int | None = None  # how many steps were done when the last one came

    def to_dict(self) -> dict[str, Any]:
        """What `headway recompiles --json` prints."""
        return {
            "schema": 1,
            "torch": self.torch,
            "recompiles": self.recompiles,
            "seconds": self.ns / 1e9,
            "graphs": self.graphs,
            "compile_seconds": self.compile_ns / 1e9,
            "env": dict(self.env),
            "dynamic": [str(source) for source in self.dynamic],
            "unbacked": [str(source) for source in self.unbacked],
            "causes": [_cause_to_dict(cause) for cause in self.causes],
            "storms": [
                {
                    "where": storm.where,
                    "limit": storm.limit,
                    "ranks": list(storm.ranks),
                    "step": storm.step,
                    "reason": storm.reason,
                }
                for storm in self.storms
            ],
        }


def _cause_to_dict(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "title": KINDS[cause.kind].title,
        "where": cause.where,
        "source": cause.source,
        "dim": cause.dim,
        "values": list(cause.values),
        "times": cause.times,
        "seconds": cause.ns / 1e9,
        "ranks": list(cause.ranks),
        "steps": list(cause.steps),
        "caller": cause.caller,
        "line": cause.line,
        "reason": cause.reason,
        "cure": cause.cure,
        "mark": cause.mark,
    }


def advise(record: Record) -> Advice:
    """The causes and the cure of a run's recompiles."""
    known = {sources.without_scope(source): source for source in record.lattice}
    made = [one for one in record.recompiles if not one.limit]
    steps = [one.step for one in record.recompiles if one.step is not None]
    found = find_marks(record, known)
    return Advice(
        torch=record.torch,
        recompiles=_largest_rank_sum(made, lambda one: 1),
        ns=_largest_rank_sum(made, lambda one: one.ns),
        graphs=record.graphs,
        compile_ns=record.ns,
        causes=tuple(_causes(record.recompiles, known)),
        storms=tuple(_limit_hits(record.recompiles)),
        dynamic=found.dynamic,
        unbacked=found.unbacked,
        env=found.env,
        helps=found.new,
        last_step=max(steps, default=None),
    )


def _causes(recompiles: Iterable[Recompile], known: Mapping[str, str]) -> list[Cause]:
    groups: dict[tuple[str, Source, str], list[tuple[Recompile, Guard]]] = {}
    why = [(one, _failed_guard(one)) for one in recompiles]
    pinned = {(one.where, guard.source) for one, guard in why if guard.kind == "pinned"}
    for one, guard in why:
        inputs = KINDS[guard.kind].of_input and guard.source
        name = sources.with_scope(guard.source, known) if inputs else guard.source
        kind = "size" if guard.kind == "zero_one" else guard.kind
        if kind == "int" and (one.where, guard.source) in pinned:
            kind = "pinned"
        groups.setdefault((one.where, Source(name, guard.dim), kind), []).append((one, guard))
    causes = [
        _cause(kind, where, source, members) for (where, source, kind), members in groups.items()
    ]
    return sorted(causes, key=lambda cause: (-cause.ns, -cause.times, cause.where, cause.source))


def _failed_guard(one: Recompile) -> Guard:
    """The guard of the version that was used last: it is the most general one."""
    if one.reasons:
        return parse(one.reasons[0])
    return Guard("rebuilt" if one.rebuilt else "late")


def _cause(
    kind: str, where: str, source: Source, members: Sequence[tuple[Recompile, Guard]]
) -> Cause:
    all_of_them = [one for one, _ in members]
    made = [one for one in all_of_them if not one.limit]
    guard = members[0][1]
    values: dict[str, None] = {}
    for one, found in members:
        values.update(dict.fromkeys((found.expected, actual_value(found, one))))
    values.pop("", None)
    if kind == "size" and values.keys() & SPECIAL_SIZES:
        kind = "zero_one"
    code = sources.spelling_in_code(source.name)
    cure = KINDS[kind].cure.format(code or "it", guard.expected or "the first one", guard.text)
    return Cause(
        kind=kind,
        where=where,
        source=source.name,
        dim=source.dim,
        values=tuple(values)[:MAX_VALUES],
        times=_largest_rank_sum(made, lambda one: 1),
        ns=_largest_rank_sum(made, lambda one: one.ns),
        ranks=tuple(sorted({one.rank for one in all_of_them})),
        steps=tuple(sorted({one.step for one in all_of_them if one.step is not None}))[:MAX_STEPS],
        caller=next((one.caller for one in all_of_them if one.caller), ""),
        line=guard.line,
        reason=_short_reason(all_of_them[0].reasons),
        cure=cure,
        mark=_mark(kind, where, code, source.dim),
    )


def _mark(kind: str, where: str, code: str, dim: int | None) -> str:
    """The line that marks a tensor before the call; between two graphs nobody can."""
    calls = {
        "size": "torch._dynamo.mark_dynamic",
        "duck": "torch._dynamo.mark_dynamic",
        "zero_one": "torch._dynamo.decorators.mark_unbacked",
    }
    if dim is None or kind not in calls or RESUME_FUNCTION.search(where):
        return ""
    passed = re.match(r"args\[(\d+)\]", code) if WRAPPER_FILE in where else None
    remark = f"  # args[{passed[1]}]: argument {int(passed[1]) + 1} of the call" if passed else ""
    return f"{calls[kind]}({code}, {dim}){remark}"


def _limit_hits(recompiles: Iterable[Recompile]) -> Iterator[LimitHit]:
    by_place: dict[tuple[str, str], list[Recompile]] = {}
    for one in recompiles:
        if one.limit:
            by_place.setdefault((one.where, one.limit), []).append(one)
    for (where, limit), members in by_place.items():
        yield LimitHit(
            where=where,
            limit=limit,
            ranks=tuple(sorted({one.rank for one in members})),
            step=min((one.step for one in members if one.step is not None), default=None),
            reason=_short_reason(members[0].reasons),
        )


def _short_reason(reasons: Sequence[str]) -> str:
    """The guard alone, without the code that torch quotes beside it."""
    return reasons[0].partition("\n")[0].partition("  #")[0].strip() if reasons else ""


def _largest_rank_sum(recompiles: Iterable[Recompile], measure: Callable[[Recompile], int]) -> int:
    """The sum on the rank where it is largest: ranks compile side by side."""
    by_rank: dict[int, int] = {}
    for one in recompiles:
        by_rank[one.rank] = by_rank.get(one.rank, 0) + measure(one)
    return max(by_rank.values(), default=0)


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
